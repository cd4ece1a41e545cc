"""Files that are never half written, files for their owner alone, and metrics as JSON lines."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from decor import checks
from decor.errors import InputError


def write_private(path: Path, text: str) -> None:
    """Writes a file that only its owner can read, in one move."""
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    # created with its mode, so that it is at no time readable by others
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "w", encoding="utf-8") as stream:
        stream.write(text)
    os.replace(new, path)


def read_key(path: Path) -> bytes | None:
    """Reads a key of 32 bytes in hexadecimal; None where there is none."""
    try:
        key = bytes.fromhex(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as problem:
        raise InputError(f"{str(path)!r} cannot be read: {problem}") from None
    # a file that was cut short is not a key
    return key if len(key) == 32 else None


def replace_text(path: Path, text: str) -> None:
    """Writes a file in one move: it holds the old text or the new text, never a part."""
    new = path.with_name(path.name + ".new")
    # in the same folder, so that the move stays on one file system and is atomic
    new.write_text(text, encoding="utf-8")
    os.replace(new, path)


def clear(folder: Path, patterns: Iterable[str]) -> None:
    """Removes the files of a folder that match one of these patterns, and nothing else."""
    for pattern in patterns:
        # listed first: removing files while a folder is read may skip some
        for path in list(folder.glob(pattern)):
            path.unlink(missing_ok=True)


def read_json(path: Path) -> Any:
    """Reads a JSON file of a run folder."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        folder = str(path.parent)
        raise InputError(f"{folder!r} is not a run folder: {path.name} is missing") from None
    # RecursionError: deeply nested brackets, which no run writes
    except (OSError, ValueError, RecursionError) as problem:
        raise InputError(f"{str(path)!r} cannot be read: {problem}") from None


def json_or_empty(path: Path, kind: type = dict) -> Any:
    """The content of a JSON file, or an empty `kind`: the file may be incomplete, or gone."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    # RecursionError: deeply nested brackets, which no run writes
    except (OSError, ValueError, RecursionError):
        value = None
    return value if isinstance(value, kind) else kind()


def metrics_lines(history: dict[str, list[float]]) -> str:
    """One JSON line for each measurement; a value that is not finite is null."""
    lines = ""
    for k in range(len(history.get("step", []))):
        values = {name: column[k] for name, column in history.items()}
        row = {name: value if math.isfinite(value) else None for name, value in values.items()}
        lines += json.dumps(row, allow_nan=False) + "\n"
    return lines


def read_metrics(path: Path, steps: int) -> dict[str, list[float]]:
    """Reads the columns of metrics up to step `steps`.

    A save that was interrupted may have left later rows, which belong to no saved model.
    """
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError, RecursionError) as problem:
        raise InputError(f"{str(path)!r} cannot be read: {problem}") from None
    for k, row in enumerate(rows):
        if not _is_measurement(row) or set(row) != set(rows[0]):
            raise InputError(f"{str(path)!r} has no measurement of the usual kind in line {k + 1}")
    # rows are checked before they are cut: a damaged line is reported wherever it is
    rows = [row for row in rows if row["step"] <= steps]
    names = rows[0] if rows else {}
    return {name: [math.nan if r[name] is None else r[name] for r in rows] for name in names}


def _is_measurement(row: Any) -> bool:
    if not isinstance(row, dict) or not isinstance(row.get("step"), int):
        return False
    # as_float gives NaN for anything that is not a number
    return all(value is None or not math.isnan(checks.as_float(value)) for value in row.values())
