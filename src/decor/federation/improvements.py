"""Hints: what would make a federation stronger; every number is computed for this federation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

from decor.errors import DecorError
from decor.graph.extra_edges import edges_to_add
from decor.privacy.adversary import Adversary
from decor.privacy.gossip_choice import steady_ratio
from decor.text import rounded_up

from .federation import Federation

_SAME = 1e-9
"""Two epsilons that differ by less are the same, relatively."""

_FEW = 3
"""Colluders to consider beyond those of the plan; against more the accountant searches long."""


def hints(federation: Federation, most: int = 3) -> tuple[str, ...]:
    """Up to `most` changes and what each would bring, the most important first."""
    return tuple(islice(_all(federation), most))


def _all(federation: Federation) -> Iterator[str]:
    for hint in (_insiders, _colluders, _absence, _delta, _steps, _epsilon):
        try:
            text = hint(federation)
        except DecorError:  # the changed federation is not possible, so it is no advice
            continue
        if text is not None:
            yield text


def _with_privacy(now: Federation, **changes: Any) -> Federation:
    return replace(now, privacy=replace(now.privacy, **changes))


def _insiders(now: Federation) -> str | None:
    """An eavesdropper is the weakest adversary: every user knows more."""
    # other adversaries are insiders already
    if now.adversary.colluders != 0:
        return None
    better = _with_privacy(now, adversary="curious")
    curious = now.guarantee(Adversary.curious()).epsilon
    return (
        "The budget holds against outsiders only: a curious user, who knows its own secrets, "
        f'gets epsilon {rounded_up(curious)}. privacy.adversary = "curious" holds that to '
        f"{rounded_up(better.guarantee().epsilon)}, with {_sigmas(better, now)}."
    )


def _colluders(now: Federation) -> str | None:
    """Edges to add so that the smallest coalition that can isolate a user no longer can."""
    degree = int(now.topology.degrees.min())
    # None: everyone; and a complete graph has no edge to add
    if now.adversary.colluders is None or degree >= len(now.members) - 1:
        return None
    most = max(degree, now.adversary.colluders)
    if most > max(_FEW, now.adversary.colluders):
        return None
    unreachable = frozenset(k for k, m in enumerate(now.members) if not m.address)
    # with one neighbour more than colluders, some neighbour is honest
    pairs = edges_to_add(now.topology, most + 1, unreachable)
    if not pairs:
        return None
    name = now.topology.name
    edges = tuple((name(i), name(j)) for i, j in [*map(tuple, now.topology.edges.tolist()), *pairs])
    better = replace(now, network=replace(now.network, topology=None, rows=None, edges=edges))
    colluders = Adversary(most)
    before, after = now.guarantee(colluders), better.guarantee(colluders)
    added = ", ".join(f"{name(i)}-{name(j)}" for i, j in pairs[:4])
    more = f" and {len(pairs) - 4} more" if len(pairs) > 4 else ""
    change = f"With the edge{'s' if len(pairs) > 1 else ''} {added}{more} as well"
    if now.plan.sigma_cor == 0:
        if _own(better) >= _own(now) * (1 - _SAME):
            return None
        return (
            f"A user can be isolated by {_count_users(most)}, so all noise is independent, as in "
            f"local DP. {change}, the same budget takes {_sigmas(better, now)}."
        )
    local = now.guarantee(Adversary.everyone()).epsilon
    # advice only where now a user can be isolated, and where the edges change that
    if after.epsilon >= before.epsilon * (1 - _SAME) or before.epsilon < local * (1 - _SAME):
        return None
    coalition = " and ".join(name(v) for v in before.worst_coalition) or _count_users(most)
    return (
        f"{coalition} together can isolate {name(before.worst_user)}, and get epsilon "
        f"{rounded_up(before.epsilon)}: that of local DP. {change}, no {_count_users(most)} can "
        f"isolate a user, and get {rounded_up(after.epsilon)}."
    )


def _absence(now: Federation) -> str | None:
    """Noise that does not cancel while a neighbour is absent."""
    ratio, plan = steady_ratio(len(now.members), now.training.steps), now.plan
    assert isinstance(plan.sigma_cor, float)
    # a chosen one twice: a small gain is not worth a hint. Nobody has chosen one that is not there
    is_chosen = now.privacy.ratio is not None
    if plan.sigma_cor**2 <= (2 if is_chosen else 1 + _SAME) * ratio * _own(now) ** 2:
        return None
    better = _with_privacy(now, ratio=ratio)
    missing = "The file has no privacy.ratio, and its noise supposes that no node fails. "
    return (
        f"{'' if is_chosen else missing}While a neighbour is away, the noise of the edge to it "
        "does not cancel: one such step "
        f"adds as much to the average as the independent noise of {_steps_per_absence(now):,.0f} "
        f"steps. privacy.ratio = {ratio:g} makes that {_steps_per_absence(better):,.0f} steps, "
        f"with {_sigmas(better, now)}, and the same guarantee."
    )


def _steps_per_absence(federation: Federation) -> float:
    """In how many steps the average gets as much noise as one edge adds if it does not cancel."""
    plan = federation.plan
    assert isinstance(plan.sigma_cor, float)
    return plan.sigma_cor**2 / (len(federation.members) * _own(federation) ** 2)


def _delta(now: Federation) -> str | None:
    """A delta that allows a few users or records to be published outright."""
    by_user = now.privacy.unit == "user"
    units = now.exposure.units(now.topology)
    expected = now.privacy.delta * units
    if expected <= 0.01:
        return None
    # one digit, as a person would write it
    delta = float(f"{0.001 / units:.0e}")
    better = _with_privacy(now, delta=delta)
    return (
        f"privacy.delta = {now.privacy.delta:g} is large for {units:,} "
        f"{'users' if by_user else 'records'}: publishing one of them at random in {expected:.2g} "
        f"of all cases would be within it. {delta:g} takes {_sigmas(better, now)}."
    )


def _steps(now: Federation) -> str | None:
    half = now.training.steps // 2
    if half < 1:
        return None
    shorter = replace(now.plan, exposure=replace(now.exposure, steps=half))
    # the same noise: only the number of steps changes
    spent = shorter.guarantee_on_grid(now.grid.distance).epsilon
    before = now.guarantee().epsilon
    if not spent < before:
        return None
    return (
        f"Half the steps ({half:,}) with the same noise spend epsilon {rounded_up(spent)} "
        f"instead of {rounded_up(before)}."
    )


def _epsilon(now: Federation) -> str | None:
    half = now.privacy.epsilon / 2
    times = _own(_with_privacy(now, epsilon=half)) / _own(now)
    return (
        f"Half the budget (privacy.epsilon = {half:g}) takes {times:.2f} times the independent "
        "noise."
    )


def _sigmas(better: Federation, now: Federation) -> str:
    new, old = _own(better), _own(now)
    return f"sigma_cdp {rounded_up(new)} instead of {rounded_up(old)}"


def _own(federation: Federation) -> float:
    return federation.plan.uniform_sigma_cdp("a federation file")


def _count_users(count: int) -> str:
    return "one user" if count == 1 else f"{count} users"
