"""The state of a folder for the page: a training run, a comparison or a federation in progress.

Reads and never writes. All writers replace a file in one move, so that a file is complete or
missing; what is incomplete here is reported as such.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from decor.errors import InputError
from decor.privacy.plan import NoisePlan
from decor.results import live_status
from decor.results.build_report import METRICS
from decor.results.run import Run
from decor.results.safe_files import json_or_empty
from decor.results.stop_reason import StopReason
from decor.text import rounded_up

from .changes import Changes
from .federation_watch import FederationWatch
from .node_poll import Query

ReadNode = Callable[[Path], dict[str, Any]]
"""The ledger of a node -> its status, from the node if it is running; InputError: neither."""

_MAX_POINTS = 1000
_MAX_REMEMBERED = 1000
_WRITTEN = ("manifest.json", "plan.json", "metrics.jsonl", live_status.FILE)

Json = dict[str, Any]


class FolderWatch:
    """Watches one folder, named on the command line; no page can name another.

    Args:
        folder: It need not exist yet.
        read_node: Gives the status of the node that a ledger belongs to.
    """

    def __init__(self, folder: Path, read_node: ReadNode) -> None:
        self.folder, self._read_node = folder, read_node
        self._changes = Changes(self._read_state)
        self._federation = FederationWatch(str(folder), self._list_nodes)
        self._guarantees: dict[str, Json] = {}

    def changes_since(self, seen: object) -> Json:
        """The state of the folder, or only "unchanged".

        `quiet` is the number of seconds since something was written there.

        Args:
            seen: As of `Changes.since`.
        """
        # not part of the state: the time since the last write changes all the time
        return {"quiet": self._seconds_since_write()} | self._changes.since(seen)

    def _seconds_since_write(self) -> float | None:
        times = []
        known = [self.folder / name for name in _WRITTEN]
        for path in (*known, *self.folder.glob("outcomes/*.json")):
            try:
                times.append(path.stat().st_mtime)
            # not written yet, or gone since it was listed
            except OSError:
                continue
        # the clock may have been set back since
        return max(0.0, time.time() - max(times)) if times else None

    def _read_state(self) -> Json:
        return {"source": str(self.folder), **self._read_folder()}

    def _read_folder(self) -> Json:
        if not self.folder.is_dir():
            return _nothing("There is no such folder yet. The page will show it when it appears.")
        # before the manifest: a run in progress is newer than its last checkpoint
        live = live_status.read(self.folder)
        if live is not None:
            plan, rows, simulated = live
            # a private run in progress has noise on the grid, like the manifest that it will write
            manifest = {} if simulated else {"noise": {"kind": "grid", "distance": 0.0}}
            return self._training(plan, rows, manifest, in_progress=True)
        manifest = json_or_empty(self.folder / "manifest.json")
        match manifest.get("format"):
            case "decor-run-1":
                return self._run_state(manifest)
            case "decor-comparison-1":
                return self._comparison(manifest)
        if self._list_nodes():
            return self._federation.read_state()
        return _nothing(
            "No run is here yet. The page will show what decor train, compare or up writes."
        )

    def _list_nodes(self) -> dict[str, Query]:
        """How to ask the node of each ledger: here, or in the folder that decor up makes."""
        for folder in (self.folder, self.folder / "run"):
            if ledgers := sorted(folder.glob("*.ledger")):
                return {path.stem: partial(self._read_node, path) for path in ledgers}
        return {}

    def _run_state(self, manifest: Json) -> Json:
        try:
            plan = NoisePlan.load(self.folder / "plan.json")
        except InputError:
            return _nothing("A run is being written here; its plan cannot be read yet.")
        return self._training(plan, _read_rows(self.folder / "metrics.jsonl"), manifest)

    def _training(
        self, plan: NoisePlan, rows: list[Json], manifest: Json, in_progress: bool = False
    ) -> Json:
        steps = plan.exposure.steps
        last = rows[-1].get("step") if rows else 0
        taken = last if in_progress else manifest.get("steps_taken")
        # a manifest that is being replaced, or edited, may hold anything
        taken = taken if isinstance(taken, int) and 0 <= taken <= steps else 0
        stopped = _stop_reason(manifest)
        over = not in_progress and (taken == steps or bool(stopped))
        state = f"Stopped early: {stopped}." if stopped else "Finished." if over else "In progress."
        metrics = [
            metric
            for metric in METRICS
            if any(isinstance(row.get(metric.name), int | float) for row in rows)
        ]
        if len(rows) > _MAX_POINTS:  # every k-th row, and the last one
            rows = rows[:: -(-len(rows) // _MAX_POINTS)] + rows[-1:]
        columns = ("step", *(metric.name for metric in metrics))
        return {
            "kind": "training",
            "said": state,
            "over": over,
            "title": str(_section(manifest, "task").get("name", "training")),
            "graph": plan.topology.description,
            "step": taken,
            "steps": steps,
            **self._guarantee(Run(plan, {}, {}, taken, stopped, manifest)),
            "metrics": [metric.to_json() for metric in metrics],
            "history": {name: [row.get(name) for row in rows] for name in columns},
        }

    def _guarantee(self, run: Run) -> Json:
        """The guarantee of the run, and its epsilon so far had the steps been fixed in advance.

        Remembered, because the accounting may be slow.
        """
        plan = run.plan
        marks = [run.manifest.get(name) for name in ("noise", "engine", "stop_saw_private_data")]
        key = json.dumps([plan.to_json(), run.steps_taken, run.stopped, marks], default=str)
        if key not in self._guarantees:
            # a plan without a budget has no delta of its own
            delta = None if plan.budget is not None else 1e-5
            whole, so_far = run.guarantee_at(delta), run.guarantee_at(delta, steps=run.steps_taken)
            # a run has a new key at every measurement
            if len(self._guarantees) > _MAX_REMEMBERED:
                self._guarantees.clear()
            self._guarantees[key] = {
                "simulated": run.simulated,
                "epsilon": rounded_up(so_far.epsilon),
                "promised": rounded_up(whole.epsilon),
                "budget": None if plan.budget is None else rounded_up(plan.budget.epsilon),
                "statement": str(whole),
            }
        return self._guarantees[key]

    def _comparison(self, manifest: Json) -> Json:
        rows: list[Json] = []
        for path in sorted(self.folder.glob("outcomes/*.json")):
            for entry in json_or_empty(path, list):
                if isinstance(entry, dict):
                    rows.append(_outcome(entry))
        over, finished = bool(manifest.get("complete")), len({row["method"] for row in rows})
        shown = [each for each in METRICS if any(row[each.name] is not None for row in rows)]
        return {
            "kind": "comparison",
            "said": "Finished." if over else f"In progress: {finished} methods are finished.",
            "over": over,
            "title": str(_section(manifest, "task").get("name", "comparison")),
            "rows": rows,
            "metrics": [each.to_json() for each in shown],
        }


def _nothing(sentence: str) -> Json:
    return {"kind": "nothing", "said": sentence}


def _outcome(entry: Json) -> Json:
    """A row of the table: the means over the seeds of one method at one epsilon."""
    epsilon, final = entry.get("epsilon"), _section(entry, "final")
    return {
        "method": str(entry.get("method")),
        # training without privacy, which the others are compared with
        "epsilon": "none" if epsilon is None else rounded_up(float(epsilon)),
        **{each.name: _mean(final.get(each.name)) for each in METRICS},
    }


def _stop_reason(manifest: Json) -> StopReason | None:
    text = manifest.get("stopped")
    return StopReason.load(str(text), manifest.get("stop_cause")) if text else None


def _section(value: Json, name: str) -> Json:
    section = value.get(name)
    return section if isinstance(section, dict) else {}


def _read_rows(path: Path) -> list[Json]:
    """The complete rows of metrics.jsonl."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return []
    rows = []
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and isinstance(row.get("step"), int):
            rows.append(row)
    return rows


def _mean(values: Any) -> float | None:
    known = [v for v in values if isinstance(v, int | float)] if isinstance(values, list) else []
    return sum(known) / len(known) if known else None
