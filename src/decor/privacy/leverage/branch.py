"""The worst coalition of q >= 2 users: exact by branch and bound, and certified in floating
point.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import networkx as nx
import numpy as np

from decor.arrays import Floats, Ints
from decor.errors import InputError

from . import branch_kernels, dense
from .branch_kernels import State, Target
from .network import UNIT_ROUNDOFF, Network

TOLERANCE = 1e-9
"""A bound this close above a value really attained is called exact."""

PRUNING = TOLERANCE / 4
"""What could beat the best coalition by no more than this is not looked into."""

CONNECTIVITY_USERS = 300
"""Users up to which the vertex connectivity is computed (half a second)."""

GREEDY_USERS = 8
"""Users against whom a good coalition is looked for before the search proper."""


@dataclass(frozen=True)
class Worst:
    """The most that q colluding users can expose a target.

    Guarantee: no coalition exposes any target beyond `value`, nor target i beyond `per_user[i]`.
    `coalition` exposes `user` by at least `lower`, which is `value` to a relative 1e-9 if `exact`;
    else the search was cut short. `nodes` counts its branches.
    """

    value: float
    lower: float
    user: int
    coalition: tuple[int, ...]
    exact: bool
    nodes: int
    per_user: Floats


def worst_coalition(
    network: Network,
    q: int,
    targets: Sequence[int] | None = None,
    node_limit: int = 2_000_000,
    progress: Callable[[int], None] | None = None,
) -> Worst:
    """Maximise (Sigma^-1)_ii of what is left when q nodes go with their edges, over those nodes and
    over the targets i left.

    `targets` are the users to protect: by default everyone; one is enough where all are alike, and
    `per_user` then repeats its value. `node_limit` counts branches, not seconds: the same call
    always gives the same answer.
    """
    n = network.nodes
    if not 2 <= q < n:
        raise InputError(
            f"a coalition of {q} among {n} users cannot be searched: give 2 to {n - 1} colluders"
        )
    users = list(range(n)) if targets is None else [int(i) for i in targets]
    search = _Search(network, q, node_limit, progress)
    proved = search.root_bounds()
    rest = []
    for i in sorted(users, key=lambda i: (-proved[i], i)):
        neighbours = tuple(search.views.neighbours(i).tolist())
        # they leave it alone with its own noise: nothing can be worse for it
        if len(neighbours) <= q:
            search.offer(1 / network.ground[i], i, neighbours)
        else:
            rest.append(i)
    for i in rest[:GREEDY_USERS]:
        search.dive(i)
    for i in rest:
        if proved[i] <= search.goal:
            break
        proved[i] = min(proved[i], search.explore(i))
    coalition = search.padded()
    attained, error = search.from_scratch(search.user, coalition)
    lower, upper = attained * (1 - error), attained * (1 + error)
    if proved[users].max() > lower * (1 + TOLERANCE):
        proved = np.minimum(proved, _ceiling(network, q))
    value = float(max(upper, proved[users].max()))
    proved[np.setdiff1d(np.arange(n), users)] = value
    return Worst(
        value, lower, search.user, coalition, value <= lower * (1 + TOLERANCE), search.nodes, proved
    )


class _Search:
    """The best coalition so far, and the way to a better one."""

    def __init__(
        self, network: Network, q: int, limit: int, progress: Callable[[int], None] | None
    ) -> None:
        self.network, self.q, self.limit, self.progress = network, q, limit, progress
        self.views = _Views(network, q)
        self.flows = np.empty((network.nodes, network.nodes))
        self.nodes = 0
        self.lower = 0.0
        self.user = -1
        self.coalition: tuple[int, ...] = ()

    @property
    def goal(self) -> float:
        """What is bounded by this is not noticeably worse than the best coalition so far."""
        return self.lower * (1 + PRUNING)

    def offer(self, lower: float, user: int, coalition: tuple[int, ...]) -> None:
        if lower > self.lower:
            self.lower, self.user, self.coalition = lower, user, coalition

    def padded(self) -> tuple[int, ...]:
        """More colluders never hurt a coalition: fill up to q with users other than the victim."""
        others = [
            v for v in range(self.network.nodes) if v != self.user and v not in self.coalition
        ]
        return tuple(sorted((*self.coalition, *others[: self.q - len(self.coalition)])))

    def from_scratch(self, user: int, removed: tuple[int, ...]) -> tuple[float, float]:
        """R_user without `removed`, and its relative error."""
        left, kept = self.network.without(removed)
        G = dense.inverse(left.dense(), left.ground)
        i = int(np.searchsorted(kept, user))
        return float(G[i, i]), dense.relative_error(left.nodes) + 4 * UNIT_ROUNDOFF

    def root_bounds(self) -> Floats:
        """For every user the flow bound on R_i over all coalitions (see the kernels)."""
        wires, n = self.views.wires, self.network.nodes
        G = dense.inverse(self.views.K, wires.ground)
        blur = dense.entry_error(n) + 4 * UNIT_ROUNDOFF
        size = (1 + blur) * np.sqrt(G.diagonal())
        through = np.zeros((n, n))
        for v in range(n):
            N = self.views.neighbours(v)
            drop = G[N] - G[v] + blur * np.multiply.outer(size[N] + size[v], size)
            through[v] = self.views.K[v, N] @ np.maximum(drop, 0.0)
        np.fill_diagonal(through, 0.0)
        most = (1 + 1e-12) * np.partition(through, n - self.q, axis=0)[n - self.q :].sum(axis=0)
        conductance = np.maximum((1 - most) / (G.diagonal() * (1 + 2 * blur)), wires.ground)
        return np.asarray((1 + 4 * UNIT_ROUNDOFF) / conductance)

    def dive(self, i: int) -> None:
        """Follow the most damaging deletion down to the last two, which are searched."""
        self._settle(i, tuple(self.views.neighbours(i)[: self.q].tolist()))
        target, state = self.views.root(i)
        removed: tuple[int, ...] = ()
        candidates = _others(state, i)
        for r in range(self.q, 2, -1):
            order, _ = branch_kernels.survey(
                self.views.wires, target, state, candidates, r, self.goal, self.flows
            )
            removed += (int(order[0]),)
            state = self.views.child(target, state, removed)
            candidates = _others(state, i)
        self._expand(target, state, removed, candidates, 2)

    def explore(self, i: int) -> float:
        """Search all coalitions against user i; a bound on R_i over all of them."""
        target, state = self.views.root(i)
        return self._expand(target, state, (), _others(state, i), self.q)

    def _expand(
        self, target: Target, state: State, removed: tuple[int, ...], candidates: Ints, r: int
    ) -> float:
        """A bound on R_i over `removed` with r candidates more: searched, until the limit
        is met.
        """
        self.nodes += 1
        if self.progress is not None:
            self.progress(self.nodes)
        candidates = candidates[state.alive[candidates]]
        if candidates.size < r:
            return 0.0
        order, bounds = branch_kernels.survey(
            self.views.wires, target, state, candidates, r, self.goal, self.flows
        )
        reached = 0.0
        for a, bound in enumerate(bounds):
            if bound <= self.goal or self.nodes >= self.limit:
                return max(reached, float(bound))
            longer = (*removed, int(order[a]))
            if r == 2:
                reached = max(reached, self._last(target, state, longer, order[a + 1 :]))
            else:
                child = self.views.child(target, state, longer)
                reached = max(reached, self._expand(target, child, longer, order[a + 1 :], r - 1))
        return reached

    def _last(
        self, target: Target, state: State, removed: tuple[int, ...], candidates: Ints
    ) -> float:
        """The same where one more is deleted beside the last of `removed`, whose inverse need not
        be written out.
        """
        self.nodes += 1
        U, child, sound = branch_kernels.delete(self.views.wires, target, state, removed[-1])
        if not sound:
            child = self.views.eliminated(target, removed, np.empty_like(state.H))
            U = np.empty((0, state.x.size))
            candidates = candidates[child.alive[candidates]]
        best, winner, blurred = branch_kernels.leaves(
            self.views.wires, target, child, U, candidates, self.lower, PRUNING
        )
        if winner >= 0:
            self.offer(best, target.user, (*removed, int(winner)))
        reached = self.goal
        for w in blurred.tolist():
            if self.nodes >= self.limit:
                return 1 / float(self.network.ground[target.user])
            self.nodes += 1
            reached = max(reached, self._settle(target.user, (*removed, w)))
        return reached

    def _settle(self, user: int, coalition: tuple[int, ...]) -> float:
        value, error = self.from_scratch(user, coalition)
        self.offer(value * (1 - error), user, coalition)
        return value * (1 + error)


def _others(state: State, i: int) -> Ints:
    return np.flatnonzero(state.alive & (np.arange(state.alive.size) != i))


class _Views:
    """The network as seen from one user after another, grounded at that user (see the kernels)."""

    def __init__(self, network: Network, q: int) -> None:
        n = network.nodes
        lists = network.neighbour_lists()
        start = np.cumsum([0, *(N.size for N, _ in lists)], dtype=np.int64)
        other, weight = (np.concatenate(parts) for parts in zip(*lists, strict=True))
        self.wires = branch_kernels.Wires(
            start, other, weight, network.ground, int(np.diff(start).max())
        )
        self.K, self.q = network.dense(), q
        self.levels = [np.zeros((n, n)) for _ in range(q - 1)]
        self.reference: tuple[Floats, Floats, float] | None = None
        if self._component(0, ()).all():
            _, H, _ = self._grounded(0, (), np.empty((n, n)))
            w = H @ self.K[0]
            w[0] = 1.0
            self.reference = H, w, 1 / float(network.ground @ w)

    def neighbours(self, i: int) -> Ints:
        found: Ints = self.wires.other[self.wires.start[i] : self.wires.start[i + 1]]
        return found

    def root(self, i: int) -> tuple[Target, State]:
        """The whole network seen from i, read by the probe that errs less."""
        alive, H, e = self._regrounded(i) or self._grounded(i, (), self.levels[0])
        t = _sizes(H)
        targets = []
        for values, lean, own in (
            (self.wires.ground, -1.0, 0.0),
            (self.K[i], 1.0, self.wires.ground[i]),
        ):
            floor = (values.size + 16 * (self.q + 2)) * UNIT_ROUNDOFF * float(values.sum() + own)
            targets.append(
                Target(i, np.where(np.arange(values.size) == i, 0.0, values), lean, floor)
            )
        target = min(targets, key=lambda target: float(target.p @ t))
        return target, self._read(target, alive, H, e)

    def child(self, target: Target, state: State, removed: tuple[int, ...]) -> State:
        """The state once the last of `removed` is deleted, in the matrix of its level."""
        room = self.levels[len(removed)]
        U, child, sound = branch_kernels.delete(self.wires, target, state, removed[-1])
        if not sound:
            return self.eliminated(target, removed, room)
        branch_kernels.update(state.H, U, removed[-1], room)
        return State(child.alive, room, *child[2:])

    def eliminated(self, target: Target, removed: tuple[int, ...], room: Floats) -> State:
        """The state without `removed`, from scratch."""
        return self._read(target, *self._grounded(target.user, removed, room))

    def _regrounded(self, i: int) -> tuple[branch_kernels.Flags, Floats, float] | None:
        """The whole network grounded at i, from what is known of it grounded at user 0: n^2 where
        elimination takes n^3.

        Grounding i too takes aa'/a_i from H, a its column i; letting user 0 float again adds vv' R
        a_i / G_ii, v being the potential when 0 is at one volt and i at none. Checked by the
        residual; None where that is not good enough.
        """
        if self.reference is None:
            return None
        room = self.levels[0]
        H, w, R = self.reference
        if i == 0:
            room[:] = H
        else:
            a = H[i]
            v = w - (w[i] / a[i]) * a
            np.multiply.outer(v * (R * a[i] / (a[i] + R * w[i] ** 2)), v, out=room)
            room += H
            room -= np.multiply.outer(a / a[i], a)
            room[i, :] = room[:, i] = 0.0
        others = np.arange(w.size) != i
        if not (room.diagonal()[others] > 0).all():
            return None
        t = _sizes(room)
        f = branch_kernels.residual(self.wires, i, room, t)
        e = 1.02 * float(np.max((np.abs(room) @ f)[others] / t[others]))
        # |error| <= (H f)_j t_k with the true H, and H f <= |computed H| f / (1 - t'f)
        good = t @ f < 0.01 and e < dense.entry_error(w.size)
        return (np.ones(w.size, dtype=bool), room, e) if good else None

    def _grounded(
        self, user: int, removed: tuple[int, ...], room: Floats
    ) -> tuple[branch_kernels.Flags, Floats, float]:
        """The network grounded at the user, from scratch; only its component, for nobody else
        matters to it.
        """
        alive = self._component(user, removed)
        kept = np.flatnonzero(alive)
        kept = kept[kept != user]
        room[:] = 0.0
        within = np.ix_(kept, kept)
        room[within] = dense.inverse(self.K[within], self.wires.ground[kept] + self.K[kept, user])
        return alive, room, dense.entry_error(kept.size)

    def _read(self, target: Target, alive: branch_kernels.Flags, H: Floats, e: float) -> State:
        user, p, lean, _ = target
        t, x = _sizes(H), H @ p
        if lean < 0:
            total = self.wires.ground[alive].sum()
        else:
            total, x[user] = self.wires.ground[user] + self.K[user, alive].sum(), 1.0
        # Beside what H has: x is summed over n nodes and updated q times with `degree` terms, and
        # each deletion passes these roundings on to d, twice over as x stands on either side of
        # p'Hp.
        e += (4 * self.q * (x.size + 8) + 6 * self.q**2 * (self.wires.degree + 4)) * UNIT_ROUNDOFF
        return State(alive, H, x, t, e, float(p @ t), float(total - p @ x))

    def _component(self, user: int, removed: tuple[int, ...]) -> branch_kernels.Flags:
        allowed = np.ones(self.K.shape[0], dtype=bool)
        allowed[list(removed)] = False
        inside = np.zeros_like(allowed)
        frontier = np.array([user])
        while frontier.size:
            inside[frontier] = True
            frontier = np.flatnonzero((self.K[frontier] > 0).any(axis=0) & allowed & ~inside)
        return inside


def _sizes(H: Floats) -> Floats:
    """t with |H_jk| <= t_j t_k, whatever small error H has."""
    return np.asarray(1.001 * np.sqrt(H.diagonal()))


def _ceiling(network: Network, q: int) -> float:
    """A bound for everyone from how well connected the graph is, for where the search was cut
    short.

    With equal ground s, R_i <= 1/(n' s) + (1 - 1/n') / (s + a), a the algebraic connectivity of
    what is left on n' nodes. With equal conductances c that is at least c (a(G) - q) (Fiedler); and
    if no q deletions disconnect the graph, at least 4 c / n'^2 with c the least conductance (Mohar:
    4 / (n' diameter)).
    """
    s, c, left = network.ground[0], network.conductance, network.nodes - q
    if not (network.ground == s).all() or c.size == 0:
        return float("inf")
    graph = nx.Graph(network.edges.tolist())
    graph.add_nodes_from(range(network.nodes))
    a = 0.0
    if (c == c[0]).all():
        spectrum = np.linalg.eigvalsh(nx.laplacian_matrix(graph).toarray().astype(np.float64))
        a = c[0] * max(0.0, spectrum[1] - 1e-14 * network.nodes * spectrum[-1] - q)
    if network.nodes <= CONNECTIVITY_USERS and nx.node_connectivity(graph) > q:
        a = max(a, 4 * c.min() / left**2)
    return float((1 / (left * s) + (1 - 1 / left) / (s + a)) * (1 + 8 * UNIT_ROUNDOFF))
