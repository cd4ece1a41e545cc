"""The integer grid of a plan's messages; refused unless it is proven as private as the plan."""

from __future__ import annotations

from decor.errors import InputError
from decor.noise.grid import Grid
from decor.privacy.budget import ACCOUNTED, Exposure
from decor.privacy.plan import NoisePlan


def grid_of(
    plan: NoisePlan, parameters: int, words_per_key: int | None = None, batch_words: int = 0
) -> Grid:
    """The grid of all messages in a run of `plan`.

    Args:
        plan: The noise that the grid has to reach.
        parameters: Parameters of one model.
        words_per_key: As of `Grid.of`.
        batch_words: As of `Grid.of`.

    Guarantee: tables, cipher and grid take no more of the budget's delta than `calibrate` has left.
    """
    topology, exposure, cor = plan.topology, plan.exposure, plan.sigma_cor
    grid = Grid.of(
        plan.sigma_cdp if isinstance(plan.sigma_cdp, float) else plan.sigma_cdp_per_user,
        cor if isinstance(cor, tuple) else (cor,) * topology.edge_count,
        topology.edges,
        topology.users,
        gradient_shift(exposure),
        parameters,
        exposure.steps,
        words_per_key,
        batch_words,
    )
    if plan.budget is not None:
        left = (1 - ACCOUNTED) * plan.budget.delta
        # a rounding error in the slack is no reason to refuse
        if grid.slack(plan.budget.epsilon) > left * (1 + 1e-9):
            # rounded down to one digit, so that a plan for the printed epsilon is accepted
            largest = int(10 * grid.largest_epsilon(left)) / 10
            raise InputError(
                f"with secret noise from finite tables and {parameters:,} parameters epsilon can "
                f"be at most {largest:g}, not {plan.budget.epsilon:g}; plan for a smaller epsilon, "
                "fewer steps or fewer parameters"
            )
    return grid


def gradient_shift(exposure: Exposure) -> float:
    """How far one protected unit can move a user's gradient in a step, before rounding."""
    if exposure.unit == "user":
        return 2 * exposure.clip
    assert exposure.batch_size is not None
    # Poisson: an example is in the batch or not. If it is replaced by another, each batch still
    # differs from the one without either by one clip (docs/noise.md, sampled batches).
    return (1.0 if exposure.sampling == "poisson" else 2.0) * exposure.clip / exposure.batch_size
