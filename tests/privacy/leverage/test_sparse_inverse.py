import mpmath
import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from decor.errors import InputError
from decor.privacy.leverage import dense, sparse_inverse, sparse_order
from decor.privacy.leverage.network import Network
from decor.privacy.leverage.sparse_inverse import diagonal
from decor.privacy.leverage.sparse_order import Analysis, analyse

RATIOS = [0.0, 1.0, 1e4, 1e10, 1e20]
NAMED = {
    "path": nx.path_graph(9),
    "star": nx.star_graph(8),
    "tree": nx.random_labeled_tree(12, seed=1),
    "ring": nx.cycle_graph(7),
    "complete": nx.complete_graph(6),
    "isolated": nx.empty_graph(4),
    "one node": nx.empty_graph(1),
    "disconnected": nx.disjoint_union_all([nx.cycle_graph(4), nx.star_graph(3), nx.empty_graph(2)]),
    "grid": nx.grid_2d_graph(3, 4),
}


def edges_of(graph: nx.Graph) -> np.ndarray:
    number = {node: i for i, node in enumerate(graph)}
    pairs = [sorted((number[u], number[v])) for u, v in graph.edges()]
    return np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2)


def network_of(graph: nx.Graph, seed: int = 0, ratio: float = 1.0, spread: float = 0.0) -> Network:
    """Ground near one, conductances near `ratio` over `spread` orders; no edges at ratio 0."""
    rng = np.random.default_rng(seed)
    edges = edges_of(graph if ratio else nx.empty_graph(len(graph)))
    conductance = ratio * 10.0 ** rng.uniform(-spread / 2, spread / 2, len(edges))
    return Network(10.0 ** rng.uniform(-0.5, 0.5, len(graph)), edges, conductance)


def exact_diagonal(network: Network) -> list[mpmath.mpf]:
    with mpmath.workdps(150):
        Sigma = mpmath.diag([mpmath.mpf(g) for g in network.ground])
        for (i, j), c in zip(network.edges.tolist(), network.conductance.tolist(), strict=True):
            for a, b, sign in ((i, i, 1), (j, j, 1), (i, j, -1), (j, i, -1)):
                Sigma[a, b] += sign * mpmath.mpf(c)
        inverse = Sigma**-1
        return [inverse[i, i] for i in range(network.nodes)]


def assert_within_bound(network: Network) -> None:
    value, bound = diagonal(network)
    with mpmath.workdps(50):
        for computed, exact in zip(value.tolist(), exact_diagonal(network), strict=True):
            assert exact <= mpmath.mpf(computed) * (1 + mpmath.mpf(bound))
            assert abs(mpmath.mpf(computed) / exact - 1) <= bound < 1e-12


def cliques_on_a_chain(cliques: int, size: int) -> nx.Graph:
    graph = nx.disjoint_union_all([nx.complete_graph(size)] * cliques)
    graph.add_edges_from((size * c, size * c - 1) for c in range(1, cliques))
    return graph


def fronts(analysis: Analysis) -> tuple[np.ndarray, np.ndarray]:
    """How many nodes each block eliminates, and the size of its front."""
    k = np.diff(analysis.first)
    return k, k + np.diff(analysis.row_first)


