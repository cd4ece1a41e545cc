"""The steps that a budget pays for: one more is too many."""

from dataclasses import replace

import pytest

import decor
from decor import Adversary, Budget, Exposure, NoisePlan
from decor.errors import BudgetError
from decor.privacy.affordable import MOST_STEPS, affordable_plan

BUDGET = Budget(3.0, 1e-5)
EXPOSURES = {
    "user": Exposure(1.0, 1),
    "example": Exposure(1.0, 1, unit="example", batch_size=16, records=400),
    "replace": Exposure(1.0, 1, unit="example", batch_size=16, records=400, relation="replace"),
    "common rate": Exposure(1.0, 1, unit="example", rate=0.05, batch_size=20),
}


@pytest.mark.parametrize("adversary", [Adversary.eavesdropper(), Adversary(2)], ids=str)
@pytest.mark.parametrize("kind", EXPOSURES)
def test_the_budget_pays_for_these_steps_and_not_for_one_more(kind, adversary):
    exposure, graph = EXPOSURES[kind], decor.from_edges(5, [(0, 1), (1, 2), (2, 3), (3, 4), (0, 2)])
    needed = decor.calibrate(graph, replace(exposure, steps=180), adversary, BUDGET, ratio=20.0)
    given = NoisePlan(graph, exposure, adversary, needed.sigma_cdp, needed.sigma_cor)
    plan = affordable_plan(given, BUDGET)
    steps, delta = plan.exposure.steps, BUDGET.accounted.delta
    assert steps >= 180 and plan.guarantee(delta).epsilon <= 3.0 and plan.budget == BUDGET
    more = replace(plan, exposure=replace(exposure, steps=steps + 1))
    assert more.guarantee(delta).epsilon > 3.0


def test_what_pays_for_no_step_and_for_any_number_is_said():
    def given(sigma_cdp):
        return NoisePlan(decor.ring(4), EXPOSURES["user"], Adversary.curious(), sigma_cdp, 0.0)

    for little in (0.1, 0.0):
        with pytest.raises(BudgetError, match="one step with this noise costs epsilon"):
            affordable_plan(given(little), BUDGET)
    assert affordable_plan(given(1e7), BUDGET).exposure.steps == MOST_STEPS
