"""compare: DECOR on several graphs beside central DP, local DP and no privacy, at several epsilons,
tuned alike.

A comparison is a folder. Every method is written when it is finished, in one move, so that an
interrupted comparison is whole up to there and goes on where it stopped.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from decor import progress
from decor.errors import InputError
from decor.graph.topology import Topology
from decor.learning.recipe import Recipe
from decor.learning.task import Task
from decor.privacy import baselines
from decor.privacy.adversary import Adversary
from decor.privacy.budget import Budget, Exposure
from decor.privacy.calibrate import calibrate
from decor.privacy.plan import NoisePlan
from decor.results import outcomes
from decor.results.files import replace_text
from decor.results.run import Run

from .engine import Engine
from .manifest import fingerprint, versions
from .sweep import NOT_FREE, Sweep, Tuned, sweep

FORMAT = "decor-comparison-1"
RATES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
BEYOND: dict[str, tuple[float, ...]] = {
    "smallest": (0.0001, 0.0002, 0.0005),
    "largest": (10.0, 20.0, 50.0),
}
"""Tried too by whoever is best at that end of RATES: for everybody they would cost nearly half as
much again.
"""

_ALWAYS = (
    "momentum",
    "weight_decay",
    "gossip_rounds",
    "accelerate",
    "final_gossip_rounds",
    "batch_size",
)
"""Fields of the recipe that stand in the manifest of every comparison."""


@dataclass(frozen=True)
class Design:
    """What is compared.

    Every method takes the best of `learning_rates` x `clips`, at every epsilon, by the training
    loss; from the usual rates it also goes beyond their ends, where the best is there.

    DECOR also chooses its couple, as the paper does: the default's ratio of noises times each of
    `couples`. What is chosen with some seeds is shown with others (`seeds`), or luck would look
    like merit.
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

    def __post_init__(self) -> None:
        if (
            len({f"{epsilon:g}" for epsilon in self.epsilons}) < len(self.epsilons)
            or not self.epsilons
        ):
            raise InputError(
                f"the epsilons {self.epsilons!r} are too few, or too alike to be "
                "told apart; name each once"
            )
        if not self.any_delta:  # before anything is trained
            for _, topology in self.graphs:
                Budget(self.epsilons[0], self.delta).check_delta(self.exposure, topology)

    def described(self) -> dict[str, Any]:
        """As plain values: two designs are the same if these are."""
        plain = {
            k: v
            for k, v in asdict(self).items()
            if k not in ("graphs", "exposure", "adversary", "recipe")
        }
        plain["graphs"] = [[name, topology.digest] for name, topology in self.graphs]
        records = self.exposure.records
        plain["exposure"] = asdict(self.exposure) | {
            "records": dict(records) if isinstance(records, Mapping) else records
        }
        if not self.any_delta:  # comparisons of before this field go on
            del plain["any_delta"]
        plain["adversary"] = str(self.adversary)
        # a field that has its default is left out, so that comparisons made before there was the
        # field go on
        plain |= {
            k: v
            for k, v in asdict(self.recipe).items()
            if k in _ALWAYS or v != getattr(Recipe(), k)
        }
        plain["schedule"] = repr(self.recipe.schedule)
        return json.loads(json.dumps(plain))  # type: ignore[no-any-return]

    @property
    def beyond(self) -> dict[str, tuple[float, ...]]:
        """Rates to try where the best is at an end; none where somebody has chosen the rates."""
        return BEYOND if self.learning_rates == RATES else {}

    def methods(self) -> list[tuple[str, str | None]]:
        """(kind, graph) of every method, in the order of the table."""
        first = self.graphs[0][0]
        return [
            ("none", first),
            ("central", None),
            *(("decor", name) for name, _ in self.graphs),
            ("local", first),
        ]

    def plans(self, kind: str, graph: str | None) -> Iterator[tuple[float | None, list[NoisePlan]]]:
        """Every epsilon with the plans to choose from."""
        topology = dict(self.graphs)[graph or self.graphs[0][0]]
        exposures = [replace(self.exposure, clip=clip) for clip in self.clips]
        if kind == "none":
            # so large a clip never clips
            yield (
                None,
                [NoisePlan(topology, replace(self.exposure, clip=1e30), self.adversary, 0.0, 0.0)],
            )
            return
        for epsilon in self.epsilons:
            budget, any_delta = Budget(epsilon, self.delta), self.any_delta
            match kind:
                case "central":
                    yield (
                        epsilon,
                        [
                            baselines.central(topology, each, budget, any_delta=any_delta)
                            for each in exposures
                        ],
                    )
                case "local":
                    yield (
                        epsilon,
                        [
                            baselines.local(topology, each, budget, any_delta=any_delta)
                            for each in exposures
                        ],
                    )
                case _:
                    yield (
                        epsilon,
                        [
                            plan
                            for exposure in exposures
                            for plan in self._couples(topology, exposure, budget)
                        ],
                    )

    def _couples(
        self, topology: Topology, exposure: Exposure, budget: Budget
    ) -> Iterator[NoisePlan]:
        made = partial(
            calibrate, topology, exposure, self.adversary, budget, any_delta=self.any_delta
        )
        plan = made(gossip_rounds=self.recipe.gossip_rounds, accelerate=self.recipe.accelerate)
        ratio = (plan.sigma_cor / plan.sigma_cdp) ** 2 if isinstance(plan.sigma_cor, float) else 0.0
        for factor in self.couples if ratio else (1.0,):
            yield plan if factor == 1 else made(ratio=factor * ratio)


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
        self.began = time.monotonic()
        self.before = 0.0
        self.identity = {
            "task": {"name": task.name, "fingerprint": fingerprint(task)},
            "design": design.described(),
        }
        self._open(resume)

    def run(self, engine: Engine | None = None) -> dict[str, Any]:
        """Trains every method that is not there yet, and gives the report data of all."""
        methods = self.design.methods()
        try:
            for k, (kind, graph) in enumerate(methods):
                with progress.share(k / len(methods), (k + 1) / len(methods)):
                    if not self._path(kind, graph).exists():
                        self._train(kind, graph, engine)
        finally:  # also when interrupted: the manifest says what is finished
            self._write_manifest()
        return self.data()

    def data(self) -> dict[str, Any]:
        """Report data of the methods finished so far."""
        found = {
            (kind, graph): self._load(kind, graph)
            for kind, graph in self.design.methods()
            if self._path(kind, graph).exists()
        }
        if not found:
            raise InputError(
                f"nothing is finished in {str(self.folder)!r} yet; go on with --resume"
            )
        d, e = self.design, self.design.exposure
        unit = "everything a user holds" if e.unit == "user" else "one record"
        finished = len(found) == len(d.methods())
        notes = (
            []
            if finished
            else [f"Interrupted: {len(found)} of {len(d.methods())} methods are finished."]
        )
        notes += [
            _edge_note(entry)
            for entries in found.values()
            for entry in entries
            if entry.get("edge")
        ]
        if "public" in self.task.facts:
            notes.append(f"Taken as public knowledge: {self.task.facts['public']}.")
        grid = {
            "learning rate": list(d.learning_rates),
            "clip": list(d.clips),
            "couple, times the default": list(d.couples),
        }
        grid |= {
            f"learning rate, if the best is the {end}": list(rates)
            for end, rates in d.beyond.items()
        }
        tuned = max(len(values) for values in grid.values()) > 1
        tuning = (
            {"tuned": True, "criterion": d.criterion, "grid": grid, "warning": NOT_FREE}
            if tuned
            else None
        )
        return outcomes.report(
            f"{self.task.name}: what privacy costs {self.task.users} users",
            [outcomes.method(kind, graph) for kind, graph in found],
            [entry for entries in found.values() for entry in entries],
            d.graphs,
            subtitle=f"{e.steps:,} steps, protecting {unit}, against {d.adversary.sentence}; "
            f"{len(d.seeds)} seeds",
            tuning=tuning,
            repeat={
                "command": self.command,
                "versions": versions(),
                "seconds": round(self.seconds, 1),
                "options": self.identity["design"],
                "files": {"task": self.identity["task"]},
            },
            notes=notes,
        )

    @property
    def seconds(self) -> float:
        return self.before + time.monotonic() - self.began

    def _train(self, kind: str, graph: str | None, engine: Engine | None) -> None:
        d = self.design
        name = str(outcomes.method(kind, graph)["name"])
        progress.report(f"{name}: calibrating", 0.0, 1.0)
        planned = list(d.plans(kind, graph))
        with progress.share(0.0, 0.8):
            tried = self._sweep(
                [plan for _, plans in planned for plan in plans],
                d.learning_rates,
                _other(d.seeds),
                engine,
            )
        entries: list[dict[str, Any]] = []
        rows: list[dict[str, Any]] = []
        for k, (epsilon, plans) in enumerate(planned):
            with progress.share(0.8 + 0.2 * k / len(planned), 0.8 + 0.2 * (k + 1) / len(planned)):
                best = self._best(tried, plans, engine)
                runs = self._sweep(
                    [best.plan], (best.learning_rate,), d.seeds, engine, keep_models=True
                ).runs
            edge = _edge(best.learning_rate, (*d.learning_rates, *chain(*d.beyond.values())))
            entries.append(outcomes.outcome(name, epsilon, runs) | {"edge": edge})
            runs[0].save(self.folder / "runs" / _slug(name, epsilon))
            rows += _rows(name, epsilon, runs)
        _replace(
            self.folder / "metrics" / f"{_slug(name, None)}.jsonl",
            "".join(json.dumps(row) + "\n" for row in rows),
        )
        _replace(self._path(kind, graph), json.dumps(entries, allow_nan=False))

    def _best(self, tried: Sweep, plans: list[NoisePlan], engine: Engine | None) -> Tuned:
        """The best candidate; where it takes the smallest or the largest rate, of those beyond as
        well.
        """
        d = self.design
        best = tried.best(d.criterion, plans)
        further = d.beyond.get(_edge(best.learning_rate, d.learning_rates) or "")
        if further is None:
            return best
        more = self._sweep(plans, further, _other(d.seeds), engine)
        return Sweep(tried.settings + more.settings, tried.runs + more.runs).best(
            d.criterion, plans
        )

    def _sweep(
        self,
        plans: list[NoisePlan],
        rates: Sequence[float],
        seeds: Sequence[int],
        engine: Engine | None,
        keep_models: bool = False,
    ) -> Sweep:
        recipe = self.design.recipe
        return sweep(
            self.task,
            plans,
            recipe,
            learning_rates=rates,
            seeds=seeds,
            engine=engine,
            keep_models=keep_models,
        )

    def _path(self, kind: str, graph: str | None) -> Path:
        return (
            self.folder
            / "outcomes"
            / f"{_slug(str(outcomes.method(kind, graph)['name']), None)}.json"
        )

    def _load(self, kind: str, graph: str | None) -> list[dict[str, Any]]:
        path = self._path(kind, graph)
        try:
            entries = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as problem:
            raise InputError(
                f"{str(path)!r} cannot be read ({problem}); delete it and go on with --resume"
            ) from None
        assert isinstance(entries, list)
        return entries

    def _open(self, resume: bool) -> None:
        manifest = self.folder / "manifest.json"
        if not manifest.exists():
            if resume:
                raise InputError(
                    f"there is nothing to resume in {str(self.folder)!r}; drop --resume"
                )
            self._write_manifest()
            return
        if not resume:
            raise InputError(
                f"{str(self.folder)!r} holds a comparison already; go on with it by --resume, "
                "replace it by --overwrite, "
                "or name another folder by --output"
            )
        try:
            old = json.loads(manifest.read_text(encoding="utf-8"))
        except (OSError, ValueError) as problem:
            raise InputError(
                f"{str(manifest)!r} cannot be read ({problem}); name another folder by --output"
            ) from None
        for what in ("task", "design"):
            if not isinstance(old, dict) or old.get(what) != self.identity[what]:
                changed = _changed(
                    old.get(what) if isinstance(old, dict) else None, self.identity[what]
                )
                raise InputError(
                    f"the comparison in {str(self.folder)!r} was of another {what} ({changed}); "
                    "resume with the options it was started with, or name another folder by "
                    "--output"
                )
        self.before = float(old.get("seconds", 0.0))

    def _write_manifest(self) -> None:
        finished = [
            str(outcomes.method(k, g)["name"])
            for k, g in self.design.methods()
            if self._path(k, g).exists()
        ]
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


