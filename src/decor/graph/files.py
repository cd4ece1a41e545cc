"""Graph files: read and write edge lists, GML and GraphML."""

from __future__ import annotations

from pathlib import Path

from decor.errors import GraphError

from .families import from_edges, from_networkx
from .topology import Topology

_NETWORKX = {".gml": "gml", ".graphml": "graphml", ".xml": "graphml"}
_FORMATS = "an edge list, GML or GraphML file"


def read(file: str | Path) -> Topology:
    """The graph in a file.

    An edge list has one line per edge: two user names with a blank, tab or comma between them. A
    third column (a weight) is ignored. A line with one name is a user without neighbours. `#`
    starts a comment.

    Args:
        file: A path. `.gml`, `.graphml` and `.xml` files are read as such, all others as an edge
            list.

    Raises:
        GraphError: If the file cannot be read; the message names the line of an edge list.
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
        return from_edge_list(text, str(path))
    return _from_networkx_text(text, kind, str(path))


def write(topology: Topology, file: str | Path) -> None:
    """Writes a graph in a format that `read` reads.

    Args:
        topology: The graph.
        file: A path, whose ending selects the format as in `read`.

    Raises:
        GraphError: If the file cannot be written, or an edge list cannot hold a user's name.
    """
    path = Path(file)
    kind = _NETWORKX.get(path.suffix.lower())
    try:
        if kind is None:
            path.write_text(edge_list(topology), encoding="utf-8")
        else:
            import networkx as nx

            getattr(nx, f"write_{kind}")(topology.to_networkx(), path)
    except OSError as problem:
        raise GraphError(
            f"the graph cannot be written to {str(path)!r}: {problem.strerror}"
        ) from None


def edge_list(topology: Topology) -> str:
    """The text that `from_edge_list` reads as this graph."""
    # a blank, comma or # in a name would be read as something else
    for name in topology.labels or ():
        if len(_fields(name)) != 1 or _fields(name) != name.split():
            raise GraphError(
                f"an edge list cannot hold the user name {name!r}; write a .gml or .graphml file"
            )
    lines = [f"{topology.name(i)} {topology.name(j)}" for i, j in topology.edges.tolist()]
    # users without neighbours, one name per line
    lines += [topology.name(int(i)) for i in (topology.degrees == 0).nonzero()[0]]
    return "\n".join(lines) + "\n"


def _fields(line: str) -> list[str]:
    return line.partition("#")[0].replace(",", " ").split()


def from_edge_list(text: str, path: str = "edge list") -> Topology:
    """The graph of an edge list.

    Args:
        text: The content of the file.
        path: What error messages call the file.
    """
    names: dict[str, None] = {}  # in the order in which they appear
    line_of: dict[tuple[str, str], int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        fields = _fields(line)
        if not fields:
            continue
        if "\0" in line or len(fields) > 3:
            raise GraphError(
                f"line {number} of {path!r} is not an edge: {line[:60]!r}; write two user names, "
                "such as: 0 1"
            )
        names.update(dict.fromkeys(fields[:2]))
        if len(fields) == 1:
            continue
        # an edge has no direction
        a, b = sorted(fields[:2])
        if a == b:
            raise GraphError(f"line {number} of {path!r} joins user {a} to itself; remove it")
        if (a, b) in line_of:
            raise GraphError(
                f"line {number} of {path!r} repeats the edge {a}-{b} of line {line_of[a, b]}; "
                "give every edge once, in either direction"
            )
        line_of[a, b] = number
    if not names:
        raise GraphError(
            f"the graph file {path!r} holds no edge, only comments; write one edge per line, "
            "such as: 0 1"
        )
    users = sorted(names, key=int) if all(_is_user_number(name) for name in names) else list(names)
    position = {name: k for k, name in enumerate(users)}
    labels = None if users == [str(k) for k in range(len(users))] else users
    return from_edges(len(users), [(position[a], position[b]) for a, b in line_of], labels)


def _is_user_number(name: str) -> bool:
    # "01" and "1" are two different names, so neither may become a number
    return name.isascii() and name.isdigit() and (name == "0" or name[0] != "0")


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
    if len(names) == len(graph) and all(map(_is_user_number, names)):
        graph = nx.relabel_nodes(graph, {node: int(node) for node in graph.nodes()})
    return from_networkx(graph)
