"""The status of a run while it trains: one small file in its folder, removed at the end.

The file holds the plan and the measurements so far, and no model. `decor ui` reads it; a run is
never resumed from it.
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

from .safe_files import replace_text

FILE, FORMAT = "live.json", "decor-live-1"
_INTERVAL = 0.5
"""Seconds between two writes, at least."""


class LiveStatus:
    """Writes the status file of one run.

    A file that cannot be written does not stop the run: the results are saved elsewhere.
    """

    def __init__(
        self,
        folder: Path,
        plan: NoisePlan,
        history: Mapping[str, list[float]] | None = None,
        simulated: bool = True,
    ) -> None:
        """Starts a status.

        Args:
            folder: The run folder.
            plan: The noise plan of the run.
            history: The metrics of a run that is resumed.
            simulated: Whether the run is a simulation.
        """
        self.folder, self.plan, self.simulated = folder, plan, simulated
        earlier = history or {}
        count = len(earlier.get("step", ()))
        self.rows = [{name: v[k] for name, v in earlier.items()} for k in range(count)]
        self._written = -math.inf

    def record(self, step: int, metrics: Mapping[str, float]) -> None:
        """Adds a measurement, and writes the file unless it was written a moment ago."""
        # kept in memory even where it is not written now: the next write has all
        self.rows.append({**metrics, "step": step})
        if time.monotonic() - self._written < _INTERVAL:
            return
        rows = [{n: v if math.isfinite(v) else None for n, v in row.items()} for row in self.rows]
        value = {
            "format": FORMAT,
            "simulated": self.simulated,
            "plan": json.loads(self.plan.to_json()),
            "rows": rows,
        }
        with suppress(OSError):
            # a run is saved at its end, so its folder may not exist yet
            self.folder.mkdir(parents=True, exist_ok=True)
            replace_text(self.folder / FILE, json.dumps(value) + "\n")
            self._written = time.monotonic()

    def remove(self) -> None:
        """Removes the file: the run has ended."""
        with suppress(OSError):
            (self.folder / FILE).unlink(missing_ok=True)


def read(folder: Path) -> tuple[NoisePlan, list[dict[str, Any]], bool] | None:
    """The plan, the measurements, and whether the run is a simulation.

    None where no run is training, or where the file is not a status file.
    """
    with suppress(OSError, ValueError, KeyError, TypeError, InputError):
        value = json.loads((folder / FILE).read_text(encoding="utf-8"))
        if value["format"] == FORMAT:
            plan = NoisePlan.from_json(json.dumps(value["plan"]))
            rows = [dict(row) for row in value["rows"]]
            # files of earlier versions, which only simulations had, do not say it
            return plan, rows, value.get("simulated") is not False
    return None
