"""The subsampled accountant is never below integrals, closed forms and dp-accounting."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import cache
from typing import Any

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.special import ndtr

from decor.errors import BudgetError, CannotBound
from decor.privacy.loss import subsampled
from decor.privacy.loss.subsampled import SubsampledStep, epsilon

CASES = [("poisson", "add-remove"), ("poisson", "replace"), ("fixed", "replace")]
RATE = 64 / 3750


def value(
    z: float, rate: float, case: tuple[str, str], steps: int, delta: float, fine: bool = True
) -> float:
    return epsilon([SubsampledStep(z, rate, *case, steps)], delta, fine=fine)[0]


def pairs(case: tuple[str, str], mu: Any) -> list[tuple[Any, Any]]:
    """(up, down) of both directions: P = (1-q) N(0) + q N(up), Q = (1-q) N(0) + q N(-down)."""
    shift = 2 * mu if case[0] == "fixed" else mu
    return [(mu, mu)] if case == ("poisson", "replace") else [(shift, 0), (0, shift)]


# --- one step, in 30 digits


def precise_divergence(eps: Any, rate: Any, up: Any, down: Any) -> Any:
    """H of (P, Q) by bisection for log P/Q = eps: shares no formula with the code under test."""

    def density(x: Any, mean: Any) -> Any:
        return (1 - rate) * mp.npdf(x) + rate * mp.npdf(x, mean)

    def tail(x: Any, mean: Any) -> Any:
        return (1 - rate) * mp.erfc(x / mp.sqrt(2)) / 2 + rate * mp.erfc(
            (x - mean) / mp.sqrt(2)
        ) / 2

    low, high = mp.mpf(-60), mp.mpf(60)
    for _ in range(80):
        middle = (low + high) / 2
        below = density(middle, up) < mp.exp(eps) * density(middle, -down)
        low, high = (middle, high) if below else (low, middle)
    return max(tail(low, up) - mp.exp(eps) * tail(low, -down), 0)


@cache
def precise_epsilon(z: float, rate: float, case: tuple[str, str], delta: float) -> float:
    with mp.workdps(30):
        worst = 0.0
        for up, down in pairs(case, 1 / mp.mpf(z)):
            if precise_divergence(mp.mpf(worst), mp.mpf(rate), up, down) <= delta:
                continue
            low, high = mp.mpf(worst), mp.mpf(worst) + 1
            while precise_divergence(high, mp.mpf(rate), up, down) > delta:
                low, high = high, 2 * high
            for _ in range(35):
                middle = (low + high) / 2
                above = precise_divergence(middle, mp.mpf(rate), up, down) > delta
                low, high = (middle, high) if above else (low, middle)
            worst = float(low)
        return worst


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    ("z", "rate", "delta"),
    [
        (0.5, 0.3, 1e-5),
        (1.0, 0.01, 1e-6),
        (3.0, 0.9, 1e-3),
        (0.3, 0.02, 1e-9),
        (20.0, 0.5, 1e-20),
        (0.1, 0.999, 1e-30),
    ],
)
def test_one_step_is_above_the_integral_and_close(
    case: tuple[str, str], z: float, rate: float, delta: float
) -> None:
    truth = precise_epsilon(z, rate, case, delta)
    assert truth <= value(z, rate, case, 1, delta) <= 1.001 * truth + 1e-6
    assert truth <= value(z, rate, case, 1, delta, fine=False) <= 1.05 * truth + 1e-3


# --- a few steps, by integrating one step after the other


def divergence(eps: np.ndarray, rate: float, up: float, down: float) -> np.ndarray:
    x = np.linspace(-12.0 - down, 12.0 + up, 20001)
    loss = log_mixture(rate, up, x) - log_mixture(rate, -down, x)
    cut = np.interp(eps, loss, x, left=-np.inf, right=np.inf)
    tails = [(1 - rate) * ndtr(-cut) + rate * ndtr(mean - cut) for mean in (up, -down)]
    return tails[0] - np.exp(eps) * tails[1]


def log_mixture(rate: float, mean: float, x: np.ndarray) -> np.ndarray:
    return np.log1p(rate * np.expm1(mean * x - mean**2 / 2))


def loss_law(
    rate: float, case: tuple[str, str], mu: float, points: int
) -> tuple[np.ndarray, np.ndarray]:
    """Losses and weights of the dominating pair, by trapezes in x."""
    losses, weights = [], []
    for (up, down), keep in zip(pairs(case, mu), (1, -1), strict=False):
        x = np.linspace(-10.0, 10.0 + up, points)
        loss = log_mixture(rate, up, x) - log_mixture(rate, -down, x)
        density = (
            (1 - rate) * np.exp(-(x**2) / 2) + rate * np.exp(-((x - up) ** 2) / 2)
        ) / math.sqrt(2 * math.pi)
        weight = density * (x[1] - x[0])
        if case[0] == "fixed":  # positive losses of a removal, negative ones of an addition
            weight = np.where(keep * loss > 0, weight, 0.0)
        losses, weights = [*losses, loss], [*weights, weight]
        if case[0] == "poisson":
            break
    if case[0] == "fixed":
        losses, weights = (
            [*losses, np.zeros(1)],
            [*weights, np.array([(1 - rate) * (2 * ndtr(mu) - 1)])],
        )
    return np.concatenate(losses), np.concatenate(weights)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    ("z", "rate", "delta"), [(1.0, 0.1, 1e-5), (0.6, 0.3, 1e-4), (4.0, 0.5, 1e-6)]
)
def test_two_and_three_steps_are_above_the_integral_and_close(
    case: tuple[str, str], z: float, rate: float, delta: float
) -> None:
    mu = 1 / z
    losses, weights = loss_law(rate, case, mu, 1501)
    # the removal is the worse direction of Poisson add-remove, and the profile of a fixed size is
    # the larger of both
    ways = pairs(case, mu)[:1] if case[0] == "poisson" else pairs(case, mu)

    def one(eps: np.ndarray) -> np.ndarray:
        return np.max([divergence(eps, rate, *way) for way in ways], axis=0)

    def two(eps: np.ndarray) -> np.ndarray:
        return np.array([weights @ one(e - losses) for e in eps])

    grid = np.linspace(-losses.max(), losses.max() * 3, 1200)
    table = two(grid)

    def three(eps: float) -> float:
        return float(
            weights @ np.interp(eps - losses, grid, table, left=0.0)
            + weights @ np.where(eps - losses < grid[0], 1, 0)
        )

    for steps, profile in ((2, lambda e: float(two(np.array([e]))[0])), (3, three)):
        truth = brentq(
            lambda e, f=profile: math.log(max(f(e), 1e-300) / delta),
            0.0,
            2.5 * losses.max(),
            xtol=1e-8,
        )
        assert 0.9995 * truth <= value(z, rate, case, steps, delta) <= 1.005 * truth


# --- mechanisms that exist: every sample enumerated


def mixture_divergences(
    centres: list[np.ndarray], weights: list[np.ndarray], z: float, steps: int, eps: float
) -> float:
    """Divergence, over some steps, of two Gaussian mixtures, by a sum over a grid."""
    x = np.linspace(-9 * z - 4, 9 * z + 4, 1201)
    p, q = (
        np.exp(-((x[:, None] - c) ** 2) / (2 * z * z)) @ w
        for c, w in zip(centres, weights, strict=True)
    )
    p, q = p / p.sum(), q / q.sum()
    joint_p, joint_q = p, q
    for _ in range(steps - 1):
        joint_p, joint_q = (
            np.multiply.outer(joint_p, p).ravel(),
            np.multiply.outer(joint_q, q).ravel(),
        )
    return float(np.maximum(joint_p - math.exp(eps) * joint_q, 0).sum())


def poisson_sums(records: tuple[float, ...], rate: float) -> tuple[np.ndarray, np.ndarray]:
    chosen = np.array(list(itertools.product((0, 1), repeat=len(records)))).reshape(
        -1, len(records)
    )
    return chosen @ np.array(records), np.prod(np.where(chosen == 1, rate, 1 - rate), axis=1)


def fixed_sums(records: tuple[float, ...], size: int) -> tuple[np.ndarray, np.ndarray]:
    sums = np.array([sum(batch) for batch in itertools.combinations(records, size)])
    return sums, np.full(sums.size, 1 / sums.size)


@pytest.mark.parametrize("steps", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("z", [0.7, 1.5])
def test_no_enumerated_mechanism_exceeds_the_bound(z: float, steps: int) -> None:
    delta, rate, values = 1e-3, 0.5, (-1.0, 0.0, 1.0)
    bounds = {case: value(z, rate, case, steps, delta) for case in CASES}
    attained = dict.fromkeys(CASES, 0.0)
    for rest in itertools.combinations_with_replacement(values, 2):
        for a, b in itertools.permutations(values, 2):
            datasets = {
                CASES[0]: [poisson_sums((*rest, a), rate), poisson_sums(rest, rate)],
                CASES[1]: [poisson_sums((*rest, a), rate), poisson_sums((*rest, b), rate)],
                CASES[2]: [
                    fixed_sums((*rest, *rest[:1], a), 2),
                    fixed_sums((*rest, *rest[:1], b), 2),
                ],
            }
            for case, (one, two) in datasets.items():
                for p, q in ((one, two), (two, one)):
                    result = mixture_divergences([p[0], q[0]], [p[1], q[1]], z, steps, bounds[case])
                    attained[case] = max(attained[case], result)
    for case in CASES:
        # the sum over a grid is good to a thousandth
        assert 0.9 * delta < attained[case] <= 1.002 * delta


@pytest.mark.parametrize("eps", [0.2, 1.0])
def test_opposite_records_are_the_worst_to_replace_under_poisson_sampling(eps: float) -> None:
    rate, mu = 0.3, 1.2
    x, y = np.meshgrid(np.linspace(-7, 7, 400), np.linspace(-7, 7, 400))
    area = (14 / 399) ** 2 / (2 * math.pi)

    def law(u: tuple[float, float]) -> np.ndarray:
        shifted = np.exp(-((x - u[0]) ** 2 + (y - u[1]) ** 2) / 2)
        return ((1 - rate) * np.exp(-(x**2 + y**2) / 2) + rate * shifted) * area

    def at(radius: float, angle: float) -> tuple[float, float]:
        return radius * mu * math.cos(angle), radius * mu * math.sin(angle)

    worst = float(np.maximum(law(at(1, 0)) - math.exp(eps) * law(at(1, math.pi)), 0).sum())
    assert worst == pytest.approx(float(divergence(np.array([eps]), rate, mu, mu)[0]), rel=1e-3)
    for radius, other, angle in itertools.product(
        (0.3, 0.8, 1.0), (0.0, 0.6, 1.0), (0.0, 1.0, 2.0, 2.8, math.pi)
    ):
        result = float(
            np.maximum(law(at(radius, 0)) - math.exp(eps) * law(at(other, angle)), 0).sum()
        )
        assert result <= worst * 1.0005  # the grid is good to a few ten-thousandths


# --- the plain Gaussian, whose epsilon is a closed form


@cache
def gaussian_epsilon(mu: float, delta: float) -> float:
    with mp.workdps(60):
        m = mp.mpf(mu)

        def excess(e: Any) -> Any:
            return mp.log(
                (
                    mp.erfc((e / m - m / 2) / mp.sqrt(2))
                    - mp.exp(e) * mp.erfc((e / m + m / 2) / mp.sqrt(2))
                )
                / 2
                / delta
            )

        low, high = mp.mpf(0), mp.mpf(mu * mu / 2 + mu * math.sqrt(2 * math.log(1 / delta)) + 1)
        if excess(low) <= 0:
            return 0.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if excess(middle) > 0 else (low, middle)
        return float(low)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("delta", [1e-2, 1e-5, 1e-10, 1e-12, 1e-30])
@pytest.mark.parametrize(
    ("z", "steps"), [(1.0, 1), (100.0, 10**4), (1000.0, 10**6), (0.3, 7), (0.05, 1000)]
)
def test_at_rate_one_it_is_the_plain_gaussian_from_above(
    case: tuple[str, str], z: float, steps: int, delta: float
) -> None:
    mu = math.sqrt(steps) / z * (2 if case[1] == "replace" else 1)
    truth = gaussian_epsilon(mu, delta)
    assert truth <= value(z, 1.0, case, steps, delta) <= 1.0005 * truth + 1e-5
    assert truth <= value(z, 1.0, case, steps, delta, fine=False) <= 1.02 * truth + 1e-3


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("steps", [1, 1000, 10**6])
@pytest.mark.parametrize("rate", [1e-6, 1e-3, 0.2, 0.9999999])
@pytest.mark.parametrize("z", [0.05, 0.7, 1e4])
def test_from_corner_to_corner_sampling_never_costs(
    case: tuple[str, str], z: float, rate: float, steps: int
) -> None:
    mu = math.sqrt(steps) / z * (2 if case[1] == "replace" else 1)
    for delta in (1e-5, 1e-15):
        assert (
            0
            <= value(z, rate, case, steps, delta, fine=False)
            <= 1.03 * gaussian_epsilon(mu, delta) + 1e-3
        )


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    "careless",
    [
        {"_SHARE": 0.4},
        {"_OUTSIDE": 0.6},
        {"_COARSE_POINTS": 64},
        {"_SHARE": 0.2, "_OUTSIDE": 1.5, "_COARSE_POINTS": 64},
    ],
)
def test_careless_settings_cost_tightness_and_never_truth(
    case: tuple[str, str], careless: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, setting in careless.items():
        monkeypatch.setattr(subsampled, name, setting)
    for fine in (True, False):
        assert value(1.0, 0.2, case, 1, 1e-4, fine) >= precise_epsilon(1.0, 0.2, case, 1e-4)
        mu = 2.0 if case[1] == "replace" else 1.0
        assert value(10.0, 1.0, case, 100, 1e-4, fine) >= gaussian_epsilon(mu, 1e-4)


# --- dp-accounting, where its rounding errors do not matter


def dp_pld(z: float, rate: float, steps: int, relation: str, pessimistic: bool = True) -> Any:
    import dp_accounting
    from dp_accounting.pld import privacy_loss_distribution

    relations = dp_accounting.NeighboringRelation
    return privacy_loss_distribution.from_gaussian_mechanism(
        z,
        sampling_prob=rate,
        value_discretization_interval=2e-4,
        pessimistic_estimate=pessimistic,
        use_connect_dots=pessimistic,
        neighboring_relation=relations.REPLACE_ONE
        if relation == "replace"
        else relations.ADD_OR_REMOVE_ONE,
    ).self_compose(steps)


@pytest.mark.parametrize("relation", ["add-remove", "replace"])
@pytest.mark.parametrize(
    ("z", "rate", "steps"), [(1.0, RATE, 1000), (0.7, 0.1, 50), (5.0, 0.2, 500)]
)
def test_poisson_agrees_with_dp_accounting(
    relation: str, z: float, rate: float, steps: int
) -> None:
    theirs = dp_pld(z, rate, steps, relation)
    for delta in (1e-3, 1e-6):
        assert value(z, rate, ("poisson", relation), steps, delta) == pytest.approx(
            theirs.get_epsilon_for_delta(delta), rel=1e-3
        )


@pytest.mark.parametrize(
    ("z", "rate", "steps"), [(1.0, RATE, 1000), (2.0, 0.001, 10**5), (0.8, 0.3, 20)]
)
def test_the_renyi_bound_is_larger(z: float, rate: float, steps: int) -> None:
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant()
    accountant.compose(
        dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(z)), steps
    )
    for delta in (1e-5, 1e-20):
        assert value(z, rate, CASES[0], steps, delta) < accountant.get_epsilon(delta)


def direction(z: float, rate: float, steps: int, way: str, shift: float) -> Any:
    """One direction of the fixed-size case, composed by dp-accounting and rounded down."""
    from dp_accounting.pld import privacy_loss_distribution as distributions
    from dp_accounting.pld import privacy_loss_mechanism as mechanisms

    loss = mechanisms.GaussianPrivacyLoss(
        z,
        sensitivity=shift,
        pessimistic_estimate=False,
        sampling_prob=rate,
        adjacency_type=mechanisms.AdjacencyType[way],
    )
    pld = distributions.PrivacyLossDistribution(
        distributions._create_pld_pmf_from_monotone_privacy_loss(
            loss, False, 2e-4, use_connect_dots=False
        )
    )
    return pld.self_compose(steps)


@pytest.mark.parametrize(("z", "rate"), [(2.0, 0.05), (1.0, 0.3), (6.0, 0.5)])
def test_fixed_size_is_above_both_of_its_directions(z: float, rate: float) -> None:
    for delta in (1e-2, 1e-5):
        ours = value(z, rate, ("fixed", "replace"), 50, delta)
        ways = [
            direction(z, rate, 50, way, 2.0).get_epsilon_for_delta(delta)
            for way in ("REMOVE", "ADD")
        ]
        assert max(ways) < ours < 1.3 * max(ways)


# --- figures, properties, calibration


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    z=st.floats(0.3, 30),
    rate=st.floats(1e-4, 0.9),
    steps=st.integers(1, 3000),
    exponent=st.floats(-12, -2),
    case=st.sampled_from(CASES),
)
def test_more_noise_fewer_steps_a_lower_rate_and_a_larger_delta_help(
    z: float, rate: float, steps: int, exponent: float, case: tuple[str, str]
) -> None:
    delta = 10.0**exponent
    here = value(z, rate, case, steps, delta)
    slack = 1.001 * here + 1e-4
    assert value(1.1 * z, rate, case, steps, delta) <= slack
    assert value(z, 0.9 * rate, case, steps, delta) <= slack
    assert value(z, rate, case, max(1, steps // 2), delta) <= slack
    assert value(z, rate, case, steps, 2 * delta) <= slack
    assert here <= value(z, rate, case, steps, delta, fine=False) + 1e-12
    if case[1] == "replace":
        assert value(z, rate, CASES[0], steps, delta) <= slack
        assert (
            value(z, rate, CASES[1], steps, delta)
            <= value(z, rate, CASES[2], steps, delta) * 1.001 + 1e-4
        )


@pytest.mark.parametrize("case", CASES)
def test_phases_add_up_in_any_order(case: tuple[str, str]) -> None:
    whole = SubsampledStep(1.5, 0.02, *case, 900)
    parts = [SubsampledStep(1.5, 0.02, *case, 200), SubsampledStep(1.5, 0.02, *case, 700)]
    assert epsilon(parts, 1e-5)[0] == pytest.approx(epsilon([whole], 1e-5)[0], rel=2e-4)
    mixed = [*parts, SubsampledStep(0.8, 0.005, *case, 300), SubsampledStep(40.0, 1.0, *case, 100)]
    forward, backward = epsilon(mixed, 1e-5)[0], epsilon(mixed[::-1], 1e-5)[0]
    assert forward == pytest.approx(backward, rel=1e-9)
    for leave_out in range(4):
        assert epsilon(mixed[:leave_out] + mixed[leave_out + 1 :], 1e-5)[0] < forward


def test_phases_of_different_sampling_compose_like_dp_accounting() -> None:
    phases = [
        SubsampledStep(1.5, 0.05, "poisson", "replace", 200),
        SubsampledStep(20.0, 1.0, "fixed", "replace", 100),
    ]
    theirs = (
        dp_pld(1.5, 0.05, 200, "replace")
        .compose(dp_pld(20.0, 1.0, 100, "replace"))
        .get_epsilon_for_delta(1e-5)
    )
    assert epsilon(phases, 1e-5)[0] == pytest.approx(theirs, rel=1e-3)


@pytest.mark.parametrize("case", CASES)
def test_a_tiny_delta_stays_tight(case: tuple[str, str]) -> None:
    result = [
        epsilon([SubsampledStep(1.0, RATE, *case, 1000)], delta)
        for delta in (1e-5, 1e-10, 1e-20, 1e-40, 1e-200)
    ]
    assert all(tight for _, tight in result)
    assert [eps for eps, _ in result] == sorted(eps for eps, _ in result)


def test_what_the_transform_cannot_resolve_is_not_called_tight() -> None:
    """One example in 600,000, delta 1e-31: epsilon lies between a spike and a far tail."""
    phase = SubsampledStep(0.8914, 1.577e-6, "poisson", "add-remove", 1)
    result, tight = epsilon([phase], 1.7e-31)
    assert not tight
    assert precise_epsilon(0.8914, 1.577e-6, CASES[0], 1.7e-31) <= result < 1.0


@pytest.mark.slow
def test_a_million_steps_agree_on_every_grid() -> None:
    for z, rate, case in (
        (10.0, 1e-3, CASES[0]),
        (1.0, 1e-4, CASES[0]),
        (3.0, 1e-3, CASES[2]),
        (2.0, 1e-4, CASES[1]),
    ):
        for delta in (1e-5, 1e-12):
            result, tight = epsilon([SubsampledStep(z, rate, *case, 10**6)], delta)
            assert tight
            assert result <= value(z, rate, case, 10**6, delta, fine=False) <= 1.05 * result


REFUSALS: list[tuple[Callable[[], object], type[Exception], str]] = [
    (lambda: SubsampledStep(1.0, 0.1, "fixed", "add-remove", 1), BudgetError, "relation=.replace."),
    (lambda: SubsampledStep(0.0, 0.1, "poisson", "replace", 1), BudgetError, "noise multiplier"),
    (lambda: SubsampledStep(1.0, 1.1, "poisson", "replace", 1), BudgetError, "rate"),
    (lambda: SubsampledStep(1.0, 0.1, "poisson", "replace", 0), BudgetError, "step"),
    (lambda: SubsampledStep(1.0, 0.1, "shuffled", "replace", 1), BudgetError, "sampling"),
    (
        lambda: epsilon([SubsampledStep(1.0, 0.1, *case, 1) for case in CASES[:2]], 1e-5),
        BudgetError,
        "same",
    ),
    (lambda: epsilon([], 0.0), BudgetError, "delta"),
    (lambda: epsilon([], 1e-300), CannotBound, "1e-250"),
]


@pytest.mark.parametrize(("call", "error", "words"), REFUSALS)
def test_nonsense_is_refused_with_a_way_out(
    call: Callable[[], object], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        call()
