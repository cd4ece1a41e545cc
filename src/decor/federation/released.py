"""What leaves a user is on a grid: the one for a plan, refused where it is not shown to be as private as the plan."""

from __future__ import annotations

from decor.errors import InputError
from decor.noise.grid import Grid
from decor.privacy.budget import ACCOUNTED
from decor.privacy.plan import NoisePlan


def grid_of(plan: NoisePlan, parameters: int, delta: float) -> Grid:
    """The grid of all messages' numbers, for a plan that promises its epsilon at `delta`.

    Guarantee: what the grid and its tables take of delta is what the plan, made for a smaller one, has left of it; or less than a
    part in 10^12, which is worth less of epsilon than the 4e-12 that the accountant adds to it.
    """
    topology, exposure = plan.topology, plan.exposure
    cor = plan.sigma_cor if isinstance(plan.sigma_cor, tuple) else (plan.sigma_cor,) * topology.edge_count
    made = Grid.of(plan.sigma_cdp, cor, topology.edges, topology.users, exposure.shift, parameters, exposure.steps)
    if plan.budget is None:
        return made
    # what `calibrate` leaves; plans saved before it left anything spend all of delta
    kept = plan.guarantee(ACCOUNTED * delta).epsilon <= plan.budget.epsilon
    planned = ACCOUNTED * delta if kept else plan.budget.delta
    if not covers(made, plan.budget.epsilon, planned, delta):
        raise InputError(
            f"the tables of the noise take {made.slack(plan.budget.epsilon):.2g} of delta at epsilon {plan.budget.epsilon:g}, "
            f"and the plan leaves {max(0.0, delta - planned):.2g} of {delta:g}; "
            + ("plan for a smaller epsilon" if kept else "plan anew with decor.calibrate, which leaves a thousandth")
        )
    return made


def covers(grid: Grid, epsilon: float, planned: float, delta: float) -> bool:
    """Whether (epsilon, planned) of continuous noise is (epsilon, delta) on the grid."""
    return planned + grid.slack(epsilon) <= delta * (1 + 1e-12)
