"""Edge lists as people have them: separators, quotes and headers of tables.

What cannot be told apart from something else is refused: a header that became two users, or a
weight that became part of a name, would change everyone's noise without a word.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass

from decor.errors import GraphError
from decor.text import amount

from .families import from_edges
from .topology import Topology

_SEPARATORS = {";": "semicolon", "\t": "tab", ",": "comma", " ": "blank"}
_ENDS = (
    *(("source", "target"), ("src", "dst"), ("src", "dest"), ("from", "to")),
    *(("start", "end"), ("sender", "receiver"), ("von", "nach"), ("quelle", "ziel")),
)
"""Names of the two columns of users, in lower case."""
_NUMBER = re.compile(r"[+-]?\d+([.,]\d*)?([eE][+-]?\d+)?")
_QUOTED = re.compile(r'"(?:[^"]|"")*"')
_BLANKS = re.compile(rf"({_QUOTED.pattern})|\s+")


@dataclass(frozen=True)
class EdgeList:
    """A graph, and how its file was understood.

    Attributes:
        topology: The graph.
        separator: What stands between two cells: "semicolon", "tab", "comma" or "blank".
        header: The line that was skipped as a header, or None.
    """

    topology: Topology
    separator: str
    header: str | None

    def __str__(self) -> str:
        users = amount(self.topology.users, "user")
        edges = amount(self.topology.edge_count, "edge")
        header = "no header" if self.header is None else f"header skipped: {self.header[:60]!r}"
        return f"{users}, {edges}; separator: {self.separator}; {header}"


@dataclass(frozen=True)
class _Line:
    number: int
    text: str
    cells: tuple[str, ...]

    @property
    def is_quoted(self) -> bool:
        return '"' in self.text


def parse(text: str, path: str = "edge list") -> EdgeList:
    """Reads an edge list.

    Args:
        text: The content of the file. One line per edge: two names with a semicolon, tab, comma or
            blanks between them, and perhaps a weight, which is ignored. A line with one name
            declares a user. `#` starts a comment. Names with separators or double
            quotes stand in double quotes, where each double quote of the name is written twice. A
            first line with names that occur nowhere else is a header if its names are usual ones
            (source and target, from and to) or its third column is no number where all others are.
        path: What error messages call the file.

    Raises:
        GraphError: If a line is no edge, or could mean two things.
    """
    lines = _without_comments(text, path)
    separator = _separator([_bare(line.text) for line in lines], path)
    rows = _cells(lines, separator, path)
    header, ends = _header(rows, path)
    body = rows[1:] if header is not None else rows
    if separator == " ":
        _refuse_words_beside_names(body, path)
    topology = _graph([_edge_of(row, ends, path) for row in body], body, path)
    return EdgeList(topology, _SEPARATORS[separator], header)


def format(topology: Topology) -> str:
    """The text that `parse` reads as this graph.

    Raises:
        GraphError: If a user's name cannot be written.
    """
    names = [quote_name(topology.name(user)) for user in range(topology.users)]
    lines = [f"{names[i]} {names[j]}" for i, j in topology.edges.tolist()]
    # users without neighbours, one name per line
    alone = (topology.degrees == 0).nonzero()[0].tolist()
    if lines and topology.labels is not None:
        # a name that occurs twice cannot be taken for a header
        i, j = topology.edges[0].tolist()
        if topology.degrees[i] == topology.degrees[j] == 1:
            alone.append(i)
    return "\n".join([*lines, *(names[user] for user in alone)]) + "\n"


def quote_name(name: str) -> str:
    """The name of a user as `parse` reads it; raises GraphError for one that cannot be written."""
    if len(name.splitlines()) != 1 or "\0" in name or name != name.strip():
        raise GraphError(
            f"an edge list cannot hold the user name {name!r}; write a .gml or .graphml file"
        )
    # as tables have it: a double quote inside quotes is written twice
    return '"' + name.replace('"', '""') + '"' if re.search(r'[\s,;#"]', name) else name


def _without_comments(text: str, path: str) -> list[_Line]:
    lines = []
    # spreadsheets begin a file with a byte order mark, which would join the first name
    for number, whole in enumerate(text.removeprefix("\ufeff").splitlines(), start=1):
        # a # in quotes is part of a name
        inside = _QUOTED.sub(lambda quoted: "x" * len(quoted[0]), whole)
        # networkx ends its lines with the attributes of the edge
        line = re.sub(r"\s\{[^{}]*\}$", "", whole[: len(inside.partition("#")[0])].strip())
        if '"' in inside.partition("#")[0] or "\0" in line:
            raise _not_an_edge(number, path, line)
        if line:
            lines.append(_Line(number, line, ()))
    if not lines:
        raise GraphError(
            f"the graph file {path!r} holds no edge, only comments; write one edge per line, "
            "such as: 0 1"
        )
    return lines


def _bare(line: str) -> str:
    """The line with names in quotes shortened, and without blanks beside a separator."""
    return re.sub(r"\s*([,;])\s*", r"\1", _QUOTED.sub("x", line))


def _separator(lines: Sequence[str], path: str) -> str:
    marks = [mark for mark in ";\t," if any(mark in line for line in lines)]
    if not marks:
        return " "
    # beside semicolons, a comma is part of a decimal number or a name
    if marks == ["\t", ","]:
        raise GraphError(
            f"{path!r} has tabs and commas; separate with one of them, and put names that "
            "contain the other in double quotes"
        )
    return marks[0]


def _cells(lines: Sequence[_Line], separator: str, path: str) -> list[_Line]:
    rows = []
    for line in lines:
        # blanks inside quotes are part of a name
        text = line.text if separator != " " else _BLANKS.sub(lambda m: m[1] or " ", line.text)
        cells = next(csv.reader([text], delimiter=separator, skipinitialspace=True))
        # a line of a table may end with empty cells
        while cells and not cells[-1].strip():
            cells.pop()
        kept = tuple(cell.strip() for cell in cells)
        if not all(kept[:2]) or not kept:
            raise _not_an_edge(line.number, path, line.text)
        rows.append(_Line(line.number, line.text, kept))
    return rows if separator == " " else _blanks_resolved(rows, path)


def _blanks_resolved(rows: list[_Line], path: str) -> list[_Line]:
    """Decides whether blanks beside another separator are part of names.

    `Bern,Geneva 0.5` has a weight, and `Branch 00,Branch 01` does not.
    """
    by_blanks = [row if row.is_quoted else _split_at_blanks(row) for row in rows]
    unclear = [k for k, row in enumerate(rows) if by_blanks[k].cells != row.cells]
    # a file in which blanks can nowhere else separate has names with blanks
    if not unclear or not all(_is_short(by_blanks[k]) for k in unclear):
        return rows
    for k in unclear:
        row, words = rows[k], by_blanks[k].cells
        # 0.5 is a weight; 1 may be the end of a name, and one cell may be a user or an edge
        if len(words) < 3 and len(row.cells) == 1 or words[-1].isdigit():
            raise GraphError(
                f"line {row.number} of {path!r} could mean two things: {row.text[:60]!r}; put a "
                "name that contains a blank in double quotes, and the same separator between all "
                "columns"
            )
    return by_blanks


def _split_at_blanks(row: _Line) -> _Line:
    return _Line(row.number, row.text, tuple(word for cell in row.cells for word in cell.split()))


def _is_short(row: _Line) -> bool:
    """Whether the cells are two users, or two users and a number."""
    return len(row.cells) == 2 or (len(row.cells) == 3 and bool(_NUMBER.fullmatch(row.cells[2])))


def _refuse_words_beside_names(rows: Sequence[_Line], path: str) -> None:
    for row in rows:
        if len(row.cells) == 3 and not _NUMBER.fullmatch(row.cells[2]):
            raise GraphError(
                f"line {row.number} of {path!r} has a third column that is no number: "
                f"{row.text[:60]!r}; put a name that contains a blank in double quotes, and drop "
                "other columns"
            )


def _header(rows: Sequence[_Line], path: str) -> tuple[str | None, tuple[int, int]]:
    """The header if there is one, and the columns that hold users."""
    first, rest = rows[0], rows[1:]
    words = tuple(cell.lower() for cell in first.cells)
    ends = next((pair for pair in _ENDS if set(pair) <= set(words)), None)
    columns = (0, 1) if ends is None else (words.index(ends[0]), words.index(ends[1]))
    if len(words) < 2 or not rest or _occurs_again([first.cells[k] for k in columns], rest):
        return None, (0, 1)
    if ends is not None or _is_title(first, rest):
        return first.text, columns
    # in a graph of separate pairs the first line is a pair like all others
    others = [name for row in rest for name in row.cells[:2]]
    if any(map(is_user_number, first.cells[:2])) or len(set(others)) == len(others):
        return None, (0, 1)
    raise GraphError(
        f"line {first.number} of {path!r} may be a header or an edge: {first.text[:60]!r}; its "
        "names occur nowhere else. Put # before a header; for an edge, write one of its names "
        "again, on a line of its own"
    )


def _occurs_again(names: Sequence[str], rows: Sequence[_Line]) -> bool:
    later = {cell for row in rows for cell in row.cells}
    return any(name in later for name in names)


def _is_title(first: _Line, rest: Sequence[_Line]) -> bool:
    """Whether a column has numbers in all lines but the first."""
    edges = [row for row in rest if len(row.cells) > 1]
    for column, title in enumerate(first.cells):
        below = [row.cells[column] for row in edges if len(row.cells) > column]
        if below and all(map(_NUMBER.fullmatch, below)) and not _NUMBER.fullmatch(title):
            return True
    return False


def _edge_of(row: _Line, ends: tuple[int, int], path: str) -> tuple[str, ...]:
    """One or two names of users."""
    if len(row.cells) == 1:
        return row.cells
    # only a header that names the columns of users makes sense of more than a weight
    most = 3 if ends == (0, 1) and len(row.cells) > 3 else len(row.cells)
    if len(row.cells) > most or len(row.cells) <= max(ends):
        raise _not_an_edge(row.number, path, row.text)
    return row.cells[ends[0]], row.cells[ends[1]]


def _graph(edges: Sequence[tuple[str, ...]], rows: Sequence[_Line], path: str) -> Topology:
    line_of: dict[tuple[str, str], int] = {}
    for names, row in zip(edges, rows, strict=True):
        if len(names) == 1:
            continue
        # an edge has no direction
        a, b = sorted(names)
        if a == b:
            raise GraphError(f"line {row.number} of {path!r} joins user {a} to itself; remove it")
        # refused and not dropped: one of its two names may be the slip
        if (a, b) in line_of:
            raise GraphError(
                f"line {row.number} of {path!r} repeats the edge {a}-{b} of line "
                f"{line_of[a, b]}; give every edge once, in either direction"
            )
        line_of[a, b] = row.number
    # in the order in which they appear
    found = list(dict.fromkeys(name for names in edges for name in names))
    # 0..n-1 in any order of lines is a graph without names, so numbers are put in order
    users = sorted(found, key=int) if all(map(is_user_number, found)) else found
    position = {name: k for k, name in enumerate(users)}
    labels = None if users == [str(k) for k in range(len(users))] else users
    return from_edges(len(users), [(position[a], position[b]) for a, b in line_of], labels)


def is_user_number(name: str) -> bool:
    """Whether the name is a user's number, as graphs without names have."""
    # "01" and "1" are two different names, so neither may become a number
    return name.isascii() and name.isdigit() and (name == "0" or name[0] != "0")


def _not_an_edge(number: int, path: str, line: str) -> GraphError:
    return GraphError(
        f"line {number} of {path!r} is not an edge: {line[:60]!r}; write two user names, "
        "such as: 0 1"
    )
