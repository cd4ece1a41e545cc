"""rehearse: a federation's file in the simulator, before anything is spent.

Nothing of it is private: it takes the file, and a public sample or planted records. It opens no
key, no ledger and no user's data, and sends nothing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from decor import checks, progress
from decor.array_types import Array, Floats
from decor.errors import InputError
from decor.learning import shards
from decor.learning.build_model import convert_data
from decor.learning.gradients.choose import choose_gradients
from decor.learning.planted import plant
from decor.learning.task import Task
from decor.learning.tasks import TEST_PART
from decor.net import messages
from decor.net.receipts import RECEIPT_BYTES
from decor.results.run import Run
from decor.training.train import train
from decor.training.vectorised import Vectorised

from .federation import Federation
from .local_gradient import LocalGradient
from .member_data import read_test_data
from .start_model import StartModel
from .terms import Terms

Source = Literal["sample", "planted"]
Metric = Literal["accuracy", "test_loss"]
Pair = tuple[Any, Any]

PLANTED = 100
"""Planted records of a user, where the file does not say how many it has."""
_RUNS, _PLANTED_RUNS = 3, 10
_TIMED = 5
"""Messages that are timed, after one that loads and compiles."""


@dataclass(frozen=True)
class Link:
    """The network that a rehearsal assumes between users.

    Attributes:
        megabits: What each user can send in a second.
        latency: Seconds until a message arrives.
    """

    megabits: float = 10.0
    latency: float = 0.05

    def __post_init__(self) -> None:
        checks.positive("megabits", self.megabits)
        if not 0 <= self.latency < 1e6:
            raise InputError(f"latency must be a number of seconds, not {self.latency!r}")


@dataclass(frozen=True)
class Traffic:
    """Bytes that users send, as framed: without what TLS adds, handshakes and signs of life.

    Attributes:
        step: To each neighbour in one step.
        final: To each neighbour in the rounds after the last step.
        user: In the whole run, of the user with the most neighbours.
        total: In the whole run, of all users together.
    """

    step: int
    final: int
    user: int
    total: int


@dataclass(frozen=True)
class Duration:
    """Expected seconds, at least: without the ledger's disk, TLS and waiting for slow users.

    Attributes:
        gradient: To compute one message, measured on this machine.
        records: Of the user whose messages were timed.
        network: To exchange the models of one step, over the assumed link.
        total: Of the whole run.
    """

    gradient: float
    records: int
    network: float
    total: float


@dataclass(frozen=True)
class NoiseBesideSignal:
    """The average of all models after the run: what moves it, as lengths of the whole model.

    Attributes:
        signal: The farthest that gradients can move it: the clip bounds each of them. Of Poisson
            batches in expectation, with the planned batch size.
        noise: The length of the noise in it, root mean square.
        parameter: The noise in one parameter, or any other direction: standard deviation.
        left_after_crash: Noise in it over the planned noise, after the user with the most
            neighbours was lost in the step in which that costs most.
        left_without_user: The same if that user is lost in the first step and never returns.
    """

    signal: float
    noise: float
    parameter: float
    left_after_crash: float
    left_without_user: float

    @property
    def ratio(self) -> float:
        """Noise in any one direction over the largest possible signal, all in that direction."""
        return self.parameter / self.signal


@dataclass(frozen=True)
class Score:
    """How good the models become in the simulator.

    Attributes:
        source: On which records: a public sample, or planted ones.
        metric: "accuracy", or "test_loss" where the label is a number.
        values: Of the average model, for each seed.
        worst_user: Of the worst user's model over all seeds.
        base_rate: The accuracy of always guessing the most frequent class of the test records; None
            for a loss.
        most_frequent: That class.
        trained, tested: Numbers of different records.
    """

    source: Source
    metric: Metric
    values: tuple[float, ...]
    worst_user: float
    base_rate: float | None
    most_frequent: str | None
    trained: int
    tested: int

    @property
    def mean(self) -> float:
        return float(np.mean(self.values))

    @property
    def figure(self) -> float:
        """The mean on a sample. On planted records, a ceiling: the best run, or guessing."""
        if self.is_forecast:
            return self.mean
        return min(self.values) if self.base_rate is None else max(*self.values, self.base_rate)

    @property
    def is_forecast(self) -> bool:
        """Whether it says anything of real records; planted ones give the best case alone."""
        return self.source == "sample"

    @property
    def is_useless(self) -> bool:
        """Whether the model is no better than guessing the most frequent class."""
        # written so that the NaN of a diverged model counts
        return self.base_rate is not None and not self.mean > self.base_rate


@dataclass(frozen=True)
class Rehearsal:
    """What to expect of a federation."""

    federation: Federation
    link: Link
    traffic: Traffic
    duration: Duration
    noise: NoiseBesideSignal
    score: Score


def rehearse(
    federation: Federation,
    public: str | Path | None = None,
    label: str | None = None,
    *,
    start: StartModel | None = None,
    link: Link | None = None,
    seeds: int | None = None,
) -> Rehearsal:
    """Runs a federation in the simulator.

    Args:
        federation: The file, read with `run_code` if it names a model's code.
        public: A CSV or .npz file with records that anyone may know; None plants records. Four
            fifths are split over the users, the others test the models.
        label: The label's column, where the file has no columns.
        start: The model that training begins with, where the file has its hash.
        link: The network between users.
        seeds: How often training is simulated, each time with other noise and another split; None:
            3 times on a sample, and 10 times on planted records, of which the best run counts.

    Returns:
        Bytes, time, noise and accuracy to expect.

    Raises:
        InputError: If the sample does not fit the file, the model's code may not be run, or there
            is no sample and the model may be good already.

    Guarantee: reads `public` and the model's code, and nothing of any user; nothing is spent.
    """
    if seeds is None:
        # planted records give a ceiling, and the best of few runs would be too low a one
        seeds = _RUNS if public is not None else _PLANTED_RUNS
    seeds, link = checks.count("seeds", seeds), Link() if link is None else link
    module = federation.load_module(start)
    data = _Planted(federation) if public is None else _Sample(federation, public, label)
    terms, traffic = Terms.of(federation), traffic_of(federation)
    tasks = _tasks(federation, module, data, seeds)
    # one after the other: the records of all seeds need not fit in memory together
    task = next(tasks)
    duration = _duration(terms, task, traffic, link)
    scores = [_score_once(federation, task, 0)]
    for seed, task in enumerate(tasks, start=1):
        progress.report(f"rehearsing {federation.name}", seed, seeds)
        scores.append(_score_once(federation, task, seed))
    score = _combine(federation, data, task, scores)
    return Rehearsal(federation, link, traffic, duration, _noise(terms), score)


def traffic_of(federation: Federation) -> Traffic:
    """The bytes that users send if no message is lost; loads torch for a model given as code."""
    header, training = messages.HEADER.size, federation.training
    model = header + messages.Model.fixed.size + federation.model_bytes
    # a step's message comes with its receipt, and with a tag of the edge's noise
    receipt, tag = header + RECEIPT_BYTES, header + messages.limits(0)[messages.NoiseTag.kind]
    step = federation.gossip.rounds * model + receipt + tag
    final = training.final_gossip_rounds * model
    edge, degrees = training.steps * step + final, federation.topology.degrees
    return Traffic(step, final, edge * int(degrees.max()), edge * int(degrees.sum()))


class _Planted:
    """Planted records: as many as the file says, and the same classes at all users."""

    source: Source = "planted"

    def __init__(self, federation: Federation) -> None:
        model = federation.model
        # a model that is good already can be better than what planted records teach it
        if model.start_sha256 is not None or model.code is not None:
            what = "own code" if model.start_sha256 is None else "a trained model"
            raise InputError(
                f"{federation.name} begins with {what}, which may know more than planted records "
                "teach, so they give no ceiling; give a public sample with --public"
            )
        self._federation, self._definition = federation, federation.definition
        kinds = len(self._definition.classes or "ab")
        self.trained = self.tested = max(PLANTED, kinds, _least_records(federation))

    def split(self, seed: int) -> tuple[list[Pair], Pair]:
        counts = [n or self.trained for n in _record_counts(self._federation)]
        own = [plant(self._definition, count, seed) for count in counts]
        return own, plant(self._definition, self.tested, seed)


class _Sample:
    """A public sample, split over users."""

    source: Source = "sample"

    def __init__(self, federation: Federation, path: str | Path, label: str | None) -> None:
        # a function would be code, which has not been agreed to
        if not Path(path).is_file():
            raise InputError(f"the public sample {str(path)!r} is no file; give a CSV file")
        X, y = read_test_data(federation, path, label)
        self._federation, self._X, self._y = federation, np.asarray(X), np.asarray(y)
        is_number = federation.definition.classes is None or self._y.dtype.kind == "f"
        self._strata: Array = np.zeros(len(self._y)) if is_number else self._y
        kept, held = shards.hold_out(self._strata, TEST_PART)
        self.trained, self.tested = len(kept), len(held)
        users = len(federation.members)
        if self.trained < users or not self.tested:
            raise InputError(
                f"the public sample {str(path)!r} has {len(self._y)} records with a known label, "
                f"too few to train {users} users and test them; give more, or leave it out"
            )

    def split(self, seed: int) -> tuple[list[Pair], Pair]:
        kept, held = shards.hold_out(self._strata, TEST_PART, seed)
        parts = shards.iid(len(kept), len(self._federation.members), seed)
        rng = np.random.default_rng([seed, 2])
        own = []
        for part, count in zip(parts, _record_counts(self._federation), strict=True):
            # the planned batches need the planned number of records: drawn with replacement
            if count is None and len(part) < (least := _least_records(self._federation)):
                count = least
            rows = kept[part] if count is None else rng.choice(kept, count)
            own.append((self._X[rows], self._y[rows]))
        return own, (self._X[held], self._y[held])


def _record_counts(federation: Federation) -> list[int | None]:
    """How many records each user must have for the planned batches; None: any number."""
    exposure = federation.exposure
    if exposure.rate is not None:
        # numbers of records stay private with a rate: the one that the batch size stands for
        mean = round((exposure.batch_size or 1) / exposure.rate)
        return [max(1, mean) for _ in federation.members]
    return [member.records for member in federation.members]


def _least_records(federation: Federation) -> int:
    """How many records a user needs for a batch of the file's size."""
    return federation.training.batch_size or 1


