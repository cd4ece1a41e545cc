"""compare: DECOR on several graphs beside central DP, local DP and no privacy, tuned alike.

A comparison is a folder. Each method is written when it is finished, by one atomic rename, so that
an interrupted comparison is valid up to there and can be resumed.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import chain, product
from pathlib import Path
from tempfile import mkdtemp
from typing import Any
from weakref import finalize

from decor import checks, progress
from decor.choices import Acceleration
from decor.errors import InputError, write_errors
from decor.graph import named
from decor.graph.topology import Topology
from decor.learning.recipe import Recipe, recipe_with
from decor.learning.task import Task
from decor.privacy import baselines
from decor.privacy.adversary import Adversary
from decor.privacy.budget import Budget, Exposure
from decor.privacy.calibrate import calibrate
from decor.privacy.plan import NoisePlan
from decor.results.build_report import describe_method, make_report, summarise_runs
from decor.results.comparison import ComparisonResult
from decor.results.report_data import GridEnd, Method, Outcome, Repeat, Report, Tuning
from decor.results.run import Run
from decor.results.safe_files import replace_text
from decor.text import amount

from .engine import Engine, Setting
from .manifest import fingerprint, versions
from .sweep import NOT_FREE, Sweep, Tuned, sweep

FORMAT = "decor-comparison-1"
RATES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
BEYOND: dict[str, tuple[float, ...]] = {
    "smallest": (0.0001, 0.0002, 0.0005),
    "largest": (10.0, 20.0, 50.0),
}
"""Also tried where the best of RATES is at that end; for all methods they would cost half again."""

_ROUNDS = (1, 2, 4, 8, 16)
"""Gossip rounds per step to choose from at equal communication."""
_ALWAYS_WRITTEN = {
    "momentum",
    "weight_decay",
    "gossip_rounds",
    "accelerate",
    "final_gossip_rounds",
    "batch_size",
}
"""Fields of the recipe that are in every comparison's manifest, also with their default value."""


