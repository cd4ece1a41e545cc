"""Files that are never half written, files that only their owner can read, and metrics as lines of
JSON.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from decor import checks
from decor.errors import InputError


def write_owned(path: Path, text: str) -> None:
    """Writes a file that its owner alone can read, in one move."""
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    with open(
        os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8"
    ) as stream:
        stream.write(text)
    os.replace(new, path)


def read_key(path: Path) -> bytes | None:
    """A key of 32 bytes in hexadecimal; None where there is none."""
    try:
        found = bytes.fromhex(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as problem:
        raise InputError(f"{str(path)!r} cannot be read: {problem}") from None
    return found if len(found) == 32 else None


def replace_text(path: Path, text: str) -> None:
    """Writes a file in one move: it is the old one or the new one, never half of it."""
    new = path.with_name(path.name + ".new")
    new.write_text(text, encoding="utf-8")
    os.replace(new, path)


def clear(folder: Path, patterns: Iterable[str]) -> None:
    """Removes the files that these patterns name, and nothing else of the folder."""
    for path in [path for pattern in patterns for path in folder.glob(pattern)]:
        path.unlink(missing_ok=True)


def read_json(path: Path) -> Any:
    """What a JSON file of a run folder holds."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(
            f"{str(path.parent)!r} is not a run folder: {path.name} is missing"
        ) from None
    except (OSError, ValueError, RecursionError) as problem:
        raise InputError(f"{str(path)!r} cannot be read: {problem}") from None


def metrics_lines(history: dict[str, list[float]]) -> str:
    """One line a measurement; what is not finite is null."""
    rows = [
        {name: values[k] if math.isfinite(values[k]) else None for name, values in history.items()}
        for k in range(len(history.get("step", [])))
    ]
    return "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows)


def read_metrics(path: Path, steps: int) -> dict[str, list[float]]:
    """Columns of the rows up to `steps`: an interrupted save may have left later ones."""
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError, RecursionError) as problem:
        raise InputError(f"{str(path)!r} cannot be read: {problem}") from None
    for k, row in enumerate(rows):
        known = (
            isinstance(row, dict) and set(row) == set(rows[0]) and isinstance(row.get("step"), int)
        )
        if not known or not all(
            v is None or not math.isnan(checks.as_float(v)) for v in row.values()
        ):
            raise InputError(f"{str(path)!r} has no measurement of the usual kind in line {k + 1}")
    rows = [row for row in rows if row["step"] <= steps]
    return {
        name: [math.nan if row[name] is None else row[name] for row in rows]
        for name in (rows[0] if rows else {})
    }