def _tasks(
    federation: Federation, module: Pair, data: _Planted | _Sample, seeds: int
) -> Iterator[Task]:
    """What the users train, for each seed."""
    names = [member.name for member in federation.members]
    for seed in range(seeds):
        own, test = data.split(seed)
        fitting = [_convert(federation, part) for part in (*own, test)]
        named = dict(zip(names, fitting[:-1], strict=True))
        yield Task(*module, named, fitting[-1], federation.name, test_public=True)


def _convert(federation: Federation, part: Pair) -> Pair:
    return convert_data(federation.model, federation.dtype, "the sample", part)


@dataclass(frozen=True)
class _Once:
    """Metrics of one seed: of the average model, and of each user's."""

    average: float
    users: Floats


def _score_once(federation: Federation, task: Task, seed: int) -> _Once:
    # a known seed: nothing here needs privacy, and a figure can be found again
    engine = Vectorised(seed=seed, dtype=federation.dtype)
    run = train(
        task,
        federation.plan,
        federation.recipe,
        learning_rate=federation.learning_rate,
        engine=engine,
    )
    return _Once(run.metrics.get(_metric(task), np.nan), _of_users(task, federation, run))


def _metric(task: Task) -> Metric:
    return "test_loss" if task.base_rate is None else "accuracy"


