from __future__ import annotations

import pytest

from decor.errors import BudgetError, CannotBound
from decor.privacy.loss import subsampled
from decor.privacy.loss.noise_multiplier import noise_multiplier
from decor.privacy.loss.subsampled import SubsampledStep, epsilon

from .test_subsampled import CASES, RATE, value


@pytest.mark.parametrize(
    ("case", "figures"),
    [
        (CASES[0], (2.18, 1.05, 0.64)),
        (CASES[2], (4.83, 2.32, 1.35)),
        (CASES[1], (4.03, 1.52, 0.705)),
    ],
)
def test_the_noise_of_the_standard_run_is_the_known_one(
    case: tuple[str, str], figures: tuple[float, ...]
) -> None:
    for budget, figure in zip((1.0, 3.0, 10.0), figures, strict=True):
        assert noise_multiplier(budget, 1e-5, RATE, 1000, *case) == pytest.approx(figure, abs=0.005)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    ("budget", "delta", "rate", "steps"),
    [
        *[
            (0.1, 1e-5, RATE, 1000),
            (50.0, 1e-5, RATE, 1000),
            (2.0, 1e-6, 0.3, 10),
            (1.0, 1e-12, 1e-3, 20000),
            (5.0, 1e-5, 1.0, 100),
        ],
        *[
            (1.3, 1e-4, 8.4e-4, 1),
            (1.0, 1e-5, 6.2e-4, 2),
            (3.78, 1e-6, 1.5e-4, 1),
        ],  # epsilon falls eight times as fast as noise grows
    ],
)
def test_the_calibrated_noise_is_enough_and_hardly_more(
    case: tuple[str, str], budget: float, delta: float, rate: float, steps: int
) -> None:
    z = noise_multiplier(budget, delta, rate, steps, *case)
    assert budget * (1 - 1e-3) <= value(z, rate, case, steps, delta) <= budget
    assert value(0.995 * z, rate, case, steps, delta) > budget


@pytest.mark.parametrize(
    ("args", "most"),
    [
        ((3.0, 1e-5, 0.02, 1000, *CASES[0]), 8),  # a slider of the planner waits for this
        ((1.0, 1e-6, 0.01, 10000, *CASES[2]), 8),
        # from a little noise on, delta covers everything
        ((3.7e-12, 0.4149, 1.0, 1112, "poisson", "replace"), 80),
        ((1e-320, 0.1, 1.0, 1, "poisson", "add-remove"), 60),
    ],
)
def test_the_noise_is_found_in_few_accountings(
    args: tuple[float, ...], most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[float] = []
    accounted = subsampled._epsilon
    monkeypatch.setattr(
        subsampled, "_epsilon", lambda phases, *rest: tried.append(1) or accounted(phases, *rest)
    )
    z = noise_multiplier(*args)
    assert len(tried) <= most
    budget, delta, rate, steps, *case = args
    assert value(z, rate, case, steps, delta) <= budget


def test_a_budget_that_asks_for_nothing_gets_the_least_noise() -> None:
    assert noise_multiplier(1.0, 1e-3, 1e-6, 1, *CASES[0]) == 0.01
    assert epsilon([], 1e-5) == (0.0, True)
    assert epsilon([SubsampledStep(1.0, 1e-6, *CASES[0], 1)], 1e-3) == (
        pytest.approx(0.0, abs=1e-12),
        True,
    )


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ((0.0, 1e-5, 0.1, 1), BudgetError, "epsilon"),
        ((1.0, 1e-5, 0.0, 1), BudgetError, "rate"),
        ((1.0, 1e-5, 0.1, -5), BudgetError, "step"),
        ((1e-30, 1e-250, 0.1, 10), CannotBound, "no noise multiplier up to"),
    ],
)
def test_budgets_that_no_noise_meets_are_refused(
    arguments: tuple[float, ...], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        noise_multiplier(*arguments, *CASES[0])