@dataclass(frozen=True)
class Design:
    """What is compared.

    At every epsilon each method takes the best of `learning_rates` x `clips`, by the training loss.
    With the default rates it also tries rates beyond an end at which the best was found.

    Attributes:
        graphs: (name, graph) of each graph; the first is also the baselines'.
        epsilons: The budgets to compare at.
        exposure: Steps, clip and batches; `clips` replace its clip.
        delta: The failure probability of every budget.
        adversary: The adversary that DECOR protects against.
        clips: Clips to choose from.
        couples: DECOR also chooses its pair of noises, as the paper does: the default ratio times
            each of these.
        learning_rates: Learning rates to choose from.
        seeds: Seeds of the results shown. Settings are chosen with other seeds, or luck would look
            like merit.
        criterion: The metric that chooses.
        recipe: How to train, the same for all methods.
        any_delta: Allows a delta that is too large to be meaningful for the data.
        messages: Messages of a run to each neighbour. Every method then also chooses among 1 to 16
            gossip rounds per step, designed for the graph, with as many steps as so many messages
            allow; `exposure.steps` and the recipe's rounds do not matter.
    """

    graphs: tuple[tuple[str, Topology], ...]
    epsilons: tuple[float, ...]
    exposure: Exposure
    delta: float = 1e-5
    adversary: Adversary = field(default_factory=Adversary.curious)
    clips: tuple[float, ...] = (1.0,)
    couples: tuple[float, ...] = (1.0, 4.0, 16.0)
    learning_rates: tuple[float, ...] = RATES
    seeds: tuple[int, ...] = (0, 1, 2, 3)
    criterion: str = "loss"
    recipe: Recipe = field(default_factory=Recipe)
    any_delta: bool = False
    messages: int | None = None

    def __post_init__(self) -> None:
        if self.messages is not None:
            checks.count("messages", self.messages, 1, 10**9)
        # folders are named by the printed epsilon
        printed = {f"{epsilon:g}" for epsilon in self.epsilons}
        if not printed or len(printed) < len(self.epsilons):
            raise InputError(
                f"the epsilons {self.epsilons!r} are too few, or too alike to be told apart; name "
                "each once"
            )
        if not self.any_delta:  # before anything is trained
            for _, topology in self.graphs:
                Budget(self.epsilons[0], self.delta).check_delta(self.exposure, topology)

    def to_json(self) -> dict[str, Any]:
        """Plain values: two designs are the same if these are."""
        plain = asdict(self)
        # by digest: a graph may have millions of edges
        plain["graphs"] = [[name, topology.digest] for name, topology in self.graphs]
        plain["exposure"] = self.exposure.to_json()
        plain["adversary"] = str(self.adversary)
        del plain["recipe"]
        # newer fields are left out at their default, so that older comparisons can be resumed
        if not self.any_delta:
            del plain["any_delta"]
        if self.messages is None:
            del plain["messages"]
        for name, value in asdict(self.recipe).items():
            if name in _ALWAYS_WRITTEN or value != getattr(Recipe(), name):
                plain[name] = value
        # asdict would lose which schedule it is
        plain["schedule"] = repr(self.recipe.schedule)
        # as a file gives it back: a tuple is not equal to the list that was read
        return json.loads(json.dumps(plain))  # type: ignore[no-any-return]

    @property
    def beyond(self) -> dict[str, tuple[float, ...]]:
        """Rates to try where the best is at an end; none if the caller has chosen the rates."""
        return BEYOND if self.learning_rates == RATES else {}

    @property
    def steps(self) -> dict[int, Recipe]:
        """Numbers of steps to choose from, and how to train with each."""
        if self.messages is None:
            return {self.exposure.steps: self.recipe}
        choices = {}
        # fewer rounds come later: of equal numbers of steps they cost fewer messages
        for rounds in reversed(_ROUNDS):
            how: Acceleration = "designed" if rounds > 1 else False
            # more rounds than messages leave no step at all
            if steps := self.messages // rounds:
                recipe = replace(self.recipe, gossip_rounds=rounds, accelerate=how)
                choices[steps] = recipe
        return choices

    def methods(self) -> list[Method]:
        """The methods, in the order of the table."""
        first = self.graphs[0][0]
        return [
            describe_method("none", first),
            describe_method("central", None),
            *(describe_method("decor", name) for name, _ in self.graphs),
            describe_method("local", first),
        ]

    def plans(self, method: Method) -> Iterator[tuple[float | None, list[NoisePlan]]]:
        """Every epsilon with the plans to choose from."""
        topology = dict(self.graphs)[method.graph or self.graphs[0][0]]
        if method.kind == "none":
            # so large a clip never clips
            exposures = [replace(self.exposure, clip=1e30, steps=steps) for steps in self.steps]
            yield None, [NoisePlan(topology, each, self.adversary, 0.0, 0.0) for each in exposures]
            return
        for epsilon in self.epsilons:
            budget = Budget(epsilon, self.delta)
            plans: list[NoisePlan] = []
            for clip, steps in product(self.clips, self.steps):
                exposure = replace(self.exposure, clip=clip, steps=steps)
                if method.kind == "decor":
                    plans += self._noise_pairs(topology, exposure, budget)
                else:
                    make = baselines.central if method.kind == "central" else baselines.local
                    plans.append(make(topology, exposure, budget, any_delta=self.any_delta))
            yield epsilon, plans

    def _noise_pairs(
        self, topology: Topology, exposure: Exposure, budget: Budget
    ) -> Iterator[NoisePlan]:
        """DECOR's plans: the default pair of noises, and others by the factors `couples`."""
        make = partial(
            calibrate, topology, exposure, self.adversary, budget, any_delta=self.any_delta
        )
        recipe = self.steps[exposure.steps]
        plan = make(gossip_rounds=recipe.gossip_rounds, accelerate=recipe.accelerate)
        s, c = plan.sigma_cdp, plan.sigma_cor
        # noise designed by edge or by user has no single ratio to vary
        ratio = (c / s) ** 2 if isinstance(c, float) and isinstance(s, float) else 0.0
        for factor in self.couples if ratio else (1.0,):
            # the default plan is made already
            yield plan if factor == 1 else make(ratio=factor * ratio)


