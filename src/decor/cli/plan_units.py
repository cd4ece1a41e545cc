"""`decor plan --compare-units`: what it takes to protect a user, and what to protect an example."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from decor.choices import Unit
from decor.errors import InputError
from decor.graph.gossip import Gossip
from decor.privacy import baselines, theory
from decor.privacy.budget import Exposure
from decor.privacy.composition import PastRun, Question, compose
from decor.privacy.plan import NoisePlan
from decor.privacy.plan_answer import PlanAnswer
from decor.text import rounded_up, table


@dataclass(frozen=True)
class UnitRow:
    """One plan for each unit, within the same budget.

    Attributes:
        unit: What the plan protects.
        sigma_cdp: Independent noise of each user; the largest where users differ.
        sigma_cor: Shared noise; the largest where edges differ.
        error: Predicted error relative to central DP of the same unit.
        user_epsilon: What the plan gives all data of a user, whatever it is made for.
        example_epsilon: What it gives one example.
    """

    unit: Unit
    sigma_cdp: float
    sigma_cor: float
    error: float
    user_epsilon: float
    example_epsilon: float


def user_exposure(exposure: Exposure) -> Exposure:
    """The exposure of whole users in the training that is planned at example level."""
    if exposure.unit == "user":
        raise InputError(
            "--compare-units needs the batches of the example level: --unit example with "
            "--batch-size and --records, or --rate"
        )
    # no batches: whichever examples are drawn, all of a user's data may turn its gradient
    return Exposure(exposure.clip, exposure.steps)


def rows(
    exposure: Exposure,
    calibrate: Callable[[Exposure], PlanAnswer],
    gossip: Callable[[NoisePlan], Gossip],
) -> list[UnitRow]:
    """A row for each unit.

    Args:
        exposure: At example level.
        calibrate: Makes the plan for an exposure.
        gossip: The rounds of each step with a plan, for the predicted errors.
    """
    return [_row(calibrate(each), exposure, gossip) for each in (user_exposure(exposure), exposure)]


def _row(
    answer: PlanAnswer, of_examples: Exposure, gossip: Callable[[NoisePlan], Gossip]
) -> UnitRow:
    plan, delta = answer.plan, answer.guarantee.delta
    assert plan.budget is not None
    own = plan.exposure.unit
    # of the same unit: one epsilon promises different things about users and examples
    central = baselines.central(plan.topology, plan.exposure, plan.budget, any_delta=True)
    error = theory.predicted_error(plan, gossip(plan)) / theory.average_error(central)
    epsilons = {own: answer.guarantee.epsilon}
    question = Question.of(plan)
    other: Unit = "example" if own == "user" else "user"
    relation = of_examples.relation or "replace"
    asked = replace(question, unit=other, relation=relation if other == "example" else "replace")
    # by composition, which takes questions that a plan was not made for
    epsilons[other] = compose([PastRun(plan)], asked, delta)
    cdp, cor = (float(np.max(each, initial=0.0)) for each in (plan.sigma_cdp, plan.sigma_cor))
    return UnitRow(own, cdp, cor, error, epsilons["user"], epsilons["example"])


def text(compared: list[UnitRow]) -> str:
    """The rows side by side."""
    cells = [
        [
            "all data of a user" if row.unit == "user" else "one example",
            *map(rounded_up, (row.sigma_cdp, row.sigma_cor, row.error)),
            *map(_epsilon, (row.user_epsilon, row.example_epsilon)),
        ]
        for row in compared
    ]
    header = ["protects", "sigma_cdp", "sigma_cor", "predicted error"]
    header += ["epsilon of a user", "epsilon of an example"]
    return (
        "What each unit takes, within the same budget (predicted error relative to central DP of "
        f"the same unit):\n{table(header, cells)}"
    )


def _epsilon(value: float) -> str:
    # such as for a user whose number of examples is private
    return "no bound" if value == float("inf") else rounded_up(value)
