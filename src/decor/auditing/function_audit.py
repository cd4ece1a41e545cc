"""Audit of code that is not ours: a function from a data set and a seed to what an adversary sees.

The audit calls the function many times on two neighbouring data sets, and attacks what it returns:
guessing from the messages which of the two they came from. The error rates prove lower bounds on
epsilon.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from decor import checks, progress
from decor.array_types import Array, Floats
from decor.choices import Relation
from decor.errors import InputError
from decor.privacy.loss import gaussian
from decor.text import amount, json_safe, rounded_down, rounded_up

from .mu_bound import ErrorCounts, clopper_pearson, count_errors, fit_linear, measure_mu

Messages = Callable[[Any, int], Any]
"""A data set and a seed to everything that an adversary sees: arrays, or nested lists of them."""
Score = Callable[[Array], float]
"""A message to a number that is larger where the first of the two data sets is more likely."""

_LEAST_CALLS, _DEFAULT_CALLS = 1_000, 50_000
_PILOT, _TRAINING, _CHOICE = 0.04, 0.12, 0.06
"""Shares of the calls that only choose what to look at, that train attacks, and that choose one."""
_OF_FEW = 4, 4, 8
"""The same of few calls: a quarter, a quarter and an eighth of them."""
_ENOUGH = 2_000
"""Calls that are enough for each of these."""
_FOR_MU = 0.8
"""Share of the error for the proof of mu; the rest is for that of epsilon."""
_KEPT = 64
"""Coordinates of messages that the fitted attack weighs."""
_BY_CHANCE = 3.0
"""Standard deviations by which a coordinate has to differ between the data sets to be kept."""
_CLEARLY = 1.1
"""How many times more another threshold than the middle one, or an attack with more weights, has to
prove in training: what is chosen among more is better by chance there.
"""
_LARGEST = 1e100
_BATCH = 256
_TAILS = (0.001, 0.005, 0.02, 0.1)
"""Shares of scores beyond a threshold. Few, because the best of many is so by chance."""


@dataclass(frozen=True)
class FunctionAttack:
    """The attack that did best in training, and what it proves on other calls.

    Attributes:
        kind: "fitted" weighs the coordinates that tell most, "matched" all of them without their
            correlations, "best coordinate" is one alone, and "own score" is the caller's.
        counts: Its errors.
        mu: The mu of Gaussian differential privacy that is proven.
        estimated_mu: The mu that the error rates suggest, without a confidence bound.
        epsilon: The epsilon, at the claim's delta, that is proven whatever the noise is.
    """

    kind: str
    counts: ErrorCounts
    mu: float
    estimated_mu: float
    epsilon: float


@dataclass(frozen=True)
class FunctionAudit:
    """What was claimed of a function, and what attacks on its messages prove.

    Attributes:
        claimed_epsilon: The claim, at `delta`.
        delta: As claimed.
        claimed_mu: The mu of a Gaussian mechanism with exactly this claim.
        attack: What was proven.
        gaussian: Whether the claim is read as one of Gaussian noise: then each proven mu counts.
        calls: How many messages were attacked.
        confidence: Probability with which a correct function passes.
        seconds: How long it took.
    """

    claimed_epsilon: float
    delta: float
    claimed_mu: float
    attack: FunctionAttack
    gaussian: bool
    calls: int
    confidence: float
    seconds: float

    @property
    def gaussian_epsilon(self) -> float:
        """The epsilon, at `delta`, of Gaussian noise with the proven mu."""
        return float(gaussian.epsilon(self.attack.mu, self.delta)) if self.attack.mu else 0.0

    @property
    def reached(self) -> float:
        """The share of the claimed mu that was measured; above 1 a Gaussian claim is false."""
        return self.attack.mu / self.claimed_mu

    @property
    def passed(self) -> bool:
        """Whether nothing that was proven contradicts the claim."""
        false = self.attack.epsilon > self.claimed_epsilon
        return not false and not (self.gaussian and self.attack.mu > self.claimed_mu)

    @property
    def failure(self) -> str:
        """Which claim is false, in a sentence; empty if none is."""
        if self.passed:
            return ""
        proven, what = self.attack.epsilon, "whatever its noise is"
        if proven <= self.claimed_epsilon:
            proven, what = self.gaussian_epsilon, "if its noise is Gaussian"
        return (
            f"the function's epsilon at delta {self.delta:g} is at least {rounded_down(proven)}, "
            f"{what}, and {rounded_up(self.claimed_epsilon)} was claimed"
        )

    def __str__(self) -> str:
        claim = f"epsilon {rounded_up(self.claimed_epsilon)} at delta {self.delta:g}"
        reached = f"{math.floor(1000 * self.reached) / 10:g} %"
        lines = [
            f"{'PASS' if self.passed else 'FAIL'}: {claim} was claimed.",
            f"Proven, whatever the noise is: epsilon >= {rounded_down(self.attack.epsilon)}.",
            f"Proven, if the noise is Gaussian: epsilon >= {rounded_down(self.gaussian_epsilon)} "
            f"(mu >= {rounded_down(self.attack.mu)}, {reached} of the claim's "
            f"{rounded_up(self.claimed_mu)}).",
            f"By {self.attack.kind} attacks on {amount(self.calls, 'call')}, with confidence "
            f"{self.confidence:g}.",
            "Not proven: that the claim is true. Other neighbouring data sets, other attacks and "
            "the last bits of messages may tell more.",
        ]
        if not self.gaussian:
            lines[2] += " This was not compared with the claim."
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """All of it as plain values; infinities become None."""
        answer = asdict(self) | {
            "passed": self.passed,
            "gaussian_epsilon": self.gaussian_epsilon,
            "reached": self.reached,
            "attack": asdict(self.attack) | {"counts": self.attack.counts._asdict()},
        }
        plain: dict[str, Any] = json_safe(answer)
        return plain


def audit_function(
    messages: Messages,
    *,
    epsilon: float,
    delta: float,
    datasets: Sequence[Any] | None = None,
    relation: Relation = "replace",
    calls: int = _DEFAULT_CALLS,
    score: Score | None = None,
    gaussian_noise: bool = True,
    confidence: float = 0.999,
    seed: int = 0,
) -> FunctionAudit:
    """Attacks any code that claims differential privacy, such as a training loop of another tool.

    Args:
        messages: A function of a data set and a seed that returns everything an adversary sees:
            an array, or a list or tuple of arrays, always of the same shape. All randomness must
            follow from the seed, which is different in every call.
        epsilon: The epsilon that is claimed.
        delta: The delta that is claimed.
        datasets: Two neighbouring data sets, in the sense of the claim; None takes
            `neighbouring_datasets(relation)`: (X, y) with one canary record.
        relation: In what the default data sets differ: "replace" or "add-remove".
        calls: Messages to look at; more prove more. A sixth of them chooses the attack.
        score: The caller's own attack: a message, as one vector, to a number that is larger where
            the first data set is more likely. Where the noise is known, the logarithm of the
            likelihood ratio is the optimal attack.
        gaussian_noise: Whether the claim is one of a Gaussian mechanism, so that a proven mu counts
            against it. False counts only what is proven whatever the noise is, which takes an
            epsilon that is far above the claim.
        confidence: Probability with which a correct function passes.
        seed: Of the calls.

    Returns:
        What was claimed and what was proven.

    Raises:
        InputError: If an argument is out of range, or the function fails or changes its shape.

    Guarantee: a function whose claim is true fails with a probability of at most 1 - confidence,
    if its noise is Gaussian or `gaussian_noise` is False.
    """
    began = time.monotonic()
    claimed_mu = _check(epsilon, delta, calls, confidence)
    pair = neighbouring_datasets(relation) if datasets is None else tuple(datasets)
    if len(pair) != 2:
        raise InputError(f"datasets must be two neighbouring data sets, not {len(pair)}")
    source = _Source(messages, pair, seed)
    pilot, training, choice = (
        max(min(calls // few, _ENOUGH), round(share * calls))
        for few, share in zip(_OF_FEW, (_PILOT, _TRAINING, _CHOICE), strict=True)
    )
    features = _Features.of(source, pilot)
    trials = _collect(source, features, pilot, training, calls, score)
    parts = np.searchsorted([training, training + choice], np.arange(calls - pilot), side="right")
    attack = _attack(trials, parts, score is not None, delta, 1 - confidence)
    seconds = round(time.monotonic() - began, 2)
    return FunctionAudit(
        epsilon, delta, claimed_mu, attack, gaussian_noise, calls, confidence, seconds
    )


def neighbouring_datasets(
    relation: Relation = "replace", records: int = 16, features: int = 4
) -> tuple[Any, Any]:
    """Two data sets (X, y) that differ in their first record, the canary.

    The canary is alone in having the first feature, so that its gradient shows in coordinates where
    no other record's does. Labels are 0 and 1.

    Args:
        relation: "replace": the canary has the other label in the second data set, so that its
            gradient points the other way. "add-remove": the second has a record of zeros instead.
        records: How many, with the canary.
        features: How many, with the canary's own.
    """
    checks.one_of("relation", relation, ("replace", "add-remove"))
    rng = np.random.default_rng(20)
    X = rng.normal(size=(records, features)) / math.sqrt(features)
    y = (rng.random(records) < 0.5).astype(np.float64)
    X[:, 0] = 0.0
    X[0], y[0] = 0.0, 1.0
    other = X.copy(), y.copy()
    X[0, 0] = 8.0
    if relation == "replace":
        other[0][0, 0], other[1][0] = 8.0, 0.0
    return (X, y), other


class _Source:
    """Calls the function, and checks what it returns."""

    def __init__(self, messages: Messages, pair: tuple[Any, ...], seed: int) -> None:
        self._messages, self._pair, self._seed = messages, pair, seed
        self._size: int | None = None

    def message(self, number: int) -> tuple[Floats, bool]:
        """The message of a call, and whether it is of the first data set."""
        # seeds in turn would leave the secret in the seed, for a function that shows it
        rng = np.random.default_rng([self._seed, number])
        first, seed = bool(rng.random() < 0.5), int(rng.integers(2**31))
        try:
            answer = self._messages(self._pair[0 if first else 1], seed)
            message = _flat(answer)
        except InputError:
            raise
        except Exception as problem:  # any error of the caller's code is the caller's to correct
            raise InputError(
                f"the audited function failed: {type(problem).__name__}: {problem}"
            ) from problem
        self._size = message.size if self._size is None else self._size
        if not message.size or message.size != self._size:
            raise InputError(
                "the audited function must return arrays of the same sizes in every call; it "
                f"returned {amount(message.size, 'number')} after {self._size:,}"
            )
        return message, first


def _flat(answer: Any) -> Floats:
    parts: list[Floats] = []
    _add_arrays(answer, parts)
    values = np.concatenate(parts) if parts else np.zeros(0)
    if not np.isfinite(values.sum()):
        # an adversary sees a NaN too; squares of these are still finite
        values = np.nan_to_num(values, nan=1e90)
    return np.clip(values, -_LARGEST, _LARGEST)


def _add_arrays(answer: Any, parts: list[Floats]) -> None:
    if isinstance(answer, list | tuple):
        for part in answer:
            _add_arrays(part, parts)
        return
    if hasattr(answer, "detach"):  # a torch tensor
        answer = answer.detach().cpu()
    parts.append(np.asarray(answer, dtype=np.float64).ravel())


class _Moments:
    """Sums over the messages of each data set, which may be too many to keep."""

    def __init__(self, start: Floats) -> None:
        # from one of the messages, so that no large common value hides what differs
        self._start = start
        self._sums, self._squares = np.zeros((2, start.size)), np.zeros((2, start.size))
        self._counts = np.zeros(2)

    def add(self, message: Floats, first: bool) -> None:
        self._sums[int(first)] += message - self._start
        self._squares[int(first)] += (message - self._start) ** 2
        self._counts[int(first)] += 1

    @property
    def means(self) -> Floats:
        """[data set, coordinate], of what is left of a message without the start."""
        return np.asarray(self._sums / self._counts[:, None])

    def rest(self, message: Floats, first: bool) -> Floats:
        """What is left of a message without the mean."""
        return np.asarray(message - self._start - self.means[int(first)])

    def shift(self) -> tuple[Floats, Floats]:
        """(what differs between the data sets, and the spread of each coordinate)."""
        means = self.means
        shift: Floats = means[1] - means[0]
        spread = np.maximum(self._squares / self._counts[:, None] - means**2, 0.0).mean(0)
        # a coordinate without noise tells everything, and has no spread to divide by
        scale = np.sqrt(spread + np.finfo(np.float64).tiny + (1e-9 * shift) ** 2)
        return shift, scale

    def weights(self) -> Floats:
        """Of all coordinates, as if their noise were independent."""
        shift, scale = self.shift()
        chance = (1 / self._counts).sum() * scale**2
        # a shift as small as chance makes it is none: most weights would only add noise
        shrunk = np.maximum(1 - chance / np.maximum(shift**2, np.finfo(np.float64).tiny), 0.0)
        return np.asarray(shrunk * shift / scale**2)


@dataclass(frozen=True)
class _Features:
    """What to look at in messages, chosen by how they differed between the data sets.

    Attributes:
        coordinates: Those that tell most, best first.
        scale: The spread of each of them.
        moments: Of all messages so far.
    """

    coordinates: Array
    scale: Floats
    moments: _Moments

    @staticmethod
    def of(source: _Source, pilot: int) -> _Features:
        half = pilot // 2
        moments = _Moments(source.message(0)[0])
        for k in range(half):
            _report_pilot(k, pilot)
            moments.add(*source.message(k))
        shift, scale = moments.shift()
        told = np.abs(shift) / scale
        told[shift == 0] = 0.0
        best = _clearest(told, half)
        # coordinates that tell nothing themselves may know the noise of those that do
        product = np.zeros(shift.size)
        for k in range(half, pilot):
            _report_pilot(k, pilot)
            message, first = source.message(k)
            rest = moments.rest(message, first) / scale
            product += rest[best[0]] * rest
        partners = _clearest(np.abs(product) / (pilot - half), pilot - half)
        best = np.concatenate([best, np.setdiff1d(partners, best)])
        return _Features(best, scale[best], moments)

    def see(self, message: Floats) -> Floats:
        """The chosen coordinates."""
        return np.asarray(message[self.coordinates] / self.scale)


@dataclass(frozen=True)
class _Trials:
    """What was seen of each call, and of which data set it was."""

    kept: Floats
    matched: Floats
    own: Floats
    present: Array


def _clearest(told: Floats, calls: int) -> Array:
    """The coordinates with the largest values that are not so by chance; one at least."""
    best = np.argsort(-told, kind="stable")[:_KEPT]
    clear = told[best] > _BY_CHANCE * 2 / math.sqrt(calls)
    return best[: max(1, int(clear.sum()))]


def _report_pilot(k: int, pilot: int) -> None:
    if k % _BATCH == 0:
        progress.report("audited calls, to see what they tell", k, pilot)


def _collect(
    source: _Source, features: _Features, first: int, training: int, last: int, score: Score | None
) -> _Trials:
    """Calls the function, numbered from `first` up to `last`; `training` of them train."""
    count = last - first
    kept, matched = np.empty((count, len(features.coordinates))), np.zeros(count)
    own, present = np.zeros(count), np.zeros(count, dtype=bool)
    weights = np.zeros(0)
    for k in range(count):
        if k % _BATCH == 0:
            progress.report("audited calls", first + k, last)
        message, present[k] = source.message(first + k)
        kept[k] = features.see(message)
        if k < training:
            features.moments.add(message, bool(present[k]))
        else:
            weights = features.moments.weights() if k == training else weights
            matched[k] = float(message @ weights)
        if score is not None:
            own[k] = float(score(message))
    return _Trials(kept, matched, own, present)


def _scores(trials: _Trials, training: Array, has_own: bool) -> dict[str, Floats]:
    """The scores of all attacks, larger where the first data set is more likely."""
    best = trials.kept[:, 0]
    ahead = best[training & trials.present].mean() >= best[training & ~trials.present].mean()
    scores = {"matched": trials.matched, "best coordinate": best if ahead else -best}
    with suppress(np.linalg.LinAlgError):  # no noise at all: one coordinate tells everything
        scores["fitted"] = fit_linear(trials.kept.T, trials.present, training)[0]
    # the simplest first
    order = ("own score", "best coordinate", "fitted", "matched")
    scores |= {"own score": trials.own} if has_own else {}
    return {kind: scores[kind] for kind in order if kind in scores}


def _attack(
    trials: _Trials, parts: Array, has_own: bool, delta: float, error: float
) -> FunctionAttack:
    """What the attack that does best in part 1 of the calls proves in part 2; part 0 trains."""
    for_mu, for_epsilon = _FOR_MU * error, (1 - _FOR_MU) * error
    training, choice, proof = (parts == k for k in range(3))
    # chosen on other calls than it is judged on, so that the choice costs no confidence
    chosen: dict[str, tuple[float, float, float]] = {}
    scores = _scores(trials, training, has_own)
    for kind, score in scores.items():
        counted = _count_all(score[choice], trials.present[choice])
        mus = [(measure_mu(counts, for_mu)[0], cut) for cut, counts in counted]
        mu, mu_cut = max(mus) if max(mus)[0] > _CLEARLY * mus[0][0] else mus[0]
        # the middle one, which comes first, where no threshold proves anything
        cut, _ = max(counted, key=lambda each: prove_epsilon(each[1], delta, for_epsilon))
        chosen[kind] = mu, mu_cut, cut
    most = max(mu for mu, *_ in chosen.values())
    kind = next(name for name, (mu, *_) in chosen.items() if _CLEARLY * mu >= most)
    _, mu_cut, epsilon_cut = chosen[kind]
    held, present = scores[kind][proof], trials.present[proof]
    counts = count_errors(held, present, mu_cut)
    mu, estimated = measure_mu(counts, for_mu)
    proven = prove_epsilon(count_errors(held, present, epsilon_cut), delta, for_epsilon)
    return FunctionAttack(kind, counts, mu, estimated, proven)


def _count_all(score: Floats, present: Array) -> list[tuple[float, ErrorCounts]]:
    """The errors with each of many thresholds."""
    tails = [*_TAILS, *(1 - share for share in _TAILS)]
    # half-way between the means: the best one for Gaussian noise, and for no noise
    middle = (score[present].mean() + score[~present].mean()) / 2
    cuts = [float(middle), *map(float, np.quantile(score, tails))]
    return [(cut, count_errors(score, present, cut)) for cut in cuts]


def prove_epsilon(counts: ErrorCounts, delta: float, error: float) -> float:
    """The epsilon that error rates prove at delta, for any mechanism.

    (epsilon, delta)-DP bounds what a test may reach in both directions: its hits by e^epsilon times
    its false alarms and delta, and the other way round. The bound exceeds epsilon with probability
    `error` at most.

    Args:
        counts: Errors of the test.
        delta: As claimed.
        error: Shared by the two rates.
    """
    misses = clopper_pearson(counts.misses, counts.present, error / 2)
    false_alarms = counts.max_false_alarm_rate(error)
    best = 0.0
    for one, other in ((misses, false_alarms), (false_alarms, misses)):
        if 1 - delta - one > 0:
            best = max(best, math.log((1 - delta - one) / other))
    return best


def _check(epsilon: float, delta: float, calls: int, confidence: float) -> float:
    """The mu of a Gaussian mechanism with exactly this claim."""
    checks.positive("epsilon", epsilon)
    if not 0 < delta < 1:
        raise InputError(f"delta must be between 0 and 1, such as 1e-5, not {delta!r}")
    checks.count("calls", calls, _LEAST_CALLS, 10**9)
    if not 0.5 <= confidence < 1:
        raise InputError(
            f"confidence must be from 0.5 to less than 1, such as 0.999, not {confidence!r}"
        )
    return gaussian.mu(epsilon, delta)
