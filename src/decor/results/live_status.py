"""A run while it lasts: one small file in its folder, replaced at measurements and gone when the
run is over.

It holds the plan and what was measured so far, no model. Whoever watches reads it; nobody resumes
from it.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from decor.errors import InputError
from decor.privacy.plan import NoisePlan

from .files import replace_text

FILE, FORMAT = "live.json", "decor-live-1"
_EVERY = 0.5
"""Seconds between two writes."""


class Live:
    """Writes the file of one run.

    A disk that cannot take it is no reason to stop: what counts is saved elsewhere.

    `before` is the history of a run that goes on, and `simulated` whether it is a simulation.
    """

    def __init__(
        self,
        folder: Path,
        plan: NoisePlan,
        before: Mapping[str, list[float]] | None = None,
        simulated: bool = True,
    ) -> None:
        self.folder, self.plan, self.simulated = folder, plan, simulated
        count = len((before or {}).get("step", ()))
        self.rows = [
            {name: values[k] for name, values in (before or {}).items()} for k in range(count)
        ]
        self._written = -math.inf

    def measured(self, step: int, metrics: Mapping[str, float]) -> None:
        self.rows.append({**metrics, "step": step})
        if time.monotonic() - self._written < _EVERY:
            return
        rows = [{n: v if math.isfinite(v) else None for n, v in row.items()} for row in self.rows]
        value = {
            "format": FORMAT,
            "simulated": self.simulated,
            "plan": json.loads(self.plan.to_json()),
            "rows": rows,
        }
        with suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            replace_text(self.folder / FILE, json.dumps(value) + "\n")
            self._written = time.monotonic()

    def over(self) -> None:
        with suppress(OSError):
            (self.folder / FILE).unlink(missing_ok=True)


def read(folder: Path) -> tuple[NoisePlan, list[dict[str, Any]], bool] | None:
    """The plan, the rows and whether it is a simulation; None where no run is under way (or the
    file is of somebody else).
    """
    with suppress(OSError, ValueError, KeyError, TypeError, InputError):
        value = json.loads((folder / FILE).read_text(encoding="utf-8"))
        if value["format"] == FORMAT:
            rows = [dict(row) for row in value["rows"]]
            return (
                NoisePlan.from_json(json.dumps(value["plan"])),
                rows,
                value.get("simulated") is not False,
            )
    return None
