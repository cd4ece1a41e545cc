"""Graphs in files: edge lists, GML and GraphML, in and out."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from decor.errors import GraphError

from .families import from_networkx
from .topology import Topology

_NETWORKX = {".gml": "gml", ".graphml": "graphml", ".xml": "graphml"}


def read(file: str | Path) -> Topology:
    """The graph in a file. `.gml` and `.graphml` are read as such, anything else as an edge list.

    An edge list has a line for every edge: two user names with a blank, tab or comma between them.
    A third column (a weight) is not read. A line with one name is a user without neighbours. `#`
    starts a comment.
    """
    try:
        path = Path(file)
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise GraphError(
            f"there is no graph file {str(path)!r}; give the path of an edge list, "
            "GML or GraphML file"
        ) from None
    except IsADirectoryError:
        raise GraphError(
            f"{str(path)!r} is a folder; give the path of an edge list, GML or GraphML file"
        ) from None
    except OSError as problem:
        raise GraphError(
            f"the graph file {str(path)!r} cannot be read: {problem.strerror}"
        ) from None
    except UnicodeDecodeError:
        raise GraphError(
            f"{str(path)!r} is not a text file; give an edge list, GML or GraphML file"
        ) from None
    except (TypeError, ValueError):
        raise GraphError(f"{file!r} is not the path of a graph file") from None
    if not text.strip():
        raise GraphError(
            f"the graph file {str(path)!r} is empty; write one edge a line, such as: 0 1"
        )
    kind = _NETWORKX.get(path.suffix.lower())
    return (
        from_edge_list(text, str(path)) if kind is None else _read_networkx(text, kind, str(path))
    )


def write(topology: Topology, file: str | Path) -> None:
    """Writes what `read` reads, in the format that the file's ending says."""
    path = Path(file)
    try:
        _write(topology, path, _NETWORKX.get(path.suffix.lower()))
    except OSError as problem:
        raise GraphError(
            f"the graph cannot be written to {str(path)!r}: {problem.strerror}"
        ) from None


def _write(topology: Topology, path: Path, kind: str | None) -> None:
    if kind is not None:
        import networkx as nx

        getattr(nx, f"write_{kind}")(topology.to_networkx(), path)
        return
    path.write_text(edge_list(topology), encoding="utf-8")


def edge_list(topology: Topology) -> str:
    """The text that `from_edge_list` reads as this graph."""
    strange = [
        name
        for name in topology.labels or ()
        if len(_fields(name)) != 1 or _fields(name) != name.split()
    ]
    if strange:
        raise GraphError(
            f"an edge list cannot hold the user name {strange[0]!r}; write a .gml or .graphml file"
        )
    lines = [f"{topology.name(i)} {topology.name(j)}" for i, j in topology.edges.tolist()]
    lines += [topology.name(int(i)) for i in (topology.degrees == 0).nonzero()[0]]
    return "\n".join(lines) + "\n"


def _fields(line: str) -> list[str]:
    return line.partition("#")[0].replace(",", " ").split()


def from_edge_list(text: str, path: str = "edge list") -> Topology:
    """The graph that an edge list says; `path` is what a message calls it."""
    seen: dict[str, int] = {}
    pairs: list[tuple[str, str]] = []
    where: dict[tuple[str, str], int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        names = _fields(line)
        if not names:
            continue
        if "\0" in line or len(names) > 3:
            raise GraphError(
                f"line {number} of {path!r} is not an edge: {line[:60]!r}; write two "
                "user names, such as: 0 1"
            )
        for name in names[:2]:
            seen.setdefault(name, len(seen))
        if len(names) == 1:
            continue
        a, b = sorted(names[:2])
        if a == b:
            raise GraphError(f"line {number} of {path!r} joins user {a} to itself; remove it")
        if (a, b) in where:
            raise GraphError(
                f"line {number} of {path!r} repeats the edge {a}-{b} of line {where[a, b]}; "
                "give every edge once, in either direction"
            )
        where[a, b] = number
        pairs.append((a, b))
    if not seen:
        raise GraphError(
            f"the graph file {path!r} holds no edge, only comments; write one edge a "
            "line, such as: 0 1"
        )
    names = sorted(seen, key=int) if all(_plain(name) for name in seen) else list(seen)
    position = {name: k for k, name in enumerate(names)}
    labels = None if names == [str(k) for k in range(len(names))] else tuple(names)
    edges = np.array([(position[a], position[b]) for a, b in pairs], dtype=np.int64).reshape(-1, 2)
    return Topology(len(names), edges, labels)


def _plain(name: str) -> bool:
    return name.isascii() and name.isdigit() and (name == "0" or name[0] != "0")


def _read_networkx(text: str, kind: str, path: str) -> Topology:
    import networkx as nx

    try:
        graph = nx.parse_gml(text) if kind == "gml" else nx.parse_graphml(text)
    # networkx's readers fail in as many ways as there are broken files
    except Exception as problem:
        raise GraphError(
            f"{path!r} is not a {kind} file that networkx can read: {problem}"
        ) from None
    if all(_plain(str(node)) for node in graph.nodes()) and len(
        {str(node) for node in graph.nodes()}
    ) == len(graph):
        graph = nx.relabel_nodes(graph, {node: int(node) for node in graph.nodes()})
    return from_networkx(graph)