def _of_users(task: Task, federation: Federation, run: Run) -> Floats:
    """The metric of each user's own model."""
    gradients = choose_gradients(task, federation.exposure.unit, None, torch.float64)
    named = {name: v.double() for name, v in run.models.items() if name not in gradients.tied}
    blocks = gradients.blocks(named)
    values = [
        gradients.evaluate([block[k : k + 1] for block in blocks], loss=False)[_metric(task)]
        for k in range(task.users)
    ]
    return np.array([float(value) for value in values])


def _combine(
    federation: Federation, data: _Planted | _Sample, task: Task, scores: list[_Once]
) -> Score:
    values = tuple(each.average for each in scores)
    of_users = np.concatenate([each.users for each in scores])
    base, test = task.base_rate, task.test
    assert test is not None  # every rehearsal tests
    frequent = None
    if base is not None:
        names, most = federation.definition.classes, int(torch.bincount(test[1].long()).argmax())
        frequent = str(most) if names is None else names[most]
    worst = float(of_users.max() if base is None else of_users.min())
    sizes = data.trained, data.tested
    return Score(data.source, _metric(task), values, worst, base, frequent, *sizes)


def _duration(terms: Terms, task: Task, traffic: Traffic, link: Link) -> Duration:
    gossip, degrees = terms.recipe.gossip, terms.plan.topology.degrees
    rate, most = 1e6 / 8 * link.megabits, int(degrees.max())
    # of the user with the most neighbours: in each round the others wait for it
    network = gossip.rounds * link.latency + most * traffic.step / rate
    rounds = terms.recipe.final_gossip.rounds
    final = rounds * link.latency + most * traffic.final / rate
    # the same user: each of its edges costs a stream of noise
    gradient, records = _time_of_message(terms, task, int(degrees.argmax()))
    total = terms.plan.exposure.steps * (gradient + network) + final
    return Duration(gradient, records, network, total)


