import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles import graphs

import decor
from decor.errors import GraphError
from decor.graph import edge_lists

EDGES = [("Branch 00", "Branch 01"), ("Branch 01", "Branch 02"), ("Branch 02", "Branch 00")]
PLAIN = [(a.replace(" ", ""), b.replace(" ", "")) for a, b in EDGES]


def _lines(edges, mark, weight=None, quote=""):
    end = "" if weight is None else f"{mark}{weight}"
    return "".join(f"{quote}{a}{quote}{mark}{quote}{b}{quote}{end}\n" for a, b in edges)


@pytest.mark.parametrize("bom", ["", "\ufeff"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize(
    ("mark", "separator", "quote"),
    [
        *((",", "comma", ""), (";", "semicolon", ""), ("\t", "tab", ""), (", ", "comma", "")),
        *((" ", "blank", '"'), ("  ", "blank", '"'), (",", "comma", '"')),
    ],
)
@pytest.mark.parametrize("weight", [None, "83", "0.5"])
@pytest.mark.parametrize("header", [None, ("source", "target"), ("Von", "Nach")])
def test_however_a_table_is_written_it_is_the_same_graph(
    header, weight, mark, separator, quote, end, bom
):
    title = "" if header is None else _lines([header], mark, weight and "bandwidth", quote)
    text = bom + (title + _lines(EDGES, mark, weight, quote)).replace("\n", end)
    read = edge_lists.parse(text)
    assert read.topology.labels == ("Branch 00", "Branch 01", "Branch 02")
    assert read.topology.edge_count == 3 and read.separator == separator
    assert read.header == (title.strip() or None)
    said = "no header" if header is None else "header skipped"
    assert str(read).startswith(f"3 users, 3 edges; separator: {separator}; {said}")


@pytest.mark.parametrize(
    "header", ["Filiale A;Filiale B;Mbit/s", "a;b;w", "from;to;rate", "SOURCE;TARGET;w"]
)
def test_a_header_never_becomes_two_users(header):
    """A review planned for two phantom branches, which made all noise too large."""
    read = edge_lists.parse(f"{header}\n" + _lines(EDGES, ";", 83))
    assert read.topology.users == 3 and read.header == header


def test_a_header_says_which_columns_are_users():
    text = "Id,Source,Target,Type,Weight\n0,ulm,bonn,Undirected,1.0\n1,bonn,kiel,Undirected,2.5\n"
    topology = edge_lists.parse(text).topology
    assert topology.labels == ("ulm", "bonn", "kiel")
    assert topology.edges.tolist() == [[0, 1], [1, 2]]


def test_users_whose_names_could_be_a_header_stay_users():
    for text in ("from to\nto b\n", "source target\n", "a b\nfrom to\nb a2\na2 a\n", "0 1\n2 3\n"):
        assert edge_lists.parse(text).header is None
    # a graph of pairs: the first is as good as any other
    assert edge_lists.parse("ulm bonn\nkiel jena\n").topology.users == 4


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Links;Rechts\n" + _lines(PLAIN, ";"), "line 1 .* may be a header or an edge"),
        ("bonn,Branch 01\nkiel,Branch 02\n", "line 1 .* could mean two things.*double quotes"),
        ("bonn,kiel\nSan Carlo\n", "line 2 .* could mean two things"),
        ("bonn,kiel\n0 1\n", "line 2 .* could mean two things"),
        ("San Carlo bonn\n", "line 1 .* third column that is no number"),
        ("bonn\tkiel\nulm,kiel\n", "has tabs and commas"),
        ('"bonn kiel\n', "line 1 .* is not an edge"),
        (",bonn\n", "line 1 .* is not an edge"),
        ("bonn;;3\n", "line 1 .* is not an edge"),
        ("a,b,1,2\n", "line 1 .* is not an edge"),
        ("Id,Source,Target\n1,bonn,kiel\n2,ulm\n", "line 3 .* is not an edge"),
    ],
)
def test_what_could_mean_two_things_is_refused(text, said):
    with pytest.raises(GraphError, match=said):
        edge_lists.parse(text)


def test_the_ways_out_that_errors_name_work():
    edges = _lines(PLAIN, ";")
    assert edge_lists.parse("# Links;Rechts\n" + edges).topology.users == 3
    assert edge_lists.parse("Links;Rechts\n" + edges + "Links\n").topology.users == 5
    assert edge_lists.parse('bonn,"Branch 01"\n').topology.labels == ("bonn", "Branch 01")


def test_what_networkx_writes_is_read(tmp_path):
    graph = nx.karate_club_graph()
    for data in (True, False, ["weight"]):
        nx.write_edgelist(graph, tmp_path / "g.txt", data=data)
        read = decor.read(tmp_path / "g.txt")
        assert read.users == 34 and read.edge_count == graph.number_of_edges()


_NAMES = st.text(st.characters(exclude_characters='"', exclude_categories=["C", "Z"]), min_size=1)
_NAMES |= st.sampled_from(["source", "target", "from", "to", "San Carlo", "a,b", "#", "1", "01"])


@given(graphs(least=2, most=7), st.lists(_NAMES, min_size=7, max_size=7, unique=True))
def test_a_graph_with_any_names_is_read_as_it_was_written(topology, names):
    named = decor.from_edges(
        topology.users, topology.edges.tolist(), labels=names[: topology.users]
    )
    read = edge_lists.parse(edge_lists.format(named)).topology

    def edges(graph):
        return {frozenset(map(graph.name, pair)) for pair in graph.edges.tolist()}

    assert edges(read) == edges(named)
    users = {read.name(user) for user in range(read.users)}
    assert users == {named.name(user) for user in range(named.users)}
