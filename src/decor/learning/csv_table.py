"""A CSV file as columns by name, all of them texts: what they mean is said elsewhere, publicly.

No error message repeats the content of a cell; it says where the cell is.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TextIO

from decor.errors import InputError, write_errors

Columns = dict[str, list[str]]
"""Column names with the texts of their cells, all of the same length."""

NUMBER = re.compile(
    r"\s*[+-]?(\d+\.?\d*([eE][+-]?\d+)?|\.\d+([eE][+-]?\d+)?|nan|inf|infinity)\s*",
    re.ASCII | re.IGNORECASE,
)
"""Stricter than float(), which also takes "1_0" and digits of other alphabets."""
_DECIMAL_COMMA = re.compile(r"\s*[+-]?\d+,\d+\s*", re.ASCII)
_ROWS = 256
"""Rows that are held at a time."""
_QUOTED = re.compile(r'"[^"]*"')


def read_columns(path: str | Path) -> Columns:
    """Reads a CSV file with a header.

    Cells are separated by commas, semicolons or tabs, and may be quoted. In a file with semicolons
    a number may have a decimal comma. Blank lines are skipped.

    Args:
        path: The file.

    Returns:
        The columns in the order of the header. A file with a header alone has empty columns.

    Raises:
        InputError: If the file cannot be read, has no header, names a column twice, or has a line
            with more or fewer cells than the header.
    """
    name = repr(str(path))
    header, columns = _read(path, name)
    if not header:
        raise InputError(f"{name} is empty; its first line names the columns")
    _check_header(header, name)
    return dict(zip(header, columns, strict=True))


def read_header(path: str | Path) -> tuple[str, ...]:
    """The column names of a CSV file; no record is read."""
    name = repr(str(path))
    header, _ = _read(path, name, header_only=True)
    if not header:
        raise InputError(f"{name} is empty; its first line names the columns")
    _check_header(header, name)
    return tuple(header)


def separator_of(line: str) -> str:
    """What separates the cells of a file with this first line: a comma, a semicolon or a tab."""
    return max(",;\t", key=_QUOTED.sub("", line).count)


def write_columns(path: str | Path, columns: Columns, overwrite: bool = False) -> None:
    """Writes a CSV file that `read_columns` reads.

    Args:
        path: The file.
        columns: As `read_columns` gives them.
        overwrite: Whether a file that is there may be replaced.
    """
    mode, exists = "w" if overwrite else "x", "replace it with --overwrite, or name another file"
    with (
        write_errors(path, exists=exists),
        Path(path).open(mode, encoding="utf-8", newline="") as file,
    ):
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(columns)
        rows.writerows(zip(*columns.values(), strict=True))


def _read(
    path: str | Path, name: str, header_only: bool = False
) -> tuple[list[str], list[list[str]]]:
    try:
        # spreadsheets write a byte order mark, which is not part of a column's name
        with Path(path).open(encoding="utf-8-sig", newline="") as file:
            return _parse(file, name, header_only)
    except OSError as problem:
        raise InputError(
            f"the data {name} cannot be read: {problem.strerror}; give a CSV file with a header"
        ) from None
    except UnicodeDecodeError:
        raise InputError(f"{name} is not a text file in UTF-8; save it as CSV in UTF-8") from None


def _parse(file: TextIO, name: str, header_only: bool) -> tuple[list[str], list[list[str]]]:
    separator = separator_of(file.readline())
    file.seek(0)
    lines = csv.reader(file, delimiter=separator, skipinitialspace=True, strict=True)
    columns: list[list[str]] = []
    try:
        header = [cell.strip() for cell in next(_not_blank(lines), [])]
        if not header_only:
            columns = _transpose(_not_blank(lines), header, name, separator)
    except csv.Error as problem:
        raise InputError(f"line {lines.line_num} of {name} is not CSV: {problem}") from None
    return header, columns


def _transpose(
    rows: Iterator[list[str]], header: Sequence[str], name: str, separator: str
) -> list[list[str]]:
    """The columns."""
    # some rows at a time: the garbage collector goes through all that live, again and again
    columns: list[list[str]] = [[] for _ in header]
    while some := list(islice(rows, _ROWS)):
        _check_lengths(header, some, name, len(columns[0]))
        if separator == ";":
            some = [_with_points(row) for row in some]
        for column, cells in zip(columns, zip(*some, strict=True), strict=True):
            column.extend(cells)
    return columns


def _check_lengths(
    header: Sequence[str], rows: Sequence[Sequence[str]], name: str, before: int
) -> None:
    if {*map(len, rows)} <= {len(header)}:
        return
    numbered = enumerate(rows, start=before + 1)
    number, row = next((k, r) for k, r in numbered if len(r) != len(header))
    raise InputError(
        f"record {number} of {name} has {len(row)} cells, and the header has {len(header)}; "
        "correct the record"
    )


def _not_blank(rows: Iterable[list[str]]) -> Iterator[list[str]]:
    # a line of separators alone is a record, with all of its values missing
    return (row for row in rows if len(row) > 1 or any(map(str.strip, row)))


def _with_points(row: list[str]) -> list[str]:
    """The cells with points in numbers that have a decimal comma."""
    return [cell.replace(",", ".") if _DECIMAL_COMMA.fullmatch(cell) else cell for cell in row]


def _check_header(header: Sequence[str], name: str) -> None:
    # all of them: a single column may well be called 2019
    if all(map(NUMBER.fullmatch, header)):
        raise InputError(
            f"the first line of {name} holds numbers, not the names of columns; add a header"
        )
    if "" in header:
        raise InputError(
            f"column {header.index('') + 1} of {name} has no name; name it in the header"
        )
    twice = [each for each in header if header.count(each) > 1]
    if twice:
        raise InputError(
            f"{name} has column {twice[0]!r} more than once; name each column differently"
        )
