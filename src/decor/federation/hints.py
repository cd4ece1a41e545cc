"""What would make a federation stronger: every sentence is computed for this very federation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import numpy as np

from decor.errors import DecorError
from decor.graph.topology import Topology
from decor.privacy.adversary import Adversary
from decor.text import rounded_up

from .federation import Federation

_SAME = 1e-9
"""Two epsilons that differ by less are the same."""

_FEW = 3
"""Colluders that are worth a thought beyond those planned for; against more, the accountant
searches long.
"""


def hints(federation: Federation, most: int = 3) -> tuple[str, ...]:
    """Up to `most` changes with what each would bring, the weightiest first."""
    return tuple(islice(_all(federation), most))


def steady_ratio(users: int, steps: int) -> float:
    """The ratio at which one step without one neighbour adds a quarter of the noise that the
    average gets in the whole run.

    The average of all models gets users * sigma_cdp^2 a step (and a factor that both share); an
    edge whose other end is away adds sigma_cor^2 once.
    """
    return users * steps / 4


def _all(federation: Federation) -> Iterator[str]:
    for each in (_insiders, _colluders, _absence, _delta, _steps, _epsilon):
        try:
            said = each(federation)
        except DecorError:  # the better federation cannot be made, so it is no advice
            continue
        if said is not None:
            yield said


def _insiders(now: Federation) -> str | None:
    """An eavesdropper is the weakest adversary, and every user is more than that."""
    if now.adversary.colluders != 0:
        return None
    better = replace(now, privacy=replace(now.privacy, adversary="curious"))
    seen = now.guarantee(Adversary.curious()).epsilon
    return (
        "The budget holds against outsiders only: a curious user, who knows its own secrets, "
        f"gets epsilon {rounded_up(seen)}. "
        f'privacy.adversary = "curious" holds that to {rounded_up(better.guarantee().epsilon)}, '
        "with sigma_cdp "
        f"{rounded_up(better.plan.sigma_cdp)} instead of {rounded_up(now.plan.sigma_cdp)}."
    )


def _colluders(now: Federation) -> str | None:
    """The fewest colluders against whom somebody's correlated noise is worth nothing, and edges
    that would change it.
    """
    degree = int(now.topology.degrees.min())
    if now.adversary.colluders is None or degree >= len(now.members) - 1:
        return None
    most = max(degree, now.adversary.colluders)
    if most > max(_FEW, now.adversary.colluders):
        return None
    pairs = joined(
        now.topology, most + 1, frozenset(k for k, m in enumerate(now.members) if not m.address)
    )
    if not pairs:
        return None
    name = now.topology.name
    edges = tuple((name(i), name(j)) for i, j in [*map(tuple, now.topology.edges.tolist()), *pairs])
    better = replace(now, network=replace(now.network, topology=None, rows=None, edges=edges))
    colluders = Adversary(most)
    before, after = now.guarantee(colluders), better.guarantee(colluders)
    added = ", ".join(f"{name(i)}-{name(j)}" for i, j in pairs[:4]) + (
        f" and {len(pairs) - 4} more" if len(pairs) > 4 else ""
    )
    edge = f"With the edge{'s' if len(pairs) > 1 else ''} {added} as well"
    if now.plan.sigma_cor == 0:
        if better.plan.sigma_cdp >= now.plan.sigma_cdp * (1 - _SAME):
            return None
        return (
            f"Somebody can be isolated by {_people(most)}, so all noise is independent, as in "
            f"local DP. {edge}, the same budget "
            f"takes sigma_cdp {rounded_up(better.plan.sigma_cdp)} instead of "
            f"{rounded_up(now.plan.sigma_cdp)}."
        )
    local = now.guarantee(Adversary.everyone()).epsilon
    if after.epsilon >= before.epsilon * (1 - _SAME) or before.epsilon < local * (1 - _SAME):
        return None
    who = " and ".join(name(v) for v in before.worst_coalition) or _people(most)
    return (
        f"{who} together can isolate {name(before.worst_user)}, and get epsilon "
        f"{rounded_up(before.epsilon)}: that of local DP. "
        f"{edge}, no {_people(most)} can isolate anybody, and get {rounded_up(after.epsilon)}."
    )


def _absence(now: Federation) -> str | None:
    """Noise that does not cancel while somebody is away."""
    s, c, n, steps = now.plan.sigma_cdp, now.plan.sigma_cor, len(now.members), now.training.steps
    assert isinstance(c, float)
    ratio = steady_ratio(n, steps)
    if c**2 <= 2 * ratio * s**2:
        return None
    better = replace(now, privacy=replace(now.privacy, ratio=ratio)).plan
    assert isinstance(better.sigma_cor, float)
    return (
        "While a neighbour is away, their edge's noise does not cancel: one such step adds as "
        "much to the average as the "
        f"independent noise of {c**2 / (n * s**2):,.0f} steps. privacy.ratio = {ratio:g} makes "
        "that "
        f"{better.sigma_cor**2 / (n * better.sigma_cdp**2):,.0f} steps, with sigma_cdp "
        f"{rounded_up(better.sigma_cdp)} instead of "
        f"{rounded_up(s)}, and the same guarantee."
    )


def _delta(now: Federation) -> str | None:
    """A delta that lets a few be published outright."""
    units = (
        len(now.members) if now.privacy.unit == "user" else sum(m.records or 0 for m in now.members)
    )
    if now.privacy.delta * units <= 0.01:
        return None
    delta = float(f"{0.001 / units:.0e}")
    better = replace(now, privacy=replace(now.privacy, delta=delta)).plan
    protected = "users" if now.privacy.unit == "user" else "records"
    return (
        f"privacy.delta = {now.privacy.delta:g} is large beside {units:,} {protected}: publishing "
        "one at random in "
        f"{now.privacy.delta * units:.2g} of all cases would be within it. {delta:g} takes "
        f"sigma_cdp {rounded_up(better.sigma_cdp)} "
        f"instead of {rounded_up(now.plan.sigma_cdp)}."
    )


def _steps(now: Federation) -> str | None:
    half = now.training.steps // 2
    if half < 1:
        return None
    exposure = replace(now.exposure, steps=half)
    spent = replace(now.plan, exposure=exposure).guarantee_on_grid(now.grid.distance).epsilon
    before = now.guarantee().epsilon
    if not spent < before:
        return None
    return (
        f"Half the steps ({half:,}) with the same noise spend epsilon {rounded_up(spent)} "
        f"instead of {rounded_up(before)}."
    )


def _epsilon(now: Federation) -> str | None:
    half = now.privacy.epsilon / 2
    better = replace(now, privacy=replace(now.privacy, epsilon=half)).plan
    times = better.sigma_cdp / now.plan.sigma_cdp
    return (
        f"Half the budget (privacy.epsilon = {half:g}) takes {times:.2f} times the independent "
        "noise."
    )


def joined(
    topology: Topology, degree: int, unreachable: frozenset[int] = frozenset()
) -> list[tuple[int, int]]:
    """Edges to add so that everybody has `degree` neighbours: the loneliest first, to the loneliest
    and farthest.

    Two whom nobody can call are not joined; empty where it cannot be done.
    """
    from scipy.sparse.csgraph import shortest_path

    near = topology.adjacency.toarray() > 0
    far = shortest_path(topology.adjacency, unweighted=True)
    found: list[tuple[int, int]] = []
    while near.sum(axis=1).min() < degree:
        degrees = near.sum(axis=1)
        user = int(np.argmin(degrees))
        others = [
            v
            for v in range(topology.users)
            if v != user and not near[user, v] and not (user in unreachable and v in unreachable)
        ]
        if not others:
            return []
        other = min(others, key=lambda v: (degrees[v], -far[user, v], v))
        near[user, other] = near[other, user] = True
        found.append((min(user, other), max(user, other)))
    return sorted(found)


def _people(count: int) -> str:
    return "one user" if count == 1 else f"{count} users"
