"""The elimination order of a sparse network: approximate minimum degree, in blocks, to a core."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from decor.array_types import Ints
from decor.errors import CannotBound

CORE_LIMIT = 16_000
"""Most nodes of the dense core: its inverse needs several matrices, 2 GB each at this size."""

# The nodes left are the core once the least degree exceeds this share of their number. Random
# graphs are fastest at 0.25 (their blocks have one node), grids at 0.7 (their blocks have many,
# which suits BLAS); neither loses a quarter of its speed here.
_CORE_SHARE = 0.4
# A node with more than this many times sqrt(nodes) neighbours is left for the core: its list would
# be read at every step.
_HUB = 10


class Analysis(NamedTuple):
    """The elimination of a graph, whatever its conductances: order, blocks, and where edges enter.

    Nodes are known by their place in `order`. Block b eliminates the nodes from `first[b]` to
    `first[b + 1]`. Its front is these nodes and then the neighbours that they have at that time,
    `rows[row_first[b]:row_first[b + 1]]`. The network that it leaves among the neighbours enters
    the front of block `parent[b]` (the number of blocks if that is the core, -1 without
    neighbours). Children come before parents, and the blocks below b are those from `low[b]` to b.
    Nodes from `first[-1]` on are the core.
    """

    edges: Ints
    order: Ints
    first: Ints
    row_first: Ints
    rows: Ints
    parent: Ints
    low: Ints
    # where each block leaves its network for the parent; the last entry is the size of this stack
    stack: Ints
    factor: Ints  # where the factor of each block begins; the last entry is the size of all
    edge_order: Ints
    edge_first: Ints  # of each block in `edge_order`; the last entry is of the core
    ends: Ints  # by `edge_order`, the node eliminated first and the other

    @property
    def core(self) -> int:
        """Number of nodes inverted densely."""
        return int(self.order.size - self.first[-1])


class _QuotientGraph(NamedTuple):
    """The graph during the elimination: blocks stand for the nodes that they eliminated.

    The list of node i is `lists` from `start[i]` to `start[i + 1]`. It holds its neighbours at
    first; later, the blocks whose rows include i in front, and its other neighbours at the back. It
    never grows: a new block takes the place of a node that it eliminates or of a block that it
    absorbs.
    """

    start: Ints
    lists: Ints
    blocks: Ints  # number of blocks in each node's list
    others: Ints  # number of other neighbours in it
    seen: Ints  # the last block with the node in its front
    parent: Ints  # the block that absorbed a block, or -1
    counted: Ints  # the newest block for which `outside` was counted
    outside: Ints  # rows of a block outside the front of that one
    row_first: Ints


class _Chains(NamedTuple):
    """Doubly linked lists of the nodes of equal degree."""

    head: Ints
    after: Ints
    before: Ints


def analyse(nodes: int, edges: Ints) -> Analysis:
    """Order and blocks of a graph.

    Raises:
        CannotBound: If its core exceeds CORE_LIMIT; before any memory is allocated.
    """
    edges = np.array(edges, dtype=np.int64).reshape(-1, 2)
    neighbour = edges[:, ::-1].reshape(-1)[np.argsort(edges.reshape(-1), kind="stable")]
    start = np.append(0, np.cumsum(np.bincount(edges.reshape(-1), minlength=nodes)))
    gone, first, row_first, rows, parent = _least_degree_order(
        start, neighbour, int(_HUB * nodes**0.5), _CORE_SHARE
    )
    if (core := nodes - gone.size) > CORE_LIMIT:
        raise CannotBound(
            f"a graph of {nodes} nodes and {len(edges)} edges reduces to {core} nodes nearly all "
            f"joined to one another, and a dense inverse takes at most {CORE_LIMIT}. Use fewer "
            "nodes, fewer edges, or a graph with small cuts."
        )
    k, r = np.diff(first), np.diff(row_first)
    parent[(parent < 0) & (r > 0)] = parent.size
    number, low = _postorder(parent)
    left = np.ones(nodes, dtype=bool)
    left[gone] = False
    order = np.append(gone[np.argsort(np.repeat(number, k), kind="stable")], np.flatnonzero(left))
    position = np.empty(nodes, dtype=np.int64)
    position[order] = np.arange(nodes)
    # sorted within each block: entries above the diagonal of a front are above that of its parent
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
    blocks = (first, row_first, rows, parent, low, stack, factor)
    return Analysis(edges, order, *blocks, edge_order, edge_first, ends)


@njit(cache=True)
def _least_degree_order(
    start: Ints, lists: Ints, hub: int, core_share: float
) -> tuple[Ints, Ints, Ints, Ints, Ints]:
    """Approximate minimum degree (Amestoy, Davis and Duff) up to the core.

    Returns the nodes in order, and blocks as in Analysis.
    """
    nodes = start.size - 1
    order, first = np.empty(nodes, np.int64), np.zeros(nodes + 1, np.int64)
    degree = np.empty(nodes, np.int64)  # an upper bound; `nodes` for a hub
    chains = _Chains(np.full(nodes, -1), np.full(nodes, -1), np.full(nodes, -1))
    blocks, others = np.zeros(nodes, np.int64), start[1:] - start[:-1]
    seen, parent, counted = np.full(nodes, -1), np.full(nodes, -1), np.full(nodes, -1)
    outside, row_first = np.empty(nodes, np.int64), np.zeros(nodes + 1, np.int64)
    graph = _QuotientGraph(start, lists, blocks, others, seen, parent, counted, outside, row_first)
    rows = np.empty(lists.size + nodes, np.int64)
    for i in range(nodes - 1, -1, -1):
        degree[i] = others[i] if others[i] <= hub else nodes
        if degree[i] < nodes:
            _enter(i, degree[i], chains)
    # a literal 0 has a type of its own in numba: all would be compiled twice
    done = b = least = np.int64(0)
    while True:
        while least < nodes and chains.head[least] < 0:
            least += 1
        if least == nodes or least > core_share * (nodes - done):
            kept = rows[: row_first[b]]
            return order[:done], first[: b + 1], row_first[: b + 1], kept, parent[:b]
        if rows.size < row_first[b] + nodes - done:
            rows = _grow(rows, row_first[b], row_first[b] + nodes)
        node = order[done] = chains.head[least]
        done += 1
        _leave(node, least, chains)
        begin = row_first[b]
        end = _find_rows(b, node, graph, rows)
        for at in range(begin, end):
            i = rows[at]
            if degree[i] < nodes:
                _count_outside(b, i, graph)
        keep = begin
        for at in range(begin, end):
            i = rows[at]
            if degree[i] < nodes:
                _leave(i, degree[i], chains)
                beyond = _prune(b, i, graph)
                # no neighbour outside the front: i is eliminated in the same block
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
                _enter(i, degree[i], chains)
        b += 1
        first[b], row_first[b] = done, keep


@njit(cache=True)
def _grow(rows: Ints, used: int, more: int) -> Ints:
    longer = np.empty(used + more, np.int64)
    for at in range(used):
        longer[at] = rows[at]
    return longer


@njit(cache=True)
def _enter(i: int, degree: int, chains: _Chains) -> None:
    """Puts node i at the head of the chain of its degree."""
    head, after, before = chains
    after[i], before[i] = head[degree], -1
    if after[i] >= 0:
        before[after[i]] = i
    head[degree] = i


@njit(cache=True)
def _leave(i: int, degree: int, chains: _Chains) -> None:
    head, after, before = chains
    if before[i] >= 0:
        after[before[i]] = after[i]
    else:
        head[degree] = after[i]
    if after[i] >= 0:
        before[after[i]] = before[i]


@njit(cache=True)
def _find_rows(b: int, node: int, graph: _QuotientGraph, rows: Ints) -> int:
    """Writes a node's neighbours as rows of block b, which absorbs the blocks in the node's list.

    Returns the end of these rows.
    """
    start, lists, seen, row_first = graph.start, graph.lists, graph.seen, graph.row_first
    end: int = row_first[b]
    seen[node] = b
    for at in range(start[node], start[node] + graph.blocks[node]):
        e = lists[at]
        if graph.parent[e] < 0:
            graph.parent[e] = b
            for row in range(row_first[e], row_first[e + 1]):
                if seen[rows[row]] != b:
                    seen[rows[row]] = b
                    rows[end] = rows[row]
                    end += 1
    for at in range(start[node + 1] - graph.others[node], start[node + 1]):
        if seen[lists[at]] != b:
            seen[lists[at]] = b
            rows[end] = lists[at]
            end += 1
    return end


@njit(cache=True)
def _count_outside(b: int, i: int, graph: _QuotientGraph) -> None:
    """Counts, for each block in the list of i, its rows outside the front of block b."""
    start, row_first, outside = graph.start, graph.row_first, graph.outside
    for at in range(start[i], start[i] + graph.blocks[i]):
        e = graph.lists[at]
        if graph.parent[e] < 0:
            if graph.counted[e] != b:
                graph.counted[e] = b
                outside[e] = row_first[e + 1] - row_first[e]
            outside[e] -= 1


@njit(cache=True)
def _prune(b: int, i: int, graph: _QuotientGraph) -> int:
    """Replaces everything in the list of i that the front of b contains by b.

    Returns a bound on the degree of i outside that front.
    """
    start, lists, blocks, others = graph.start, graph.lists, graph.blocks, graph.others
    degree: int = 0
    end = start[i]
    for at in range(start[i], start[i] + blocks[i]):
        e = lists[at]
        if graph.parent[e] < 0:
            if graph.outside[e] == 0:  # block e lies within the front of b, which absorbs it
                graph.parent[e] = b
            else:
                degree += graph.outside[e]
                lists[end] = e
                end += 1
    begin = start[i + 1]
    for at in range(start[i + 1] - 1, start[i + 1] - others[i] - 1, -1):
        if graph.seen[lists[at]] != b:
            degree += 1
            begin -= 1
            lists[begin] = lists[at]
    lists[end] = b
    blocks[i] = end + 1 - start[i]
    others[i] = start[i + 1] - begin
    return degree


@njit(cache=True)
def _postorder(parent: Ints) -> tuple[Ints, Ints]:
    """New numbers of blocks, so that the blocks below a block directly precede it, and `low`."""
    blocks = parent.size
    # the last entry, which index -1 is too, stands for all blocks without a block as parent
    size = np.ones(blocks + 1, np.int64)
    for b in range(blocks):
        size[parent[b]] += size[b]
    number, low = np.empty(blocks, np.int64), np.empty(blocks, np.int64)
    free = np.empty(blocks + 1, np.int64)  # the next free number below each parent
    free[blocks] = blocks - 1
    for b in range(blocks - 1, -1, -1):
        number[b] = free[parent[b]]
        free[parent[b]] -= size[b]
        free[b] = number[b] - 1
        low[number[b]] = number[b] - size[b] + 1
    return number, low


@njit(cache=True)
def _stack(parent: Ints, low: Ints, r: Ints) -> Ints:
    """Where each block leaves its network for its parent: in the place of its first child's.

    By then the block has taken what its children left.
    """
    blocks = parent.size
    stack = np.zeros(blocks + 1, np.int64)
    height = 0
    for b in range(blocks):
        stack[b] = stack[low[b]] if low[b] < b else height
        height = stack[b] + (r[b] * r[b] if parent[b] < blocks else 0)
        stack[blocks] = max(stack[blocks], height)
    return stack