def compare(
    task: Task,
    budgets: Sequence[float] = (1.0, 3.0, 10.0, 30.0),
    topologies: Sequence[Topology | str] | Mapping[str, Topology] | None = None,
    *,
    exposure: Exposure | None = None,
    adversary: Adversary | None = None,
    delta: float = 1e-5,
    clips: Sequence[float] | None = None,
    learning_rates: Sequence[float] = RATES,
    seeds: Sequence[int] = (0, 1, 2, 3),
    criterion: str = "loss",
    recipe: Recipe | None = None,
    folder: str | Path | None = None,
    resume: bool = False,
    engine: Engine | None = None,
    any_delta: bool = False,
    messages: int | None = None,
    **recipe_fields: Any,
) -> ComparisonResult:
    """Measures what privacy costs: DECOR on several graphs, central DP, local DP and no privacy.

    Each takes the best of the learning rates and clips. These are simulations that look at the
    data, for their owner only: nothing of them is for publication.

    Args:
        task: Model, loss and each user's data.
        budgets: The epsilons to compare at.
        topologies: The graphs, or names such as "ring"; a mapping gives them names of its own. The
            users of graphs without names take the task's, in its order. By default a ring, and
            a random graph with four neighbours for each user.
        exposure: Steps, clip, unit and batches; `Exposure(clip=1.0, steps=100)` by default.
        adversary: The adversary that DECOR protects against; curious users by default.
        delta: The failure probability of every budget.
        clips: Clips to choose from; by default the exposure's.
        learning_rates: Learning rates to choose from; by default twelve, and further ones beyond
            an end at which the best was found.
        seeds: Seeds of the runs that are shown. Settings are chosen with others.
        criterion: The metric that chooses.
        recipe: How to train, the same for all methods.
        folder: Keeps everything in this folder as it is made; by default it is kept by `save`.
        resume: Goes on with an interrupted comparison in `folder`.
        engine: What runs it; None takes `Vectorised()`.
        any_delta: Allows a delta that is too large to be meaningful for the data.
        messages: Messages of a run to each neighbour. Every method then chooses among 1 to 16
            designed gossip rounds per step, with as many steps as so many messages allow, instead
            of the exposure's steps and the recipe's rounds.
        recipe_fields: Fields of the recipe, such as `gossip_rounds=4`.

    Returns:
        A result with `plot()`, `save(folder)` and a table.

    Raises:
        InputError: If task, graphs and exposure do not fit each other.
    """
    if not isinstance(task, Task):
        raise InputError(f"task must be a Task, not {task!r}")
    exposure = Exposure(clip=1.0, steps=100) if exposure is None else exposure
    design = Design(
        graphs=_graphs_by_name(task, topologies),
        epsilons=tuple(budgets),
        exposure=exposure,
        delta=delta,
        adversary=Adversary.curious() if adversary is None else adversary,
        clips=(exposure.clip,) if clips is None else tuple(clips),
        learning_rates=tuple(learning_rates),
        seeds=tuple(seeds),
        criterion=criterion,
        recipe=recipe_with(recipe, recipe_fields),
        any_delta=any_delta,
        messages=messages,
    )
    if folder is not None:
        result = ComparisonResult(
            Comparison(task, design, folder, resume=resume).run(engine), Path(folder)
        )
        result.save(folder)
        return result
    scratch = Path(mkdtemp(prefix="decor-comparison-"))
    try:
        result = ComparisonResult(Comparison(task, design, scratch).run(engine), scratch)
    # also when interrupted: nobody else knows of this folder
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    # the runs are kept as long as the result is
    finalize(result, shutil.rmtree, scratch, ignore_errors=True)
    return result


