import math

import numpy as np
import pytest

from decor.errors import InputError
from decor.learning.schedule import (
    Constant,
    Cosine,
    Function,
    InverseTime,
    PolyakLojasiewicz,
    non_convex_rate,
    schedule_of,
)


def test_schedules_are_their_formulas():
    assert Constant().rates(0.3, 4).tolist() == [0.3] * 4
    assert InverseTime(5000).rates(2.0, 3).tolist() == [2.0, 2 / (1 + 1 / 5000), 2 / (1 + 2 / 5000)]
    for T in (2, 7, 100):
        found = Cosine(0.1).rates(0.5, T)
        assert found == pytest.approx(
            [0.5 * (0.1 + 0.9 * (1 + math.cos(math.pi * t / (T - 1))) / 2) for t in range(T)]
        )
        assert found[0] == 0.5 and found[-1] == pytest.approx(0.05) and (np.diff(found) < 0).all()
    assert Cosine().rates(1.0, 3) == pytest.approx([1, 0.5, 0])
    mu, L, p, c = 0.5, 3.0, 0.2, 2.0
    found = PolyakLojasiewicz(mu, L, p, c).rates(math.inf, 50)
    assert found == pytest.approx(
        [16 / (mu * (t + 16 * c * L / (mu * p))) for t in range(50)], rel=1e-14
    )


@pytest.mark.parametrize(
    "schedule",
    [Constant(), InverseTime(10), Cosine(), Cosine(0.5), PolyakLojasiewicz(1, 2, 0.5)],
    ids=repr,
)
def test_schedules_have_a_positive_rate_for_every_step_and_never_rise(schedule):
    for steps in (0, 1, 2, 33):
        found = schedule.rates(0.7, steps)
        assert found.shape == (steps,) and found.dtype == np.float64 and np.isfinite(found).all()
        assert (found >= 0).all() and (found <= 0.7).all() and (np.diff(found) <= 0).all()
        assert (found[: max(steps - 1, 1)] > 0).all(), "only a cosine's last step may be zero"


def test_the_pl_schedule_starts_at_p_over_cl_and_is_capped_by_the_learning_rate():
    for p, c, L in ((1.0, 1.0, 2.0), (0.05, 3.0, 7.0)):
        free = PolyakLojasiewicz(0.1, L, p, c).rates(math.inf, 1000)
        assert free[0] == pytest.approx(p / (c * L), rel=1e-14)
        capped = PolyakLojasiewicz(0.1, L, p, c).rates(free[0] / 3, 1000)
        assert (
            capped[0] == free[0] / 3
            and (capped <= free).all()
            and capped[-1] == min(free[0] / 3, free[-1])
        )


def descent(rates, curvatures):
    """Losses of noiseless gradient descent on sum h x^2 / 2 from ones, with one model (p = 1)."""
    x, h = np.ones(len(curvatures)), np.asarray(curvatures)
    losses = [float((h * x * x).sum() / 2)]
    for rate in rates:
        x = x - rate * h * x
        losses.append(float((h * x * x).sum() / 2))
    return np.array(losses)


@pytest.mark.parametrize("steps", [1, 2, 5, 20, 200])
def test_a_noiseless_quadratic_keeps_the_theorems_bound_with_the_corrected_factor_and_breaks_it_with_the_papers(
    steps,
):
    """Condition number 2, p = 1, so c = 2 (Theorem summary: c >= 2 p).

    The proof needs a first step of at most 1 / (2 L).
    """
    mu, L, p, c = 1.0, 2.0, 1.0, 2.0
    offset = c * L / (mu * p)
    corrected = PolyakLojasiewicz(mu, L, p, c).rates(math.inf, steps)
    papers = 16 / (mu * (np.arange(steps) + offset))
    assert corrected[0] <= 1 / (2 * L) < papers[0] == pytest.approx(16 * corrected[0])
    falling = descent(corrected, [mu, L])
    assert (np.diff(falling) < 0).all()
    # V_T <= (tau / (T + tau))^2 V_0, the proof's own bound without noise, tau being what is added
    # to t
    tau = 16 * offset
    assert falling[-1] <= (tau / (steps + tau)) ** 2 * falling[0]
    rising = descent(papers, [mu, L])
    assert rising[1] > 30 * rising[0], "the first step alone is far too long"
    if steps <= 20:
        assert rising[-1] > (offset / (steps + offset)) ** 2 * rising[0], (
            "the paper's bound is broken"
        )


