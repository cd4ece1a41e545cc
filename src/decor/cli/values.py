"""Types of command-line arguments: each function turns the text of one argument into its value."""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from decor import checks
from decor.errors import InputError, require

_RECORDS_SUFFIXES = (".csv", ".tsv", ".txt", ".json")


def number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number, not {text!r}") from None


def whole(text: str) -> int:
    """A whole number; 1e6 is one too."""
    try:
        value = float(text)
        # int() of an infinity or NaN raises
        if value != int(value):
            raise ValueError
        # digits are read as an integer: a float loses the last ones beyond 2^53
        return int(text) if text.lstrip("+-").isdigit() else int(value)
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(f"must be a whole number, not {text!r}") from None


def numbers(text: str) -> tuple[float, ...]:
    """One number, or several separated by commas."""
    return tuple(number(part) for part in text.split(",") if part.strip())


def seed(text: str) -> int | str:
    """A whole number for a simulation, or "secret" for a private run."""
    return "secret" if text == "secret" else whole(text)


def probability(text: str) -> float:
    """A number, or a fraction such as 1/40."""
    numerator, slash, denominator = text.partition("/")
    if not slash:
        return number(text)
    if not number(denominator):  # zero
        raise argparse.ArgumentTypeError(f"must be a number or a fraction, not {text!r}")
    return number(numerator) / number(denominator)


def records(text: str) -> int | tuple[int, ...] | dict[str, int]:
    """One number; NAME=M,... or a file for users with names; M,M,... for users 0..n-1."""
    path = Path(text)
    try:
        # by its suffix also if it is missing: then the error names the file
        if path.suffix.lower() in _RECORDS_SUFFIXES or ("=" not in text and path.is_file()):
            return read_records(path)
        if "=" in text:
            pairs = [part.rpartition("=") for part in text.split(",") if part.strip()]
            counts = [(name.strip(), whole(count.strip())) for name, _, count in pairs]
            return _by_name(counts, "the list")
    except InputError as problem:
        raise argparse.ArgumentTypeError(str(problem)) from None
    return tuple(whole(part) for part in text.split(",")) if "," in text else whole(text)


def read_records(path: Path) -> dict[str, int]:
    """The number of examples of each user, from a CSV file (user,records) or a JSON object."""
    where = f"the file of records {str(path)!r}"
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as problem:
        raise InputError(f"{where} cannot be read: {problem.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"{where} is not a text file; write lines such as: bonn,152") from None
    if not text.lstrip().startswith("{"):
        return _by_name(_read_csv(text, where), where)
    try:
        # as pairs, because a dict would silently drop a name that is given twice
        pairs = json.loads(text, object_pairs_hook=list)
    except (ValueError, RecursionError) as problem:
        raise InputError(f"{where} is not a JSON object: {problem}") from None
    return _by_name(pairs, where)


def _read_csv(text: str, where: str) -> list[tuple[str, int]]:
    header = text.partition("\n")[0]
    delimiter = next((mark for mark in ";\t" if mark in header), ",")
    pairs: list[tuple[str, int]] = []
    for k, row in enumerate(csv.reader(text.splitlines(), delimiter=delimiter), 1):
        cells = [cell.strip() for cell in row]
        if not any(cells) or (not pairs and cells == ["user", "records"]):
            continue
        # isdigit alone accepts digits of other scripts, which int() would read
        if len(cells) != 2 or not cells[0] or not (cells[1].isascii() and cells[1].isdigit()):
            raise InputError(
                f"line {k} of {where} is not a user and its number of records; write lines such "
                "as: bonn,152"
            )
        pairs.append((cells[0], int(cells[1])))
    return pairs


def _by_name(pairs: Sequence[tuple[str, Any]], where: str) -> dict[str, int]:
    counts: dict[str, int] = {}
    for name, count in pairs:
        if name in counts:
            raise InputError(f"{where} has the user {name!r} twice; give each user once")
        if not name or not checks.is_count(count, 0):
            raise InputError(
                f"{where} has {count!r} records for the user {name!r}; give a whole number for "
                "each name"
            )
        counts[name] = count
    if not counts:
        raise InputError(f"{where} holds no user; write lines such as: bonn,152")
    return counts


def rounds(text: str) -> int | str:
    """A number of gossip rounds, or auto."""
    return "auto" if text.strip().lower() == "auto" else whole(text)


def acceleration(text: str) -> str:
    """How gossip is accelerated, or no."""
    how = text.strip().lower()
    if how not in ("no", "chebyshev", "designed"):
        raise argparse.ArgumentTypeError(f"must be no, chebyshev or designed, not {text!r}")
    return how


def acceleration_or_off(text: str) -> str | bool:
    """The same, with False for no."""
    how = acceleration(text)
    return how != "no" and how


def plot_file(text: str) -> str:
    """The name of an image file, checked before anything is computed for the image."""
    require("matplotlib", None, "figures")
    from matplotlib.backend_bases import FigureCanvasBase

    # .pgf needs LaTeX
    path, known = Path(text), sorted({*FigureCanvasBase.get_supported_filetypes()} - {"pgf"})
    if path.suffix.lower().removeprefix(".") not in known:
        suffixes = ", ".join(f".{suffix}" for suffix in known)
        raise argparse.ArgumentTypeError(
            f"{text!r} cannot be written: its name must end in one of {suffixes}"
        )
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(
            f"{text!r} cannot be written: make the folder {str(path.parent)!r} first"
        )
    return text
