"""`decor graph` describes a graph."""

import math

import pytest

import decor
from decor import Adversary, Budget, Exposure
from decor.privacy.edge_advice import best_edges


def test_graph_gives_connectivity_mixing_and_exposure(here, ask):
    facts = ask("graph --topology torus --users 64")
    assert facts["users"] == 64 and facts["edges"] == 128 and facts["vertex_connectivity"] == 4
    assert facts["algebraic_connectivity"] == pytest.approx(2 - 2 * math.cos(math.pi / 4))
    assert facts["heterogeneity"] == pytest.approx(0.12)
    out = here(*"graph --topology star --users 9".split()).stdout
    assert "H_G(W)" in out and "isolate" in out


def test_graph_names_the_edges_worth_adding(here, ask):
    line = "graph --topology grid --users 9 --best-edges 2"
    expected = best_edges(
        decor.grid(3, 3), Exposure(1.0, 1000), Adversary.curious(), Budget(1.0, 1e-6), 2
    )
    assert len(expected.edges) == 2 and ask(line)["best_edges"] == expected.to_json()
    out = here(*line.split()).stdout
    assert f"{expected}" in out
    first = expected.edges[0].pair
    assert f"now {expected.error:.3g}: {first[0]}-{first[1]} (" in out
    assert "best_edges" not in ask("graph --topology grid --users 9")
    # another clip and budget: the same edges and errors
    other = best_edges(
        decor.grid(3, 3), Exposure(2.0, 1000), Adversary.curious(), Budget(8.0, 1e-9), 2
    )
    assert [edge.pair for edge in other.edges] == [edge.pair for edge in expected.edges]
    assert other.error == pytest.approx(expected.error, rel=1e-6)


@pytest.mark.parametrize(
    "content",
    [b"", b"\x00\x01\x02", b"\xff\xfe", b"0 0\n", b"0 1\n0 1\n", b"a b c d e\n", b"# empty\n"],
)
def test_a_broken_graph_file_is_refused_by_its_name(here, tmp_path, content):
    path = tmp_path / "graph.txt"
    path.write_bytes(content)
    assert "graph.txt" in here("plan", "--epsilon", 1, "--graph", path, check=2).stderr