def _graphs_by_name(
    task: Task, topologies: Sequence[Topology | str] | Mapping[str, Topology] | None
) -> tuple[tuple[str, Topology], ...]:
    """The graphs with names that tell them apart, and the task's users."""
    if topologies is None:
        # four neighbours for each of five users are the complete graph
        topologies = ["ring", "random-regular"] if task.users > 5 else ["complete"]
    if isinstance(topologies, Topology | str):
        topologies = [topologies]
    graphs: list[tuple[str, Topology]] = []
    if isinstance(topologies, Mapping):
        graphs = [(str(name), topology) for name, topology in topologies.items()]
    else:
        for each in topologies:
            if isinstance(each, str):
                graphs.append((named.canonical_name(each), named.from_name(each, task.users)))
            else:
                graphs.append((repr(each), each))
    names = [name for name, _ in graphs]
    if not names or len(set(names)) < len(names):
        raise InputError(
            f"topologies has no graph, or one twice ({', '.join(names) or 'none'}); give a mapping "
            "from names to graphs"
        )
    for name, topology in graphs:
        if not isinstance(topology, Topology):
            raise InputError(f"the topology {name!r} must be a Topology, not {topology!r}")
    return tuple((name, _with_users_of(task, topology)) for name, topology in graphs)


def _with_users_of(task: Task, topology: Topology) -> Topology:
    """The graph with the task's names for its users, where it has none of its own."""
    numbers = {str(user) for user in range(task.users)}
    if task.names is None or topology.labels is not None or set(task.names) == numbers:
        return topology
    return replace(topology, labels=task.names)