def _time_of_message(terms: Terms, task: Task, number: int) -> tuple[float, int]:
    """Seconds for one message of a user as a node makes it, and the user's number of records."""
    shard = task.shards[number]
    own = Task(task.model, task.loss, [shard], name=task.name)
    local = LocalGradient(
        own, terms.plan.exposure, terms.recipe, terms.dtype, os.urandom, len(terms.members)
    )
    model, rate = local.start(), float(terms.rates[0])
    multiples, beside = terms.multiples(number).values(), terms.own_multiple(number)

    def make() -> None:
        gradient, factor = local.gradient(model, rate)
        edges = [(os.urandom(32), multiple) for multiple in multiples]
        terms.grid.add_noise(gradient, os.urandom(32), edges, factor, True, beside)

    make()
    # the median: some other program may get in the way of one of them
    return float(np.median([_seconds(make) for _ in range(_TIMED)])), len(shard[1])


def _seconds(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _noise(terms: Terms) -> NoiseBesideSignal:
    plan, moves = terms.plan, _moves(terms)
    users, clip = plan.topology.users, plan.exposure.clip
    # of the average: edge noise cancels, each user's own does not
    own = float(np.linalg.norm(plan.sigma_cdp_per_user)) / users
    parameter = own * float(np.linalg.norm(moves))
    most, worst = int(plan.topology.degrees.argmax()), int(np.abs(terms.rates).argmax())
    neighbours = terms.multiples(most)
    once = terms.noise_left(most, dict.fromkeys(neighbours, [worst]))
    always = terms.noise_left(most, dict.fromkeys(neighbours, range(plan.exposure.steps)))
    signal = clip * float(np.abs(moves).sum())
    return NoiseBesideSignal(signal, parameter * terms.parameters**0.5, parameter, once, always)


def _moves(terms: Terms) -> Floats:
    """How far the final model moves for a unit of each step's gradient."""
    rates, recipe = terms.rates, terms.recipe
    moves, kept, later = np.zeros(len(rates)), 1.0, 0.0
    # backwards: momentum repeats a gradient in later steps, weight decay shrinks what is there
    for step in reversed(range(len(rates))):
        later = rates[step] * kept + recipe.momentum * later
        moves[step] = later
        kept *= 1 - rates[step] * recipe.weight_decay
    return moves
