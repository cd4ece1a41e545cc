"""What leaves a user is on a grid: the one for a plan, refused where it is not shown to be as
private as the plan.
"""

from __future__ import annotations

from decor.errors import InputError
from decor.noise.grid import Grid
from decor.privacy.budget import ACCOUNTED, Exposure
from decor.privacy.plan import NoisePlan


def grid_of(
    plan: NoisePlan, parameters: int, words_per_key: int | None = None, batch_words: int = 0
) -> Grid:
    """The grid of all messages of a run of `plan` with a model of `parameters` numbers; the other
    words are those of `Grid.of`.

    Guarantee: what the tables, the cipher and the grid take of the budget's delta is what
    `calibrate` has left of it.
    """
    topology, exposure = plan.topology, plan.exposure
    cor = (
        plan.sigma_cor
        if isinstance(plan.sigma_cor, tuple)
        else (plan.sigma_cor,) * topology.edge_count
    )
    made = Grid.of(
        plan.sigma_cdp,
        cor,
        topology.edges,
        topology.users,
        moved(exposure),
        parameters,
        exposure.steps,
        words_per_key,
        batch_words,
    )
    if plan.budget is not None:
        left = (1 - ACCOUNTED) * plan.budget.delta
        if made.slack(plan.budget.epsilon) > left * (1 + 1e-9):
            raise InputError(
                f"with secret noise from finite tables and {parameters:,} parameters epsilon can "
                "be at most "
                f"{_down(made.largest_epsilon(left))}, not {plan.budget.epsilon:g}; plan for a "
                "smaller epsilon, fewer steps or "
                "fewer parameters"
            )
    return made


def moved(exposure: Exposure) -> float:
    """How far one protected unit can move a user's gradient in a step, before it is rounded to the
    grid.

    With Poisson sampling a record is in the batch or not, and is replaced by one that is: whichever
    two batches are compared, each differs from the one without either record by one clip
    (docs/noise.md, sampled batches).
    """
    if exposure.unit == "user":
        return 2 * exposure.clip
    assert exposure.batch_size is not None
    return (1.0 if exposure.sampling == "poisson" else 2.0) * exposure.clip / exposure.batch_size


def _down(epsilon: float) -> str:
    return f"{int(10 * epsilon) / 10:g}"
