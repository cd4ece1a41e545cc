"""Graph files: read and write edge lists, GML and GraphML."""

from __future__ import annotations

from pathlib import Path

from decor.errors import GraphError

from . import edge_lists
from .families import from_networkx
from .topology import Topology

_NETWORKX = {".gml": "gml", ".graphml": "graphml", ".xml": "graphml"}
_FORMATS = "an edge list, GML or GraphML file"


def read(file: str | Path) -> Topology:
    """The graph in a file.

    An edge list has one line per edge: two user names with a semicolon, tab, comma or blanks
    between them. A third column (a weight) is ignored. A line with one name is a user, perhaps
    without neighbours. `#` starts a comment. A header is skipped, and names the columns of users
    if it says source and target, or from and to. Names with blanks stand in double quotes where
    blanks separate.

    Args:
        file: A path. `.gml`, `.graphml` and `.xml` files are read as such, all others as an edge
            list.

    Raises:
        GraphError: If the file cannot be read; the message names the line of an edge list.
    """
    return read_with_note(file)[0]


def read_with_note(file: str | Path) -> tuple[Topology, str]:
    """The graph in a file, and in one line how the file was understood.

    Args:
        file: As for `read`.
    """
    try:
        path = Path(file)
        # a byte order mark would otherwise become part of the first user's name
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise GraphError(
            f"there is no graph file {str(path)!r}; give the path of {_FORMATS}"
        ) from None
    except IsADirectoryError:
        raise GraphError(f"{str(path)!r} is a folder; give the path of {_FORMATS}") from None
    except OSError as problem:
        raise GraphError(
            f"the graph file {str(path)!r} cannot be read: {problem.strerror}"
        ) from None
    except UnicodeDecodeError:
        raise GraphError(f"{str(path)!r} is not a text file; give {_FORMATS}") from None
    except (TypeError, ValueError):
        raise GraphError(f"{file!r} is not the path of a graph file") from None
    if not text.strip():
        raise GraphError(
            f"the graph file {str(path)!r} is empty; write one edge per line, such as: 0 1"
        )
    kind = _NETWORKX.get(path.suffix.lower())
    if kind is None:
        edge_list = edge_lists.parse(text, str(path))
        return edge_list.topology, str(edge_list)
    topology = _from_networkx_text(text, kind, str(path))
    return topology, topology.description


def write(topology: Topology, file: str | Path) -> None:
    """Writes a graph in a format that `read` reads.

    Args:
        topology: The graph.
        file: A path, whose ending selects the format as in `read`.

    Raises:
        GraphError: If the file cannot be written, or an edge list cannot hold a user's name.
    """
    if topology.own_weights is not None:
        raise GraphError(
            "graph files have no gossip weights, and this graph has its own; save a plan, which "
            "has them, or write the graph before with_mixing"
        )
    path = Path(file)
    kind = _NETWORKX.get(path.suffix.lower())
    try:
        if kind is None:
            path.write_text(edge_lists.format(topology), encoding="utf-8")
        else:
            import networkx as nx

            getattr(nx, f"write_{kind}")(topology.to_networkx(), path)
    except OSError as problem:
        raise GraphError(
            f"the graph cannot be written to {str(path)!r}: {problem.strerror}"
        ) from None


def _from_networkx_text(text: str, kind: str, path: str) -> Topology:
    import networkx as nx

    try:
        graph = nx.parse_gml(text) if kind == "gml" else nx.parse_graphml(text)
    except Exception as problem:  # networkx's readers document no common error for broken files
        raise GraphError(
            f"{path!r} is not a {kind} file that networkx can read: {problem}"
        ) from None
    names = {str(node) for node in graph.nodes()}
    # nodes 1 and "1" are two users: then the names stay, and are refused as not unique
    if len(names) == len(graph) and all(map(edge_lists.is_user_number, names)):
        graph = nx.relabel_nodes(graph, {node: int(node) for node in graph.nodes()})
    return from_networkx(graph)
