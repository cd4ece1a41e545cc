"""In which order a sparse network is best eliminated: approximate least degree, in blocks, down to
a dense core.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from decor.arrays import Ints
from decor.errors import CannotBound

CORE_LIMIT = 16_000
"""Most nodes the dense core may have: 2 GB for each of the several matrices its inverse needs."""

# The nodes left are the core once the least degree exceeds this share of their number. Random
# graphs are fastest at 0.25 (their blocks have one node), grids at 0.7 (theirs have many, which
# BLAS likes); neither loses a quarter here.
_CORE_SHARE = 0.4
# A node with more neighbours than this many times sqrt(nodes) waits for the core: its list would be
# read at every step.
_HUB = 10


class Analysis(NamedTuple):
    """What elimination needs to know of a graph before its conductances: order, blocks, and where
    each edge enters.

    Nodes are known by their place in `order`. Block b eliminates the nodes from `first[b]` to
    `first[b + 1]`; its front is these and then their neighbours when they go,
    `rows[row_first[b]:row_first[b + 1]]`. What it leaves among the neighbours is taken by the front
    of block `parent[b]` (the number of blocks if that is the core, -1 without neighbours). Children
    come before parents, and all blocks that end up in b are those from `low[b]` to b. Nodes from
    `first[-1]` are the core.
    """

    edges: Ints
    order: Ints
    first: Ints
    row_first: Ints
    rows: Ints
    parent: Ints
    low: Ints
    # where each block leaves its network for the parent; at the end, the size of this stack
    stack: Ints
    factor: Ints  # where the factor of each block begins; at the end, the size of them all
    edge_order: Ints
    edge_first: Ints  # of each block in `edge_order`; at the end, of the core
    ends: Ints  # by `edge_order`, the node that goes first and the other

    @property
    def core(self) -> int:
        """Number of nodes inverted densely."""
        return int(self.order.size - self.first[-1])


def analyse(nodes: int, edges: Ints) -> Analysis:
    """Order and blocks of a graph; raises CannotBound, before memory is taken, if its core exceeds
    CORE_LIMIT.
    """
    edges = np.array(edges, dtype=np.int64).reshape(-1, 2)
    neighbour = edges[:, ::-1].reshape(-1)[np.argsort(edges.reshape(-1), kind="stable")]
    start = np.append(0, np.cumsum(np.bincount(edges.reshape(-1), minlength=nodes)))
    gone, first, row_first, rows, parent = _least_degree_order(
        start, neighbour, int(_HUB * nodes**0.5), _CORE_SHARE
    )
    if (core := nodes - gone.size) > CORE_LIMIT:
        raise CannotBound(
            f"a graph of {nodes} nodes and {len(edges)} edges comes down to {core} nodes nearly "
            "all joined to one another, "
            f"and their dense inverse takes at most {CORE_LIMIT}. Use fewer nodes, fewer edges, "
            "or a graph with small cuts."
        )
    k, r = np.diff(first), np.diff(row_first)
    parent[(parent < 0) & (r > 0)] = parent.size
    number, low = _postorder(parent)
    left = np.ones(nodes, dtype=bool)
    left[gone] = False
    order = np.append(gone[np.argsort(np.repeat(number, k), kind="stable")], np.flatnonzero(left))
    position = np.empty(nodes, dtype=np.int64)
    position[order] = np.arange(nodes)
    # sorted within each block, so that above the diagonal of a front is above the diagonal of its
    # parent's
    rows = np.sort(np.repeat(number, r) * nodes + position[rows]) % max(nodes, 1)
    by_number = np.argsort(number)
    parent = np.append(number, [parent.size, -1])[parent[by_number]]
    k, r = k[by_number], r[by_number]
    first, row_first, factor = (np.append(0, np.cumsum(sizes)) for sizes in (k, r, k * (k + r)))
    i, j = position[edges].T
    edge_order = np.argsort(np.minimum(i, j), kind="stable")
    ends = np.column_stack([np.minimum(i, j), np.maximum(i, j)])[edge_order]
    edge_first = np.searchsorted(ends[:, 0], first)
    stack = _stack(parent, low, r)
    return Analysis(
        edges,
        order,
        first,
        row_first,
        rows,
        parent,
        low,
        stack,
        factor,
        edge_order,
        edge_first,
        ends,
    )


@njit(cache=True)
def _least_degree_order(
    start: Ints, lists: Ints, hub: int, core_share: float
) -> tuple[Ints, Ints, Ints, Ints, Ints]:
    """Approximate minimum degree (Amestoy, Davis and Duff) up to the core: nodes in order, and
    blocks as in Analysis.

    The list of a node, at first its neighbours, soon has the blocks that it is a row of in front
    and other neighbours at the back. It never grows: a new block takes the place of a node that it
    eliminates or of a block that it absorbs.
    """
    nodes = start.size - 1
    # how many of each are in a node's list
    blocks, others = np.zeros(nodes, np.int64), np.empty(nodes, np.int64)
    degree = np.empty(nodes, np.int64)  # an upper bound; `nodes` for a hub
    # chains of nodes of equal degree
    head, after, before = np.full(nodes, -1), np.full(nodes, -1), np.full(nodes, -1)
    seen = np.full(nodes, -1)  # the last block with the node in its front
    parent = np.full(nodes, -1)
    # rows of a block outside the front of the newest
    counted, outside = np.full(nodes, -1), np.empty(nodes, np.int64)
    order = np.empty(nodes, np.int64)
    first, row_first = np.zeros(nodes + 1, np.int64), np.zeros(nodes + 1, np.int64)
    rows = np.empty(lists.size + nodes, np.int64)
    for i in range(nodes - 1, -1, -1):
        others[i] = start[i + 1] - start[i]
        degree[i] = others[i] if others[i] <= hub else nodes
        if degree[i] < nodes:
            _enter(i, degree[i], head, after, before)
    # a plain 0 has a type of its own, for which all would be compiled twice
    done = b = least = np.int64(0)
    while True:
        while least < nodes and head[least] < 0:
            least += 1
        if least == nodes or least > core_share * (nodes - done):
            return (
                order[:done],
                first[: b + 1],
                row_first[: b + 1],
                rows[: row_first[b]],
                parent[:b],
            )
        if rows.size < row_first[b] + nodes - done:
            rows = _longer(rows, row_first[b], row_first[b] + nodes)
        node = order[done] = head[least]
        done += 1
        _leave(node, least, head, after, before)
        begin, end = (
            row_first[b],
            _find_rows(b, node, start, lists, blocks, others, seen, parent, row_first, rows),
        )
        for at in range(begin, end):
            if degree[rows[at]] < nodes:
                _count_outside(
                    b, rows[at], start, lists, blocks, parent, row_first, counted, outside
                )
        keep = begin
        for at in range(begin, end):
            i = rows[at]
            if degree[i] < nodes:
                _leave(i, degree[i], head, after, before)
                beyond = _prune(b, i, start, lists, blocks, others, seen, parent, outside)
                if beyond == 0:
                    order[done] = i
                    done += 1
                    continue
                degree[i] = min(degree[i], beyond)
            rows[keep] = i
            keep += 1
        for at in range(begin, keep):
            i = rows[at]
            if degree[i] < nodes:
                degree[i] = min(degree[i] + keep - begin, nodes - done) - 1
                least = min(least, degree[i])
                _enter(i, degree[i], head, after, before)
        b += 1
        first[b], row_first[b] = done, keep


@njit(cache=True)
def _longer(rows: Ints, used: int, room: int) -> Ints:
    longer = np.empty(used + room, np.int64)
    for at in range(used):
        longer[at] = rows[at]
    return longer


@njit(cache=True)
def _enter(i: int, degree: int, head: Ints, after: Ints, before: Ints) -> None:
    after[i], before[i] = head[degree], -1
    if after[i] >= 0:
        before[after[i]] = i
    head[degree] = i


@njit(cache=True)
def _leave(i: int, degree: int, head: Ints, after: Ints, before: Ints) -> None:
    if before[i] >= 0:
        after[before[i]] = after[i]
    else:
        head[degree] = after[i]
    if after[i] >= 0:
        before[after[i]] = before[i]


@njit(cache=True)
def _find_rows(
    b: int,
    node: int,
    start: Ints,
    lists: Ints,
    blocks: Ints,
    others: Ints,
    seen: Ints,
    parent: Ints,
    row_first: Ints,
    rows: Ints,
) -> int:
    """Writes the neighbours of a node as rows of block b, which absorbs the blocks in its list;
    returns their end.
    """
    end: int = row_first[b]
    seen[node] = b
    for at in range(start[node], start[node] + blocks[node]):
        e = lists[at]
        if parent[e] < 0:
            parent[e] = b
            for row in range(row_first[e], row_first[e + 1]):
                if seen[rows[row]] != b:
                    seen[rows[row]] = b
                    rows[end] = rows[row]
                    end += 1
    for at in range(start[node + 1] - others[node], start[node + 1]):
        if seen[lists[at]] != b:
            seen[lists[at]] = b
            rows[end] = lists[at]
            end += 1
    return end


@njit(cache=True)
def _count_outside(
    b: int,
    i: int,
    start: Ints,
    lists: Ints,
    blocks: Ints,
    parent: Ints,
    row_first: Ints,
    counted: Ints,
    outside: Ints,
) -> None:
    """Notes for each block in the list of i that this row of it is in the front of block b."""
    for at in range(start[i], start[i] + blocks[i]):
        e = lists[at]
        if parent[e] < 0:
            if counted[e] != b:
                counted[e] = b
                outside[e] = row_first[e + 1] - row_first[e]
            outside[e] -= 1


@njit(cache=True)
def _prune(
    b: int,
    i: int,
    start: Ints,
    lists: Ints,
    blocks: Ints,
    others: Ints,
    seen: Ints,
    parent: Ints,
    outside: Ints,
) -> int:
    """Replaces by b all that its front contains in the list of i, and bounds the degree of i
    outside that front.
    """
    degree: int = 0
    end = start[i]
    for at in range(start[i], start[i] + blocks[i]):
        e = lists[at]
        if parent[e] < 0:
            if outside[e] == 0:
                parent[e] = b
            else:
                degree += outside[e]
                lists[end] = e
                end += 1
    begin = start[i + 1]
    for at in range(start[i + 1] - 1, start[i + 1] - others[i] - 1, -1):
        if seen[lists[at]] != b:
            degree += 1
            begin -= 1
            lists[begin] = lists[at]
    lists[end] = b
    blocks[i] = end + 1 - start[i]
    others[i] = start[i + 1] - begin
    return degree


@njit(cache=True)
def _postorder(parent: Ints) -> tuple[Ints, Ints]:
    """New numbers of blocks, by which those that end up in a block directly precede it, and `low`
    by these numbers.
    """
    blocks = parent.size
    # the last entry, which -1 is too, stands for all that have no block as parent
    size = np.ones(blocks + 1, np.int64)
    for b in range(blocks):
        size[parent[b]] += size[b]
    number, low, free = (
        np.empty(blocks, np.int64),
        np.empty(blocks, np.int64),
        np.empty(blocks + 1, np.int64),
    )
    free[blocks] = blocks - 1
    for b in range(blocks - 1, -1, -1):
        number[b] = free[parent[b]]
        free[parent[b]] -= size[b]
        free[b] = number[b] - 1
        low[number[b]] = number[b] - size[b] + 1
    return number, low


@njit(cache=True)
def _stack(parent: Ints, low: Ints, r: Ints) -> Ints:
    """Where each block leaves its network for its parent: where its first child did, since the
    children are taken by then.
    """
    blocks = parent.size
    stack = np.zeros(blocks + 1, np.int64)
    height = 0
    for b in range(blocks):
        stack[b] = stack[low[b]] if low[b] < b else height
        height = stack[b] + (r[b] * r[b] if parent[b] < blocks else 0)
        stack[blocks] = max(stack[blocks], height)
    return stack
