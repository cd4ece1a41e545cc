"""`decor graph` describes a graph."""

import math

import pytest


def test_graph_gives_connectivity_mixing_and_exposure(here, ask):
    facts = ask("graph --topology torus --users 64")
    assert facts["users"] == 64 and facts["edges"] == 128 and facts["vertex_connectivity"] == 4
    assert facts["algebraic_connectivity"] == pytest.approx(2 - 2 * math.cos(math.pi / 4))
    assert facts["heterogeneity"] == pytest.approx(0.12)
    out = here(*"graph --topology star --users 9".split()).stdout
    assert "H_G(W)" in out and "isolate" in out


@pytest.mark.parametrize(
    "content",
    [b"", b"\x00\x01\x02", b"\xff\xfe", b"0 0\n", b"0 1\n0 1\n", b"a b c d e\n", b"# empty\n"],
)
def test_a_broken_graph_file_is_refused_by_its_name(here, tmp_path, content):
    path = tmp_path / "graph.txt"
    path.write_bytes(content)
    assert "graph.txt" in here("plan", "--epsilon", 1, "--graph", path, check=2).stderr