class Comparison:
    """A comparison in its folder."""

    def __init__(
        self,
        task: Task,
        design: Design,
        folder: str | Path,
        *,
        resume: bool = False,
        command: str = "",
    ) -> None:
        self.task, self.design, self.folder, self.command = task, design, Path(folder), command
        # the clock of the day may be set while a comparison runs for days
        self.began = time.monotonic()
        self.seconds_before = 0.0
        # resuming with anything else would mix results of two comparisons
        self.identity = {
            "task": {"name": task.name, "fingerprint": fingerprint(task)},
            "design": design.to_json(),
        }
        self._open(resume)

    def run(self, engine: Engine | None = None) -> Report:
        """Trains every method that is not finished; gives the report of all."""
        methods = self.design.methods()
        try:
            for k, method in enumerate(methods):
                with progress.share(k / len(methods), (k + 1) / len(methods)):
                    # a finished method is never trained again
                    if not self._path(method).exists():
                        self._train(method, engine)
        finally:  # also when interrupted: the manifest says what is finished
            self._write_manifest()
        return self.data()

    def data(self) -> Report:
        """The report of the methods finished so far."""
        d, methods = self.design, self._complete_methods()
        if not methods:
            raise InputError(
                f"nothing is finished in {str(self.folder)!r} yet; resume with --resume"
            )
        outcomes = [outcome for method in methods for outcome in self._load(method)]
        unit = "everything a user holds" if d.exposure.unit == "user" else "one example"
        adversary, length = d.adversary.sentence, f"{amount(d.exposure.steps, 'step')}"
        if d.messages is not None:
            length = f"{amount(d.messages, 'message')} to each neighbour"
        return make_report(
            f"{self.task.name}: what privacy costs {amount(self.task.users, 'user')}",
            methods,
            outcomes,
            d.graphs,
            subtitle=f"{length}, protecting {unit}, against {adversary}; "
            f"{amount(len(d.seeds), 'seed')}",
            tuning=self._tuning(),
            repeat=Repeat(
                command=self.command,
                versions={**versions()},
                seconds=round(self.seconds, 1),
                options=self.identity["design"],
                files={"task": self.identity["task"]},
            ),
            notes=self._notes(methods, outcomes),
            base_rate=self.task.base_rate,
        )

    @property
    def seconds(self) -> float:
        """Seconds that the comparison took, over all its interruptions."""
        return self.seconds_before + time.monotonic() - self.began

    def _tuning(self) -> Tuning | None:
        d = self.design
        grid: dict[str, object] = {
            "learning rate": list(d.learning_rates),
            "clip": list(d.clips),
            "couple, times the default": list(d.couples),
        }
        for end, rates in d.beyond.items():
            grid[f"learning rate, if the best is the {end}"] = list(rates)
        if d.messages is not None:
            grid["steps"] = list(d.steps)
        # nothing was chosen
        if max(map(len, (d.learning_rates, d.clips, d.couples, d.steps))) == 1:
            return None
        return Tuning(criterion=d.criterion, grid=grid, warning=NOT_FREE)

    def _notes(self, methods: list[Method], outcomes: list[Outcome]) -> list[str]:
        count, notes = len(self.design.methods()), []
        if len(methods) < count:
            notes.append(f"Interrupted: {len(methods)} of {count} methods are finished.")
        for each in outcomes:
            if each.edge is not None:
                where = "" if each.epsilon is None else f" at epsilon {each.epsilon:g}"
                notes.append(
                    f"{each.method}{where} took the {each.edge} learning rate of the grid, "
                    f"{each.learning_rate:g}; a wider --learning-rate may serve it better."
                )
            if self.design.messages is not None:
                where = "" if each.epsilon is None else f" at epsilon {each.epsilon:g}"
                took = Run.load(self.folder / "runs" / _slug(each.method, each.epsilon), False)
                rounds = took.manifest["recipe"]["gossip"]["rounds"]
                notes.append(
                    f"{each.method}{where} took {took.plan.exposure.steps:,} steps of {rounds} "
                    f"gossip round{'s' if rounds > 1 else ''}: {self.design.messages:,} messages "
                    "to each neighbour at most."
                )
        if "public" in self.task.facts:
            notes.append(f"Taken as public knowledge: {self.task.facts['public']}.")
        return notes

    def _train(self, method: Method, engine: Engine | None) -> None:
        d, name = self.design, method.name
        progress.report(f"{name}: calibrating", 0.0, 1.0)
        planned = list(d.plans(method))
        with progress.share(0.0, 0.8):
            every = [plan for _, plans in planned for plan in plans]
            # all epsilons in one sweep, which can share tensors
            tried = self._sweep(every, d.learning_rates, _tuning_seeds(d.seeds), engine)
        outcomes: list[Outcome] = []
        rows: list[dict[str, Any]] = []
        for k, (epsilon, plans) in enumerate(planned):
            with progress.share(0.8 + 0.2 * k / len(planned), 0.8 + 0.2 * (k + 1) / len(planned)):
                best = self._best(tried, plans, engine)
                rate = best.learning_rate
                runs = self._sweep([best.plan], (rate,), d.seeds, engine, keep_models=True).runs
            # an end of the whole grid, with the rates beyond: a better one may lie outside
            edge = _grid_end(rate, (*d.learning_rates, *chain(*d.beyond.values())))
            outcomes.append(replace(summarise_runs(name, epsilon, runs), edge=edge))
            # one run of each method and epsilon, to look at
            runs[0].save(self.folder / "runs" / _slug(name, epsilon))
            rows += _rows(name, epsilon, runs)
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        _replace(self.folder / "metrics" / f"{_slug(name)}.jsonl", lines)
        # last: this file says that the method is finished
        values = [outcome.to_json() for outcome in outcomes]
        _replace(self._path(method), json.dumps(values, allow_nan=False))

    def _best(self, tried: Sweep, plans: list[NoisePlan], engine: Engine | None) -> Tuned:
        """The best candidate; if its rate is at an end of the grid, rates beyond it compete too."""
        d = self.design
        best = tried.best(d.criterion, plans)
        further = d.beyond.get(_grid_end(best.learning_rate, d.learning_rates) or "")
        if further is None:
            return best
        # only where needed: see BEYOND
        more = self._sweep(plans, further, _tuning_seeds(d.seeds), engine)
        both = Sweep(tried.settings + more.settings, tried.runs + more.runs)
        return both.best(d.criterion, plans)

    def _sweep(
        self,
        plans: list[NoisePlan],
        rates: Sequence[float],
        seeds: Sequence[int],
        engine: Engine | None,
        keep_models: bool = False,
    ) -> Sweep:
        settings: tuple[Setting, ...] = ()
        runs: tuple[Run, ...] = ()
        for steps, recipe in self.design.steps.items():
            some = [plan for plan in plans if plan.exposure.steps == steps]
            if not some:
                continue
            swept = sweep(
                self.task,
                some,
                recipe,
                learning_rates=rates,
                seeds=seeds,
                engine=engine,
                keep_models=keep_models,
            )
            settings, runs = settings + swept.settings, runs + swept.runs
        return Sweep(settings, runs)

    def _path(self, method: Method) -> Path:
        return self.folder / "outcomes" / f"{_slug(method.name)}.json"

    def _complete_methods(self) -> list[Method]:
        return [method for method in self.design.methods() if self._path(method).exists()]

    def _load(self, method: Method) -> list[Outcome]:
        path = self._path(method)
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            return [Outcome.from_json(value) for value in values]
        except (OSError, ValueError, TypeError, InputError) as problem:
            raise InputError(
                f"{str(path)!r} cannot be read ({problem}); delete it and resume with --resume"
            ) from None

    def _open(self, resume: bool) -> None:
        """Begins a comparison, or checks that the one in the folder is the same."""
        manifest, folder = self.folder / "manifest.json", repr(str(self.folder))
        if not manifest.exists():
            if resume:
                raise InputError(f"there is nothing to resume in {folder}; drop --resume")
            self._write_manifest()
            return
        # never overwritten silently: a comparison can take days
        if not resume:
            raise InputError(
                f"{folder} holds a comparison already; resume it by --resume, replace it by "
                "--overwrite, or name another folder by --output"
            )
        try:
            old = json.loads(manifest.read_text(encoding="utf-8"))
        except (OSError, ValueError) as problem:
            raise InputError(
                f"{str(manifest)!r} cannot be read ({problem}); name another folder by --output"
            ) from None
        old = old if isinstance(old, dict) else {}
        for what, now in self.identity.items():
            if old.get(what) != now:
                raise InputError(
                    f"the comparison in {folder} was of another {what} "
                    f"({_differences(old.get(what), now)}); resume with the options it was started "
                    "with, or name another folder by --output"
                )
        # time before the interruption counts too
        self.seconds_before = float(old.get("seconds", 0.0))

    def _write_manifest(self) -> None:
        finished = [method.name for method in self._complete_methods()]
        value = {
            "format": FORMAT,
            "complete": len(finished) == len(self.design.methods()),
            "finished": finished,
            **self.identity,
            "command": self.command,
            "versions": versions(),
            "seconds": round(self.seconds, 3),
        }
        _replace(self.folder / "manifest.json", json.dumps(value, indent=1) + "\n")


