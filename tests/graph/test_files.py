import networkx as nx
import pytest
from hypothesis import given
from oracles import graphs

import decor
from decor.errors import GraphError


@pytest.mark.parametrize("ending", ["edgelist", "gml", "graphml"])
def test_a_graph_written_and_read_is_the_same(tmp_path, ending):
    labelled = decor.from_networkx(nx.florentine_families_graph())
    for topology in (decor.ring(12), decor.from_edges(5, [(0, 4), (2, 3)]), labelled):
        path = tmp_path / f"graph.{ending}"
        decor.write(topology, path)
        again = decor.read(path)
        assert again.users == topology.users and nx.utils.graphs_equal(
            again.to_networkx(), topology.to_networkx()
        )


@given(graphs())
def test_edge_lists_lose_nothing(tmp_path_factory, topology):
    path = tmp_path_factory.mktemp("graphs") / "g.txt"
    decor.write(topology, path)
    assert decor.read(path) == topology


def test_an_edge_list_may_have_comments_commas_weights_and_lonely_users(tmp_path):
    path = tmp_path / "hospitals.csv"
    path.write_text("# who talks to whom\nBasel, Bern\nBern,Geneva 0.5  # weight\n\nZug\n")
    topology = decor.read(path)
    assert topology.labels == ("Basel", "Bern", "Geneva", "Zug") and topology.edges.tolist() == [
        [0, 1],
        [1, 2],
    ]
    assert not topology.is_connected


def test_numbers_in_an_edge_list_keep_their_order_and_name(tmp_path):
    path = tmp_path / "g.txt"
    path.write_text("10 2\n2 0\n")
    assert decor.read(path).labels == ("0", "2", "10")
    path.write_text("2 1\n1 0\n")
    assert decor.read(path) == decor.from_edges(3, [(0, 1), (1, 2)])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"  \n", "is empty"),
        (b"# nothing\n", "only comments"),
        (b"0 1\n1 1\n", "line 2 .* joins user 1 to itself"),
        (b"0 1\n1 2\n1 0\n", "line 3 .* repeats the edge 0-1 of line 1"),
        (b"a b c d\n", "line 1 .* is not an edge"),
        (b"\x89PNG\r\n\x1a\n\x00\xff\xfe", "not a text file"),
        (b"0 \x00 1\n", "not an edge"),
    ],
)
def test_a_broken_file_is_refused_with_the_line(tmp_path, content, said):
    path = tmp_path / "broken.txt"
    path.write_bytes(content)
    with pytest.raises(GraphError, match=said):
        decor.read(path)


@pytest.mark.parametrize("ending", ["gml", "graphml"])
@pytest.mark.parametrize("content", ["graph [ node [ id 0 ", "<graphml><graph", "0 1\n1 2\n"])
def test_broken_gml_and_graphml_are_refused(tmp_path, ending, content):
    path = tmp_path / f"broken.{ending}"
    path.write_text(content)
    with pytest.raises(GraphError):
        decor.read(path)


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    with pytest.raises(GraphError, match="no graph file"):
        decor.read(tmp_path / "nowhere.txt")
    with pytest.raises(GraphError, match="is a folder"):
        decor.read(tmp_path)


def test_a_name_that_an_edge_list_cannot_hold_is_refused(tmp_path):
    for name in ("a\nb", "a\0b", " a"):
        with pytest.raises(GraphError, match="cannot hold the user name"):
            decor.write(decor.from_edges(2, [(0, 1)], labels=[name, "b"]), tmp_path / "g.txt")


@pytest.mark.parametrize(
    "name", ["San Carlo", "San  Carlo", 'San "Carlo"', '"', '""', 'a"b', '"a;b", #c']
)
def test_a_name_with_blanks_or_quotes_is_written_in_quotes(tmp_path, name):
    topology = decor.from_edges(2, [(0, 1)], labels=[name, "b"])
    decor.write(topology, tmp_path / "g.txt")
    assert decor.read(tmp_path / "g.txt") == topology


def test_a_byte_order_mark_is_not_part_of_a_name(tmp_path):
    """A review found that it made one user two, so that all looked better protected."""
    path = tmp_path / "bom.txt"
    path.write_bytes(b"\xef\xbb\xbf0 1\n1 2\n0 2\n")
    assert decor.read(path) == decor.from_edges(3, [(0, 1), (1, 2), (0, 2)])


def test_users_whose_names_look_alike_are_not_merged(tmp_path):
    path = tmp_path / "alike.gml"
    path.write_text(
        'graph [ node [ id 0 label 1 ] node [ id 1 label "1" ] node [ id 2 label 2 ] '
        "edge [ source 0 target 2 ] ]"
    )
    with pytest.raises(GraphError, match="two users are called '1'"):
        decor.read(path)


def test_what_is_no_path_is_refused():
    for nonsense in (None, "a\0b"):
        with pytest.raises(GraphError, match="not the path of a graph file"):
            decor.read(nonsense)