def _other(seeds: Sequence[int]) -> list[int]:
    """Seeds to choose settings with, none of them among those that are shown."""
    return [seed + 1_000_000 for seed in seeds]


def _edge(rate: float, rates: Sequence[float]) -> str | None:
    """Where on its grid a learning rate was chosen, if that was an end: beyond it there may be
    better ones.
    """
    if len(rates) < 2 or min(rates) < rate < max(rates):
        return None
    return "smallest" if rate == min(rates) else "largest"


def _edge_note(entry: dict[str, Any]) -> str:
    where = "" if entry["epsilon"] is None else f" at epsilon {entry['epsilon']:g}"
    return (
        f"{entry['method']}{where} took the {entry['edge']} learning rate of the grid, "
        f"{entry['learning_rate']:g}; "
        "a wider --learning-rate may serve it better."
    )


def _rows(name: str, epsilon: float | None, runs: Sequence[Run]) -> Iterator[dict[str, Any]]:
    """Every measurement of the runs, one a line."""
    for run in runs:
        for k in range(len(run.history["step"])):
            values = {m: column[k] for m, column in run.history.items()}
            if all(value == value and abs(value) != float("inf") for value in values.values()):
                yield {"method": name, "epsilon": epsilon, "seed": run.manifest["seed"], **values}


def _changed(old: Any, new: dict[str, Any]) -> str:
    if not isinstance(old, dict):
        return "not readable"
    return ", ".join(
        f"{key}: {old.get(key)!r}, now {value!r}"
        for key, value in new.items()
        if old.get(key) != value
    )


def _slug(name: str, epsilon: float | None) -> str:
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return slug if epsilon is None else f"{slug}-epsilon-{epsilon:g}"


def _replace(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_text(path, text)
    except OSError as problem:
        raise InputError(
            f"{str(path)!r} cannot be written: {problem.strerror}; name another folder by --output"
        ) from None