def test_the_non_convex_rate_is_the_theorems():
    assert non_convex_rate(2.0, 0.5, 1.0, 16, 100, 1e-9, 3.0) == 0.5 / (2 * 3.0 * 2.0), (
        "little noise: p / (2 c L)"
    )
    found = non_convex_rate(2.0, 0.5, 1.5, 16, 100, 40.0)
    assert (
        found == pytest.approx(2 * math.sqrt(1.5 * 16 / (2.0 * 100 * 40.0)), rel=1e-14)
        and found < 0.125
    )


def test_numbers_that_make_no_non_convex_rate_are_named():
    given = {
        "smoothness": 1.0,
        "consensus_rate": 1.0,
        "gap": 1.0,
        "users": 4,
        "steps": 10,
        "variance": 5.0,
    }
    for name, value in (
        ("users", 0),
        ("steps", 0),
        ("constant", 0.0),
        ("gap", -1.0),
        ("variance", 0),
        ("smoothness", math.nan),
    ):
        with pytest.raises(InputError, match=name):
            non_convex_rate(**{**given, name: value})


@pytest.mark.parametrize("value", [0, -1.0, math.inf, math.nan, "5", None])
@pytest.mark.parametrize(
    ("name", "build"),
    [
        ("horizon", lambda v: InverseTime(v)),
        ("mu", lambda v: PolyakLojasiewicz(v, 2, 0.5)),
        ("smoothness", lambda v: PolyakLojasiewicz(1, v, 0.5)),
        ("consensus_rate", lambda v: PolyakLojasiewicz(1, 2, v)),
        ("constant", lambda v: PolyakLojasiewicz(1, 2, 0.5, v)),
    ],
)
def test_numbers_that_make_no_schedule_are_named(name, build, value):
    with pytest.raises(InputError, match=f"{name} must be a positive finite number"):
        build(value)


@pytest.mark.parametrize("final", [-0.1, 1.5, math.nan, "0"])
def test_a_cosine_ends_at_a_share_of_the_learning_rate(final):
    with pytest.raises(InputError, match="final must be a share"):
        Cosine(final)


def halves(step):
    return 0.5**step


def test_any_function_of_the_step_is_a_schedule():
    assert Function(halves).rates(0.8, 4).tolist() == [0.8, 0.4, 0.2, 0.1]
    table = [3.0, 2.0, 1.0]
    assert Function(table.__getitem__).rates(0.5, 3).tolist() == [1.5, 1.0, 0.5]
    assert Function(lambda step: np.float32(step)).rates(1.0, 3).dtype == np.float64


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf, None, "fast", [1, 2]])
def test_a_function_that_gives_no_share_is_refused_at_its_step(bad):
    with pytest.raises(InputError, match="at step 2; a share of the learning rate is a number"):
        Function(lambda step: bad if step == 2 else 1.0).rates(0.1, 5)


def test_a_functions_facts_are_its_values_and_not_its_place_in_memory():
    facts = Function(halves).facts
    assert facts["function"] == "halves" and Function(lambda t: 0.5**t).facts == facts | {
        "function": "test_a_functions_facts_are_its_values_and_not_its_place_in_memory.<locals>.<lambda>"
    }
    assert Function(lambda t: 0.5 ** (t + 1)).facts["values_sha256"] != facts["values_sha256"]
    assert repr(Function(halves)) == f"Function(halves, {facts['values_sha256'][:16]})"
    # a table may be as short as the run
    assert Function([1.0, 0.5].__getitem__).facts != Function([1.0, 0.5, 0.1].__getitem__).facts


@pytest.mark.parametrize(
    ("text", "schedule"),
    [
        ("constant", Constant()),
        ("cosine", Cosine()),
        (" Cosine:0.1", Cosine(0.1)),
        ("inverse_time:50", InverseTime(50)),
    ],
)
def test_names_with_their_numbers_are_schedules(text, schedule):
    assert schedule_of(text) == schedule and schedule_of(schedule) is schedule


@pytest.mark.parametrize("wrong", ["fast", "cosine:a", "inverse-time", 0.1, None, Cosine, ""])
def test_what_is_no_schedule_is_refused(wrong):
    with pytest.raises(InputError, match="or a function of the step, not"):
        schedule_of(wrong)
