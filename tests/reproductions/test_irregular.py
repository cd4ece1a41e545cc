"""Irregular graphs: noise by edge costs no more than uniform noise, promises the same, and pays."""

import networkx as nx
import numpy as np
import pytest

import decor
from decor.graph.gossip import Gossip
from decor.reproductions import irregular

SCALE_FREE = "Barabasi-Albert, m = 4"


def plan(graph, edges, epsilon=10.0, ratio=40.0):
    exposure, budget = (
        decor.Exposure(clip=irregular.CLIP, steps=irregular.STEPS),
        decor.Budget(epsilon, 1e-5),
    )
    adversary = decor.Adversary.eavesdropper()
    return decor.calibrate(
        irregular.topology_of(graph), exposure, adversary, budget, ratio=ratio, edges=edges
    )


@pytest.fixture(scope="module")
def rows():
    found = [irregular.curve(SCALE_FREE, method, quick=True) for method in irregular.METHODS]
    return {(r["method"], r["epsilon"]): r for rows in found for r in rows}


def test_the_data_of_users_with_names_are_theirs():
    """Training on a graph with names refuses shards without them."""
    topology = irregular.topology_of("Florentine families")
    assert irregular.task_of("Florentine families", 0).names == topology.labels
    assert irregular.task_of(SCALE_FREE, 0).names is None


@pytest.mark.parametrize("graph", irregular.GRAPHS)
def test_every_graph_is_connected_and_irregular(graph):
    topology = irregular.topology_of(graph)
    assert topology.is_connected and len(set(topology.degrees.tolist())) > 2


def test_the_families_are_those_of_networkx():
    topology, graph = irregular.topology_of("Florentine families"), nx.florentine_families_graph()
    assert set(topology.labels) == set(graph.nodes) and topology.users == 15
    assert {frozenset(map(topology.name, edge)) for edge in topology.edges} == {
        frozenset(edge) for edge in graph.edges
    }


@pytest.mark.parametrize("graph", irregular.GRAPHS)
@pytest.mark.parametrize("ratio", (irregular.RATIOS[0], irregular.RATIOS[-1]))
def test_noise_by_edge_predicts_less_error_at_equal_epsilon(graph, ratio):
    uniform, by_edge = (plan(graph, edges, ratio=ratio) for edges in ("uniform", "optimal"))
    assert by_edge.sigma_cdp == pytest.approx(uniform.sigma_cdp, rel=1e-6)
    for each in (uniform, by_edge):
        assert 9.99 < each.guarantee().epsilon <= 10.0
    assert decor.theory.predicted_error(by_edge) < 0.99 * decor.theory.predicted_error(uniform)


def test_where_averages_are_exact_the_spread_over_edges_cannot_matter():
    gossip = Gossip(14, "designed")
    for edges in ("uniform", "optimal"):
        noise = plan("Florentine families", edges)
        assert decor.theory.predicted_error(noise, gossip) == pytest.approx(
            decor.theory.average_error(noise), rel=1e-6
        )


def test_families_with_one_marriage_are_the_most_exposed():
    topology = irregular.topology_of("Florentine families")
    for edges in ("uniform", "optimal"):
        columns = irregular.exposure_columns(plan("Florentine families", edges))
        user = topology.labels.index(columns["most_exposed"])
        assert topology.degrees[user] == 1
        assert 0 < columns["epsilon_least"] < columns["epsilon_most"] <= 10.0


def test_noise_by_edge_protects_nobody_more_than_uniform_noise_needs_to():
    """What is saved was protection beyond the budget: the best hidden users come nearer to it."""
    least = [
        irregular.exposure_columns(plan(SCALE_FREE, edges))["epsilon_least"]
        for edges in ("uniform", "optimal")
    ]
    assert least[0] < least[1] <= 10.0


def test_every_row_keeps_its_budget(rows):
    for (_, epsilon), r in rows.items():
        assert 0.99 * epsilon < r["accounted_epsilon"] <= epsilon
        assert r.get("epsilon_most", epsilon) <= epsilon * (1 + 1e-12)


def test_noise_by_edge_pays_and_stays_between_the_ends(rows):
    for epsilon in (3.0, 10.0):
        central, uniform, by_edge, local = (
            rows[method, epsilon]["value"] for method in irregular.METHODS
        )
        assert central < by_edge < 0.8 * uniform < 0.8 * local


def test_each_method_chooses_from_the_same_settings(rows):
    for (method, _), r in rows.items():
        assert r["learning_rate"] in irregular.RATES
        assert r["ratio"] in (irregular.RATIOS if "DECOR" in method else (0.0,))


def test_a_picture_has_the_baselines_of_its_own_graph(rows):
    other = [r | {"graph": "another"} for r in rows.values()]
    panels = irregular.panels([*rows.values(), *other])
    assert [panel.title for panel in panels] == [SCALE_FREE, "another"]
    for panel in panels:
        assert [s.label for s in panel.series] == list(irregular.METHODS)
        assert all(r["graph"] == panel.title for s in panel.series for r in s.rows)
        assert all(np.diff([r["epsilon"] for r in s.rows]) > 0 for s in panel.series)
