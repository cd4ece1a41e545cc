"""What a run says about itself, so that somebody else can repeat it."""

from __future__ import annotations

import hashlib
import hmac
import json
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from decor.learning.recipe import Recipe
from decor.learning.task import Task
from decor.version import __version__

from .engine import Setting, SimulatorOptions


def described(
    engine: SimulatorOptions,
    name: str,
    task: Task,
    fingerprint: str,
    setting: Setting,
    recipe: Recipe,
    seconds: float,
) -> dict[str, Any]:
    """What JSON holds of it: task with a fingerprint of its data, recipe, engine, seed and
    versions.
    """
    value = {
        "simulated": True,
        "task": {
            "name": task.name,
            "users": task.users,
            "records": list(task.counts),
            "parameters": task.parameters,
            "fingerprint": fingerprint,
            **task.facts,
        },
        "learning_rate": setting.learning_rate,
        "seed": setting.seed,
        "recipe": recipe.described(),
        "engine": {
            "name": name,
            "dtype": engine.dtype,
            "path": engine.path,
            **({"device": "cuda", "tf32": engine.tf32} if engine.device != "cpu" else {}),
            "noise": _source(engine.noise),
        },
        "versions": versions(),
        "machine": f"{platform.system()} {platform.machine()}",
        "seconds": round(seconds, 3),
    }
    plain: dict[str, Any] = json.loads(json.dumps(value, default=str))
    return plain


def described_privately(
    engine: SimulatorOptions,
    name: str,
    task: Task,
    setting: Setting,
    recipe: Recipe,
    distance: float,
) -> dict[str, Any]:
    """The same of a private run: nothing that depends on the data, the time it took, or the
    machine.

    `distance` is how far the law of all messages is from the plan's Gaussian one.
    """
    value = {
        "simulated": False,
        "task": {"name": task.name, "users": task.users, "parameters": task.parameters},
        "learning_rate": setting.learning_rate,
        "seed": "secret",
        "recipe": recipe.described(),
        "engine": {"name": name, "dtype": engine.dtype, "path": engine.path},
        "noise": {"kind": "grid", "distance": distance},
        "versions": versions(),
    }
    plain: dict[str, Any] = json.loads(json.dumps(value, default=str))
    return plain


def keyed(key: bytes, fingerprint: str) -> str:
    """A fingerprint that tells nothing to anyone without the key."""
    return hmac.digest(key, fingerprint.encode(), "sha256").hex()


def fingerprint(task: Task) -> str:
    """Of all data, the loss, the model and its start: equal for equal tasks, here and elsewhere."""
    digest = hashlib.blake2b(f"{task.model!r} {_loss(task.loss)}".encode(), digest_size=32)
    for X, y in (*task.shards, *([task.test] if task.test is not None else [])):
        digest.update(repr((tuple(X.shape), tuple(y.shape))).encode())
        digest.update(X.contiguous().numpy().data.cast("B"))
        digest.update(y.contiguous().numpy().data.cast("B"))
    for name, p in task.model.state_dict().items():
        digest.update(name.encode())
        digest.update(p.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _source(noise: object) -> str:
    return (
        "own"
        if noise is None
        else noise
        if isinstance(noise, str)
        else f"from outside: {type(noise).__qualname__}"
    )


def _loss(loss: Any) -> str:
    """A function by its name, its code and what it closes over; an object by its description."""
    code = getattr(loss, "__code__", None)
    if code is None:
        return (
            f"{type(loss).__module__}.{type(loss).__qualname__} {loss!r}"
            if not hasattr(loss, "__qualname__")
            else loss.__qualname__
        )
    around = [repr(cell.cell_contents) for cell in loss.__closure__ or ()]
    constants = [c for c in code.co_consts if not hasattr(c, "co_code")]
    return (
        f"{loss.__module__}.{loss.__qualname__} {code.co_code.hex()} {constants} "
        f"{loss.__defaults__} {around}"
    )


def versions() -> dict[str, str]:
    found = {"decor": __version__, "python": platform.python_version(), "torch": torch.__version__}
    for name in ("numpy", "scipy", "numba"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # a vendored copy without metadata
            continue
    return found
