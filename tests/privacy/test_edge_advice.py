"""Edges worth adding: each figure is that of a plan on the graph with the edge."""

import itertools

import pytest

import decor
from decor import Adversary, Budget, Exposure
from decor.errors import InputError
from decor.graph.extra_edges import with_edges
from decor.graph.gossip import Gossip
from decor.privacy import theory
from decor.privacy.edge_advice import best_edges

BUDGET, EXPOSURE = Budget(3.0, 1e-5), Exposure(1.0, 500)
EAVESDROPPER = Adversary.eavesdropper()


def error(topology, adversary, gossip):
    plan = decor.calibrate(
        topology,
        EXPOSURE,
        adversary,
        BUDGET,
        gossip_rounds=gossip.rounds,
        accelerate=gossip.accelerate,
    )
    central = decor.baselines.central(topology, EXPOSURE, BUDGET)
    return theory.predicted_error(plan, gossip) / theory.average_error(central)


@pytest.mark.parametrize("gossip", [Gossip(), Gossip(3, "designed")])
def test_every_figure_is_the_error_with_the_edges_so_far(gossip):
    graph = decor.from_edges(8, [*decor.path(8).edges.tolist(), [0, 2]], list("abcdefgh"))
    advice = best_edges(graph, EXPOSURE, EAVESDROPPER, BUDGET, 2, gossip)
    assert advice.error == pytest.approx(error(graph, EAVESDROPPER, gossip))
    assert len(advice.edges) == 2
    for k, edge in enumerate(advice.edges):
        with_it = with_edges(graph, [each.pair for each in advice.edges[: k + 1]])
        assert with_it.labels == graph.labels
        assert edge.error == pytest.approx(error(with_it, EAVESDROPPER, gossip))
    assert advice.edges[1].error < advice.edges[0].error < advice.error
    i, j = advice.edges[0].pair
    assert f"{graph.name(i)}-{graph.name(j)} (" in str(advice)


def test_the_first_edge_is_nearly_as_good_as_the_best_of_all():
    graph = decor.path(7)
    missing = set(itertools.combinations(range(7), 2)) - set(map(tuple, graph.edges.tolist()))
    best = min(error(with_edges(graph, [pair]), EAVESDROPPER, Gossip()) for pair in missing)
    first = best_edges(graph, EXPOSURE, EAVESDROPPER, BUDGET, 1).edges[0]
    assert first.error <= 1.02 * best


@pytest.mark.filterwarnings("ignore::decor.errors.FragileGraphWarning")
def test_a_user_who_can_be_isolated_gets_the_edges_that_it_lacks_first():
    ring = [(i, (i + k) % 10) for i in range(10) for k in (1, 2)]
    graph = decor.from_edges(11, [*ring, (2, 10)])
    advice = best_edges(graph, EXPOSURE, Adversary.colluding(2), BUDGET, 3)
    first, second = advice.edges[:2]
    assert 10 in first.pair and 10 in second.pair
    # with two neighbours it can still be isolated; with three it cannot
    assert first.error > 0.9 * advice.error and second.error < 0.5 * advice.error


@pytest.mark.filterwarnings("ignore::decor.errors.FragileGraphWarning")
def test_where_no_edge_helps_none_is_named():
    for graph, adversary in (
        (decor.complete(5), EAVESDROPPER),
        (decor.ring(6), Adversary.everyone()),
    ):
        advice = best_edges(graph, EXPOSURE, adversary, BUDGET, 1)
        assert advice.edges == () and "No edge to add" in str(advice)


def test_a_graph_too_large_is_refused():
    with pytest.raises(InputError, match="up to .* users, not 100,000"):
        best_edges(decor.ring(100_000), EXPOSURE, EAVESDROPPER, BUDGET)
    with pytest.raises(InputError, match="the number of edges to add must be"):
        best_edges(decor.ring(6), EXPOSURE, EAVESDROPPER, BUDGET, 0)
