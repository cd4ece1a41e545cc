"""The folder of a run: manifest.json, plan.json, metrics.jsonl and every user's model as safetensors.

An unfinished private run also has resume.key, and one that was asked for private metrics private.jsonl. Their owner alone can
read them, and neither is ever part of a release.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from decor.errors import InputError, MissingExtra
from decor.privacy.plan import NoisePlan

from .run import Run

_FORMAT = "decor-run-1"
_MANIFEST, _PLAN, _METRICS = "manifest.json", "plan.json", "metrics.jsonl"
_PRIVATE, _KEY = "private.jsonl", "resume.key"
_KINDS = ("models", "velocity", "fixed")
_IDENTITY = ("task", "recipe", "seed", "learning_rate", "engine", "run")
"""What two states of one run have in common, beside the plan."""


def write(run: Run, folder: Path, overwrite: bool) -> None:
    _library()
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    models = model_file(run)
    rows, private = (_lines(history) for history in (run.history, run.private_metrics))
    own = {"format": _FORMAT, "steps_taken": run.steps_taken, "stopped": run.stopped, "models": models}
    manifest = json.dumps({**run.manifest, **own}, indent=1, allow_nan=False) + "\n"
    tensors = {f"{kind}/{name}": v.contiguous() for kind in _KINDS for name, v in getattr(run, kind).items()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _make_room(run, folder, overwrite)
        save_file(tensors, folder / (models + ".new"))
        os.replace(folder / (models + ".new"), folder / models)
        replace_text(folder / _PLAN, run.plan.to_json() + "\n")
        replace_text(folder / _METRICS, rows)
        owned = {_PRIVATE: private, _KEY: "" if run.resume_key is None else run.resume_key.hex() + "\n"}
        for name, text in owned.items():
            if text:
                _write_owned(folder / name, text)
        replace_text(folder / _MANIFEST, manifest)
        old_models = [old for old in folder.glob("models-*.safetensors") if old.name != models]
        for old in (*old_models, *(folder / name for name, text in owned.items() if not text)):
            if old.exists():
                old.unlink()
    except (OSError, SafetensorError) as problem:
        raise InputError(f"the run cannot be written to {str(folder)!r}: {problem}") from None


def read(folder: Path) -> Run:
    _library()
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    manifest = _json(folder / _MANIFEST)
    if not isinstance(manifest, dict) or manifest.pop("format", None) != _FORMAT:
        raise InputError(f'{str(folder)!r} is not a run folder: its {_MANIFEST} is not of format "{_FORMAT}"')
    plan = NoisePlan.load(folder / _PLAN)
    steps, stopped, file = (manifest.pop(name, None) for name in ("steps_taken", "stopped", "models"))
    if isinstance(steps, bool) or not isinstance(steps, int) or not 0 <= steps <= plan.exposure.steps:
        raise InputError(f"{str(folder / _MANIFEST)!r} says steps_taken {steps!r}, but the plan has {plan.exposure.steps} steps")
    if not isinstance(stopped, str | None) or not isinstance(file, str):
        raise InputError(f"{str(folder / _MANIFEST)!r} does not name the file of models, or why the run stopped")
    path = folder / Path(file).name
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as problem:
        raise InputError(f"{str(path)!r} cannot be read: {problem}") from None
    parts = {kind: {k.removeprefix(f"{kind}/"): v for k, v in tensors.items() if k.startswith(f"{kind}/")} for kind in _KINDS}
    history = _history(folder / _METRICS, steps)
    private = _history(folder / _PRIVATE, steps) if (folder / _PRIVATE).exists() else {}
    key = _key(folder / _KEY)
    return Run(plan, history, parts["models"], steps, stopped, manifest, parts["velocity"], parts["fixed"], private, key)


def model_file(run: Run) -> str:
    """The name of the file of models."""
    return f"models-{run.steps_taken}.safetensors"


def _write_owned(path: Path, text: str) -> None:
    """Writes a file that its owner alone can read, in one move."""
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as stream:
        stream.write(text)
    os.replace(new, path)


def _key(path: Path) -> bytes | None:
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


def _make_room(run: Run, folder: Path, overwrite: bool) -> None:
    """Leaves an earlier state of the same run where it is; anything else has to be told to go, and goes first."""
    if not (folder / _MANIFEST).is_file():
        return
    old = None
    try:
        old = _json(folder / _MANIFEST)
        same = isinstance(old, dict) and all(old.get(name) == run.manifest.get(name) for name in _IDENTITY)
        same = same and (folder / _PLAN).read_text(encoding="utf-8") == run.plan.to_json() + "\n"
        same = same and isinstance(old["steps_taken"], int) and old["steps_taken"] <= run.steps_taken
    except (InputError, OSError, KeyError, UnicodeDecodeError):
        same = False
    if same:
        return
    if not isinstance(old, dict) or old.get("format") != _FORMAT:
        raise InputError(f"{str(folder)!r} holds something else than a run; name another folder")
    if not overwrite:
        raise InputError(f"{str(folder)!r} holds another run; name another folder, or say overwrite=True")
    (folder / _MANIFEST).unlink()


def _library() -> None:
    try:
        import safetensors.torch  # noqa: F401
    except ModuleNotFoundError as problem:
        raise MissingExtra.told("runs are kept as safetensors", "train", problem.name) from None


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{str(path.parent)!r} is not a run folder: {path.name} is missing") from None
    except (OSError, ValueError, RecursionError) as problem:
        raise InputError(f"{str(path)!r} cannot be read: {problem}") from None


def _lines(history: dict[str, list[float]]) -> str:
    """One line a measurement; what is not finite is null."""
    rows = [
        {name: values[k] if math.isfinite(values[k]) else None for name, values in history.items()}
        for k in range(len(history.get("step", [])))
    ]
    return "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows)


def _history(path: Path, steps: int) -> dict[str, list[float]]:
    """Columns of the rows up to `steps`: an interrupted save may have left later ones."""
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError, RecursionError) as problem:
        raise InputError(f"{str(path)!r} cannot be read: {problem}") from None
    for k, row in enumerate(rows):
        known = isinstance(row, dict) and set(row) == set(rows[0]) and isinstance(row.get("step"), int)
        if not known or not all(v is None or (isinstance(v, int | float) and not isinstance(v, bool)) for v in row.values()):
            raise InputError(f"{str(path)!r} has no measurement of the usual kind in line {k + 1}")
    rows = [row for row in rows if row["step"] <= steps]
    return {name: [math.nan if row[name] is None else row[name] for row in rows] for name in (rows[0] if rows else {})}