@pytest.fixture(params=[0.0, 0.4, 1.0], ids=["all core", "default", "no core"])
def core_share(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> float:
    monkeypatch.setattr(sparse_order, "_CORE_SHARE", request.param)
    return float(request.param)


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("name", NAMED)
def test_relative_error_is_within_the_bound_on_small_graphs(
    name: str, ratio: float, core_share: float
) -> None:
    assert_within_bound(network_of(NAMED[name], ratio=ratio))


@pytest.mark.parametrize("name", NAMED)
def test_relative_error_is_within_the_bound_when_conductances_span_twenty_orders(
    name: str, core_share: float
) -> None:
    assert_within_bound(network_of(NAMED[name], spread=20))


@given(
    nodes=st.integers(1, 14),
    density=st.floats(0, 1),
    seed=st.integers(0, 10**6),
    ratio=st.sampled_from(RATIOS),
    spread=st.sampled_from([0.0, 20.0]),
    share=st.sampled_from([0.4, 1.0]),
)
def test_relative_error_is_within_the_bound_on_every_graph(
    nodes: int, density: float, seed: int, ratio: float, spread: float, share: float
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sparse_order, "_CORE_SHARE", share)
        assert_within_bound(
            network_of(nx.gnp_random_graph(nodes, density, seed=seed), seed, ratio, spread)
        )


MEDIUM = {
    "random regular": nx.random_regular_graph(4, 600, seed=1),
    "Erdos-Renyi": nx.gnp_random_graph(400, 6 / 400, seed=1),
    "torus": nx.grid_2d_graph(22, 24, periodic=True),
    "geometric": nx.random_geometric_graph(500, 0.09, seed=1),
    "scale-free": nx.barabasi_albert_graph(400, 3, seed=1),
    "cliques": cliques_on_a_chain(4, 120),
    "hub": nx.compose(nx.random_regular_graph(3, 400, seed=2), nx.star_graph(299)),
}


@pytest.mark.parametrize("ratio", [1.0, 1e10, 1e20])
@pytest.mark.parametrize("name", MEDIUM)
def test_sparse_and_dense_inverses_agree(name: str, ratio: float) -> None:
    network = network_of(MEDIUM[name], ratio=ratio, spread=6)
    analysis = analyse(network.nodes, network.edges)
    assert 0 < analysis.core < network.nodes
    value, bound = diagonal(network, analysis)
    expected = np.diag(dense.inverse(network.dense(), network.ground))
    error = bound + dense.relative_error(network.nodes)
    np.testing.assert_allclose(value, expected, rtol=error)
    np.testing.assert_allclose(value, expected, rtol=1e-13)


def test_the_graphs_above_reach_every_way_through_the_code() -> None:
    k, f = zip(*(fronts(analyse(len(g), edges_of(g))) for g in MEDIUM.values()), strict=True)
    every_k, every_f = np.concatenate(k), np.concatenate(f)
    by_blas = np.array(
        [sparse_inverse._width(*sizes) > 1 for sizes in zip(every_k, every_f, strict=True)]
    )
    assert np.any(by_blas & (every_k < every_f)) and np.any(~by_blas & (every_k > 1))
    assert np.any(every_k > sparse_inverse._PANEL)


@pytest.mark.parametrize("name", MEDIUM)
def test_relabelling_the_nodes_relabels_the_result(name: str) -> None:
    network = network_of(MEDIUM[name], ratio=1e6, spread=4)
    new = np.random.default_rng(3).permutation(network.nodes)
    ground = np.empty(network.nodes)
    ground[new] = network.ground
    relabelled = Network(ground, np.sort(new[network.edges], axis=1), network.conductance)
    np.testing.assert_allclose(diagonal(relabelled)[0][new], diagonal(network)[0], rtol=1e-13)


@pytest.mark.parametrize("x", [1e-3, 1.0, 1e4, 1e10, 1e20])
def test_a_long_ring_has_its_closed_form(x: float) -> None:
    nodes = 20_000
    i = np.arange(nodes)
    network = Network(
        np.ones(nodes), np.sort(np.column_stack([i, (i + 1) % nodes]), axis=1), np.full(nodes, x)
    )
    with mpmath.workdps(60):
        t = mpmath.acosh(1 + 1 / (2 * mpmath.mpf(x)))
        closed = mpmath.coth(nodes * t / 2) / (2 * mpmath.mpf(x) * mpmath.sinh(t))
    value, bound = diagonal(network)
    np.testing.assert_allclose(value, float(closed), rtol=bound)
    assert bound < 1e-10


@pytest.mark.parametrize("x", [1.0, 1e10, 1e20])
def test_a_large_star_has_its_closed_form(x: float) -> None:
    leaves = 20_000
    edges = np.column_stack([np.zeros(leaves, dtype=np.int64), np.arange(1, leaves + 1)])
    value, bound = diagonal(Network(np.ones(leaves + 1), edges, np.full(leaves, x)))
    arm = x / (1 + x)
    np.testing.assert_allclose(value[0], 1 / (1 + leaves * arm), rtol=bound)
    rest = 1 + (leaves - 1) * arm
    np.testing.assert_allclose(value[1:], 1 / (1 + rest / (1 + rest / x)), rtol=bound)


def test_a_disjoint_union_has_the_diagonals_of_its_parts() -> None:
    parts = [network_of(MEDIUM[name], ratio=1e9) for name in ("torus", "geometric")]
    shift = parts[0].nodes
    union = Network(
        np.concatenate([part.ground for part in parts]),
        np.concatenate([parts[0].edges, parts[1].edges + shift]),
        np.concatenate([part.conductance for part in parts]),
    )
    expected = np.concatenate([diagonal(part)[0] for part in parts])
    np.testing.assert_allclose(diagonal(union)[0], expected, rtol=1e-13)


def test_a_network_without_nodes_has_an_empty_diagonal() -> None:
    value, bound = diagonal(Network(np.empty(0), np.empty((0, 2), dtype=np.int64), np.empty(0)))
    assert value.size == 0 and bound == 0


def test_a_kept_analysis_gives_the_same_as_a_fresh_one() -> None:
    graph = MEDIUM["geometric"]
    analysis = analyse(len(graph), edges_of(graph))
    for seed, ratio in enumerate(RATIOS[1:]):
        network = network_of(graph, seed, ratio, spread=3)
        kept, fresh = diagonal(network, analysis), diagonal(network)
        np.testing.assert_array_equal(kept[0], fresh[0])
        assert kept[1] == fresh[1]


def test_the_network_given_is_left_as_it_was() -> None:
    network = network_of(MEDIUM["torus"])
    before = [array.copy() for array in (network.ground, network.edges, network.conductance)]
    for array in (network.ground, network.edges, network.conductance):
        array.flags.writeable = False
    diagonal(network)
    for array, copy in zip(
        (network.ground, network.edges, network.conductance), before, strict=True
    ):
        np.testing.assert_array_equal(array, copy)


def test_an_analysis_of_another_graph_is_refused() -> None:
    analysis = analyse(9, edges_of(nx.path_graph(9)))
    with pytest.raises(InputError, match="another graph"):
        diagonal(network_of(nx.star_graph(8)), analysis)
