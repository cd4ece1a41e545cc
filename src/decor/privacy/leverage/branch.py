"""The worst coalition of q >= 2 users: exact by branch and bound, certified in floating point."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import networkx as nx
import numpy as np

from decor.array_types import Floats, Ints
from decor.errors import InputError

from . import branch_kernels, dense
from .branch_kernels import CsrNetwork, Flags, State, Target
from .deletion import pad
from .network import UNIT_ROUNDOFF, Network

TOLERANCE = 1e-9
"""A bound this close above an attained value is called exact."""

PRUNING = TOLERANCE / 4
"""A branch that could beat the best coalition by no more than this is not searched."""

CONNECTIVITY_USERS = 300
"""Most users for which the vertex connectivity is computed (half a second)."""

GREEDY_USERS = 8
"""Users against whom a good coalition is sought greedily before the search: it prunes better."""


@dataclass(frozen=True)
class SearchResult:
    """The most that q colluding users can expose a target.

    Attributes:
        value: Upper bound over all coalitions and targets.
        lower: What `coalition` surely attains against `user`.
        user: The most exposed target found.
        coalition: The worst coalition found.
        exact: Whether `value` is `lower` to a relative 1e-9; if not, the search was cut short.
        nodes: Branches searched.
        per_user: Upper bound over all coalitions for each user.

    Guarantee: no coalition exposes any target beyond `value`, nor target i beyond `per_user[i]`.
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
) -> SearchResult:
    """Maximises (Sigma^-1)_ii of the network without q nodes, over the nodes and the targets i.

    Args:
        network: The noise of one phase.
        q: Number of colluders, from 2 to one less than the nodes.
        targets: The users to protect; by default all of them. One is enough where all users are
            alike, and `per_user` then repeats its value.
        node_limit: Most branches to search; a count and not a time, so that the same call always
            gives the same answer.
        progress: Called with the number of branches so far.
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
        # as colluders they leave user i with its own noise: nothing is worse for it
        if len(neighbours) <= q:
            search.offer(1 / network.ground[i], i, neighbours)
        else:
            rest.append(i)
    for i in rest[:GREEDY_USERS]:
        search.dive(i)
    for i in rest:
        # in order of falling bounds: all users after this one are below the goal too
        if proved[i] <= search.goal:
            break
        proved[i] = min(proved[i], search.explore(i))
    coalition = pad(search.coalition, search.user, q, n)
    attained, error = search.from_scratch(search.user, coalition)
    lower, upper = attained * (1 - error), attained * (1 + error)
    if proved[users].max() > lower * (1 + TOLERANCE):
        proved = np.minimum(proved, _connectivity_bound(network, q))
    value = float(max(upper, proved[users].max()))
    # the targets stand for all users
    proved[np.setdiff1d(np.arange(n), users)] = value
    exact = value <= lower * (1 + TOLERANCE)
    return SearchResult(value, lower, search.user, coalition, exact, search.nodes, proved)


class _Search:
    """The best coalition so far, and the search for a better one."""

    def __init__(
        self, network: Network, q: int, limit: int, progress: Callable[[int], None] | None
    ) -> None:
        self.network, self.q, self.limit, self.progress = network, q, limit, progress
        self.views = _Views(network, q)
        self.flows = np.empty((network.nodes, network.nodes))  # work space of `survey`
        self.nodes = 0
        self.lower = 0.0
        self.user = -1
        self.coalition: tuple[int, ...] = ()

    @property
    def goal(self) -> float:
        """A bound up to this is not noticeably worse than the best coalition so far."""
        return self.lower * (1 + PRUNING)

    def offer(self, lower: float, user: int, coalition: tuple[int, ...]) -> None:
        """Keeps a coalition that surely attains more than the best so far."""
        if lower > self.lower:
            self.lower, self.user, self.coalition = lower, user, coalition

    def from_scratch(self, user: int, removed: tuple[int, ...]) -> tuple[float, float]:
        """R_user without `removed`, by a new elimination, and its relative error."""
        left, kept = self.network.without(removed)
        G = dense.inverse(left.dense(), left.ground)
        i = int(np.searchsorted(kept, user))
        return float(G[i, i]), dense.relative_error(left.nodes) + 4 * UNIT_ROUNDOFF

    def root_bounds(self) -> Floats:
        """For each user the flow bound on R_i over all coalitions (see the kernels)."""
        csr, n = self.views.csr, self.network.nodes
        G = dense.inverse(self.views.K, csr.ground)
        blur = dense.entry_error(n) + 4 * UNIT_ROUNDOFF
        size = (1 + blur) * np.sqrt(G.diagonal())
        # through[v, i]: upper bound on the current through v when one unit enters at i
        through = np.zeros((n, n))
        for v in range(n):
            N = self.views.neighbours(v)
            drop = G[N] - G[v] + blur * np.multiply.outer(size[N] + size[v], size)
            through[v] = self.views.K[v, N] @ np.maximum(drop, 0.0)
        np.fill_diagonal(through, 0.0)
        most = (1 + 1e-12) * np.partition(through, n - self.q, axis=0)[n - self.q :].sum(axis=0)
        conductance = np.maximum((1 - most) / (G.diagonal() * (1 + 2 * blur)), csr.ground)
        return np.asarray((1 + 4 * UNIT_ROUNDOFF) / conductance)

    def dive(self, i: int) -> None:
        """Follows the most damaging deletion down to the last two, which are searched."""
        # neighbours are the first guess; it makes the surveys prune from the start
        self._settle(i, tuple(self.views.neighbours(i)[: self.q].tolist()))
        target, state = self.views.root(i)
        removed: tuple[int, ...] = ()
        candidates = _others(state, i)
        for r in range(self.q, 2, -1):
            order, _ = branch_kernels.survey(
                self.views.csr, target, state, candidates, r, self.goal, self.flows
            )
            removed += (int(order[0]),)
            state = self.views.child(target, state, removed)
            candidates = _others(state, i)
        self._expand(target, state, removed, candidates, 2)

    def explore(self, i: int) -> float:
        """Searches all coalitions against user i; returns a bound on R_i over all of them."""
        target, state = self.views.root(i)
        return self._expand(target, state, (), _others(state, i), self.q)

    def _expand(
        self, target: Target, state: State, removed: tuple[int, ...], candidates: Ints, r: int
    ) -> float:
        """A bound on R_i without `removed` and r candidates more; searches up to the limit."""
        self.nodes += 1
        if self.progress is not None:
            self.progress(self.nodes)
        candidates = candidates[state.alive[candidates]]
        if candidates.size < r:
            return 0.0
        order, bounds = branch_kernels.survey(
            self.views.csr, target, state, candidates, r, self.goal, self.flows
        )
        reached = 0.0
        # branch a holds the sets whose first member, in this order, is order[a]
        for a, bound in enumerate(bounds):
            # bounds[a] covers all sets within order[a:]: this branch and those that are left
            if bound <= self.goal or self.nodes >= self.limit:
                return max(reached, float(bound))
            longer = (*removed, int(order[a]))
            if r == 2:
                reached = max(reached, self._leaf(target, state, longer, order[a + 1 :]))
            else:
                child = self.views.child(target, state, longer)
                reached = max(reached, self._expand(target, child, longer, order[a + 1 :], r - 1))
        return reached

    def _leaf(
        self, target: Target, state: State, removed: tuple[int, ...], candidates: Ints
    ) -> float:
        """`_expand` for one more deletion after the last of `removed`.

        The inverse without that last one need not be written out.
        """
        self.nodes += 1
        U, child, sound = branch_kernels.delete(self.views.csr, target, state, removed[-1])
        if not sound:  # nearly a cut vertex
            child = self.views.eliminate(target, removed, np.empty_like(state.H))
            U = np.empty((0, state.x.size))
            candidates = candidates[child.alive[candidates]]
        best, winner, blurred = branch_kernels.leaves(
            self.views.csr, target, child, U, candidates, self.lower, PRUNING
        )
        if winner >= 0:
            self.offer(best, target.user, (*removed, int(winner)))
        reached = self.goal
        # whether these beat the best is lost in rounding: each needs a new elimination
        for w in blurred.tolist():
            if self.nodes >= self.limit:
                return 1 / float(self.network.ground[target.user])
            self.nodes += 1
            reached = max(reached, self._settle(target.user, (*removed, w)))
        return reached

    def _settle(self, user: int, coalition: tuple[int, ...]) -> float:
        """An upper bound on R_user against the coalition, by a new elimination; offers it too."""
        value, error = self.from_scratch(user, coalition)
        self.offer(value * (1 - error), user, coalition)
        return value * (1 + error)


def _others(state: State, i: int) -> Ints:
    return np.flatnonzero(state.alive & (np.arange(state.alive.size) != i))


class _Views:
    """The network grounded at one user after another (see the kernels)."""

    def __init__(self, network: Network, q: int) -> None:
        n = network.nodes
        lists = network.neighbour_lists()
        start = np.cumsum([0, *(N.size for N, _ in lists)], dtype=np.int64)
        other, weight = (np.concatenate(parts) for parts in zip(*lists, strict=True))
        degree = int(np.diff(start).max())
        self.csr = CsrNetwork(start, other, weight, network.ground, degree)
        self.K, self.q = network.dense(), q
        # one matrix per depth of the search, written over and over
        self.levels = [np.zeros((n, n)) for _ in range(q - 1)]
        # user 0's view, from which `_reground` derives the others; only if the graph is connected
        self.reference: tuple[Floats, Floats, float] | None = None
        if self._component(0, ()).all():
            _, H, _ = self._ground(0, (), np.empty((n, n)))
            w = H @ self.K[0]
            w[0] = 1.0
            self.reference = H, w, 1 / float(network.ground @ w)

    def neighbours(self, i: int) -> Ints:
        neighbours: Ints = self.csr.other[self.csr.start[i] : self.csr.start[i + 1]]
        return neighbours

    def root(self, i: int) -> tuple[Target, State]:
        """The whole network seen from i, read by the probe with the smaller error."""
        alive, H, e = self._reground(i) or self._ground(i, (), self.levels[0])
        t = _sizes(H)
        ground_probe = (self.csr.ground, -1.0, 0.0)
        edge_probe = (self.K[i], 1.0, self.csr.ground[i])
        targets = []
        for values, lean, own in (ground_probe, edge_probe):
            floor = (values.size + 16 * (self.q + 2)) * UNIT_ROUNDOFF * float(values.sum() + own)
            p = np.where(np.arange(values.size) == i, 0.0, values)
            targets.append(Target(i, p, lean, floor))
        target = min(targets, key=lambda target: float(target.p @ t))
        return target, self._read(target, alive, H, e)

    def child(self, target: Target, state: State, removed: tuple[int, ...]) -> State:
        """The state once the last of `removed` is deleted, in the matrix of its level."""
        out = self.levels[len(removed)]
        U, child, sound = branch_kernels.delete(self.csr, target, state, removed[-1])
        if not sound:
            return self.eliminate(target, removed, out)
        branch_kernels.update(state.H, U, removed[-1], out)
        return State(child.alive, out, *child[2:])

    def eliminate(self, target: Target, removed: tuple[int, ...], out: Floats) -> State:
        """The state without `removed`, by a new elimination, written into `out`."""
        return self._read(target, *self._ground(target.user, removed, out))

    def _reground(self, i: int) -> tuple[Flags, Floats, float] | None:
        """The whole network grounded at i, from the network grounded at user 0.

        This takes n^2 operations, and elimination n^3. Grounding i too subtracts aa'/a_i from H,
        with a its column i. Releasing user 0 adds vv' R a_i / G_ii, with v the potentials when
        user 0 is at one volt and i at none. The residual gives the error; None if that is too
        large.
        """
        if self.reference is None:
            return None
        out = self.levels[0]
        H, w, R = self.reference
        if i == 0:
            out[:] = H
        else:
            a = H[i]
            v = w - (w[i] / a[i]) * a
            np.multiply.outer(v * (R * a[i] / (a[i] + R * w[i] ** 2)), v, out=out)
            out += H
            out -= np.multiply.outer(a / a[i], a)
            out[i, :] = out[:, i] = 0.0
        others = np.arange(w.size) != i
        if not (out.diagonal()[others] > 0).all():
            return None
        t = _sizes(out)
        f = branch_kernels.residual(self.csr, i, out, t)
        e = 1.02 * float(np.max((np.abs(out) @ f)[others] / t[others]))
        # |error| <= (H f)_j t_k with the true H, and H f <= |computed H| f / (1 - t'f)
        good = t @ f < 0.01 and e < dense.entry_error(w.size)
        return (np.ones(w.size, dtype=bool), out, e) if good else None

    def _ground(
        self, user: int, removed: tuple[int, ...], out: Floats
    ) -> tuple[Flags, Floats, float]:
        """The user's component grounded at the user, by elimination; the rest plays no part."""
        alive = self._component(user, removed)
        kept = np.flatnonzero(alive)
        kept = kept[kept != user]
        out[:] = 0.0  # rows and columns of the user and of deleted nodes stay zero
        within = np.ix_(kept, kept)
        out[within] = dense.inverse(self.K[within], self.csr.ground[kept] + self.K[kept, user])
        return alive, out, dense.entry_error(kept.size)

    def _read(self, target: Target, alive: Flags, H: Floats, e: float) -> State:
        user, p, lean, _ = target
        t, x = _sizes(H), H @ p
        if lean < 0:
            total = self.csr.ground[alive].sum()
        else:
            total, x[user] = self.csr.ground[user] + self.K[user, alive].sum(), 1.0
        # Beside the error of H: x is a sum over n nodes, updated q times with `degree` terms. Each
        # deletion passes these roundings on to d, twice over as x stands on either side of p'Hp.
        e += (4 * self.q * (x.size + 8) + 6 * self.q**2 * (self.csr.degree + 4)) * UNIT_ROUNDOFF
        return State(alive, H, x, t, e, float(p @ t), float(total - p @ x))

    def _component(self, user: int, removed: tuple[int, ...]) -> Flags:
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


def _connectivity_bound(network: Network, q: int) -> float:
    """A bound for every user from the graph's connectivity, for a search that was cut short.

    With equal ground s, R_i <= 1/(n' s) + (1 - 1/n') / (s + a), where a is the algebraic
    connectivity of the n' nodes left. With equal conductances c, a >= c (a(G) - q) (Fiedler). If no
    q deletions disconnect the graph, a >= 4 c / n'^2 with c the least conductance (Mohar:
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
        # less the rounding error of eigvalsh
        a = c[0] * max(0.0, spectrum[1] - 1e-14 * network.nodes * spectrum[-1] - q)
    if network.nodes <= CONNECTIVITY_USERS and nx.node_connectivity(graph) > q:
        a = max(a, 4 * c.min() / left**2)
    return float((1 / (left * s) + (1 - 1 / left) / (s + a)) * (1 + 8 * UNIT_ROUNDOFF))
