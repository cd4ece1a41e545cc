"""A folder as it is now, for whoever looks on: a training, a comparison or a federation, also while
it is being written.

Reads and never writes. What is half there is said to be, or is what it was a moment ago: all files
here are replaced in one move.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from decor.errors import InputError
from decor.privacy.plan import NoisePlan
from decor.results import live_status
from decor.results.outcomes import METRICS
from decor.results.run import Run
from decor.results.stop_reason import StopReason
from decor.text import rounded_up

Ask = Callable[[Path], dict[str, Any]]
"""A node's socket -> what it says of itself; raises InputError where nobody answers."""

_AGAIN = 0.3
"""Seconds for which a look counts: several pages do not ask nodes several times."""
_POINTS = 1000
_WRITTEN = ("manifest.json", "plan.json", "metrics.jsonl", live_status.FILE)


class Watch:
    """One folder, named on the command line; no page can name another."""

    def __init__(self, folder: Path, ask: Ask) -> None:
        self.folder, self.ask = folder, ask
        self._one = threading.Lock()
        self._looked, self._state, self._digest = 0.0, {"kind": "nothing"}, ""
        self._spent: dict[str, dict[str, Any]] = {}

    def since(self, seen: object) -> dict[str, Any]:
        """The folder's state, or only that it is as it was when it had the digest `seen`; and how
        long it has been quiet.
        """
        with self._one:
            if time.monotonic() - self._looked > _AGAIN or not self._digest:
                self._state = {"folder": str(self.folder), **self._look()}
                self._digest = hashlib.sha256(
                    json.dumps(self._state, sort_keys=True, default=str).encode()
                ).hexdigest()[:16]
                self._looked = time.monotonic()
            state, digest = self._state, self._digest
        quiet = self._quiet()
        return {"seen": digest, "quiet": quiet} | ({"unchanged": True} if seen == digest else state)

    def _quiet(self) -> float | None:
        """Seconds since something was written here."""
        times = []
        for path in (
            *(self.folder / name for name in _WRITTEN),
            *self.folder.glob("*.log"),
            *self.folder.glob("outcomes/*.json"),
        ):
            try:
                times.append(path.stat().st_mtime)
            except OSError:
                continue
        return max(0.0, time.time() - max(times)) if times else None

    def _look(self) -> dict[str, Any]:
        if not self.folder.is_dir():
            return {
                "kind": "nothing",
                "said": "There is no such folder yet. What is written "
                "there will show up here by itself.",
            }
        under_way = live_status.read(self.folder)
        if under_way is not None:
            plan, rows, simulated = under_way
            kind = {} if simulated else {"noise": {"kind": "grid", "distance": 0.0}}
            return self._training(plan, rows, kind, under_way=True)
        manifest = _json(self.folder / "manifest.json")
        match manifest.get("format"):
            case "decor-run-1":
                return self._kept(manifest)
            case "decor-comparison-1":
                return self._comparison(manifest)
        ledgers = sorted(self.folder.glob("*.ledger"))
        if ledgers:
            return self._federation([path.stem for path in ledgers])
        return {
            "kind": "nothing",
            "said": "No run is here yet. What decor train, compare or up "
            "writes will show up by itself.",
        }

    def _kept(self, manifest: dict[str, Any]) -> dict[str, Any]:
        """A run as it was last saved."""
        try:
            plan = NoisePlan.load(self.folder / "plan.json")
        except InputError:
            return {
                "kind": "nothing",
                "said": "A run is being written here; its plan cannot be read yet.",
            }
        return self._training(plan, _rows(self.folder / "metrics.jsonl"), manifest)

    def _training(
        self,
        plan: NoisePlan,
        rows: list[dict[str, Any]],
        manifest: dict[str, Any],
        under_way: bool = False,
    ) -> dict[str, Any]:
        taken = (rows[-1].get("step") if rows else 0) if under_way else manifest.get("steps_taken")
        taken = taken if isinstance(taken, int) and 0 <= taken <= plan.exposure.steps else 0
        stopped = _stop_reason(manifest)
        over = not under_way and (taken == plan.exposure.steps or bool(stopped))
        said = f"Stopped early: {stopped}." if stopped else "Finished." if over else "Under way."
        known = [
            each | {"name": each["name"]}
            for each in METRICS
            if any(isinstance(row.get(each["name"]), int | float) for row in rows)
        ]
        rows = (
            rows[:: max(1, -(-len(rows) // _POINTS))] + rows[-1:] if len(rows) > _POINTS else rows
        )
        return {
            "kind": "training",
            "said": said,
            "over": over,
            "title": str(_dict(manifest, "task").get("name", "training")),
            "graph": plan.topology.description,
            "step": taken,
            "steps": plan.exposure.steps,
            **self._promise(Run(plan, {}, {}, taken, stopped, manifest)),
            "metrics": known,
            "history": {
                name: [row.get(name) for row in rows]
                for name in ("step", *(each["name"] for each in known))
            },
        }

    def _promise(self, run: Run) -> dict[str, Any]:
        """What the run promises, and what its steps cost if their number was fixed in advance;
        remembered, as it may be slow.
        """
        plan, marks = (
            run.plan,
            [run.manifest.get(name) for name in ("noise", "engine", "stop_saw_private_data")],
        )
        key = json.dumps([plan.to_json(), run.steps_taken, run.stopped, marks], default=str)
        if key not in self._spent:
            delta = None if plan.budget is not None else 1e-5
            whole, so_far = run.guarantee_at(delta), run.guarantee_at(delta, steps=run.steps_taken)
            if len(self._spent) > 1000:
                self._spent.clear()
            self._spent[key] = {
                "simulated": run.simulated,
                "epsilon": rounded_up(so_far.epsilon),
                "promised": rounded_up(whole.epsilon),
                "budget": rounded_up(plan.budget.epsilon) if plan.budget is not None else None,
                "statement": str(whole),
            }
        return self._spent[key]

    def _comparison(self, manifest: dict[str, Any]) -> dict[str, Any]:
        rows, names = [], [each["name"] for each in METRICS]
        for path in sorted(self.folder.glob("outcomes/*.json")):
            entries = _json(path, list)
            rows += [
                {
                    "method": str(e.get("method")),
                    "epsilon": e.get("epsilon"),
                    **{n: _mean(_dict(e, "final").get(n)) for n in names},
                }
                for e in entries
                if isinstance(e, dict)
            ]
        over, finished = bool(manifest.get("complete")), len({row["method"] for row in rows})
        said = "Finished." if over else f"Under way: {finished} methods are finished."
        shown = [each for each in METRICS if any(row[each["name"]] is not None for row in rows)]
        for row in rows:
            row["epsilon"] = "none" if row["epsilon"] is None else rounded_up(float(row["epsilon"]))
        title = str(_dict(manifest, "task").get("name", "comparison"))
        return {
            "kind": "comparison",
            "said": said,
            "over": over,
            "title": title,
            "rows": rows,
            "metrics": shown,
        }

    def _federation(self, names: list[str]) -> dict[str, Any]:
        nodes = [self._node(name) for name in names]
        over = all(node["over"] for node in nodes)
        working = sum(node["answers"] for node in nodes)
        said = (
            "Everybody is done."
            if over
            else f"{working} of {len(nodes)} users are at work."
            if working
            else "Nobody is at work."
        )
        title = next((node["federation"] for node in nodes if node["federation"]), "federation")
        return {"kind": "federation", "said": said, "over": over, "title": title, "nodes": nodes}

    def _node(self, name: str) -> dict[str, Any]:
        """What a user says of itself; or, if it does not answer, what it has left behind."""
        blank: dict[str, Any] = {"user": name, "federation": "", "answers": False, "over": False}
        blank |= dict.fromkeys(("step", "steps", "epsilon", "missed"))  # not known, which is not 0
        try:
            said = self.ask(self.folder / f"{name}.ledger.socket")
            here = [each["here"] for each in said["neighbours"]]
            state = said["paused"] or f"at work, {sum(here)} of {len(here)} neighbours here"
            told = {key: said[key] for key in ("federation", "step", "steps", "missed")}
            return (
                blank
                | told
                | {"epsilon": rounded_up(said["epsilon"]), "state": str(state), "answers": True}
            )
        except (InputError, KeyError, TypeError):
            pass
        manifest = _json(self.folder / name / "manifest.json")
        try:
            plan = NoisePlan.load(self.folder / name / "plan.json")
            taken, steps = int(manifest["steps_taken"]), plan.exposure.steps
        except (InputError, KeyError, TypeError, ValueError):
            return blank | {
                "state": "does not answer; its last word: "
                f"{_last_event(self.folder / f'{name}.log')}"
            }
        stopped = _stop_reason(manifest)
        told = {
            "federation": str(_dict(manifest, "task").get("name", "")),
            "step": taken,
            "steps": steps,
        }
        promised = self._promise(Run(plan, {}, {}, taken, stopped, manifest))["promised"]
        told |= {"missed": manifest.get("steps_missed", 0), "epsilon": promised}
        return blank | told | {"state": stopped or "done", "over": not stopped}


def _stop_reason(manifest: dict[str, Any]) -> StopReason | None:
    text = manifest.get("stopped")
    return StopReason.load(str(text), manifest.get("stop_cause")) if text else None


def _json(path: Path, kind: type = dict) -> Any:
    """What a file holds, or nothing: it may be half written, or gone."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        value = None
    return value if isinstance(value, kind) else kind()


def _dict(value: dict[str, Any] | None, name: str) -> dict[str, Any]:
    found = (value or {}).get(name)
    return found if isinstance(found, dict) else {}


def _rows(path: Path) -> list[dict[str, Any]]:
    """The measurements that are whole."""
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


def _last_event(log: Path) -> str:
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - 2000))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return "none"
    return lines[-1].partition("event=")[2] if lines else "none"