def _tuning_seeds(seeds: Sequence[int]) -> list[int]:
    """Seeds to choose settings with, none of them among those that are shown."""
    # beyond what anyone takes as a seed: the same seed would mean the same noise and batches
    return [seed + 1_000_000 for seed in seeds]


def _grid_end(rate: float, rates: Sequence[float]) -> GridEnd | None:
    """The end of the grid at which a rate is, if it is: beyond it there may be better ones."""
    # a single rate is the caller's own choice, and not an end of anything
    if len(rates) < 2 or min(rates) < rate < max(rates):
        return None
    return "smallest" if rate == min(rates) else "largest"


def _rows(name: str, epsilon: float | None, runs: Sequence[Run]) -> Iterator[dict[str, Any]]:
    """Every measurement of the runs; JSON has no NaN, so diverged ones are left out."""
    for run in runs:
        for k in range(len(run.history["step"])):
            values = {m: column[k] for m, column in run.history.items()}
            if all(math.isfinite(value) for value in values.values()):
                yield {"method": name, "epsilon": epsilon, "seed": run.manifest["seed"], **values}


def _differences(old: Any, new: dict[str, Any]) -> str:
    if not isinstance(old, dict):
        return "not readable"
    changed = {key: value for key, value in new.items() if old.get(key) != value}
    return ", ".join(f"{key}: {old.get(key)!r}, now {value!r}" for key, value in changed.items())


def _slug(name: str, epsilon: float | None = None) -> str:
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return slug if epsilon is None else f"{slug}-epsilon-{epsilon:g}"


def _replace(path: Path, text: str) -> None:
    with write_errors(path, after="; name another folder by --output"):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_text(path, text)
