"""What a run says about itself, so that somebody else can repeat it."""

from __future__ import annotations

import hashlib
import json
import platform
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import torch

import decor
from decor.learning.task import Task

if TYPE_CHECKING:
    from .engine import Recipe, Setting
    from .vectorised import Vectorised


def described(engine: Vectorised, task: Task, setting: Setting, recipe: Recipe, seconds: float) -> dict[str, Any]:
    """What JSON holds of it: task with a fingerprint of its data, recipe, engine, seed and versions."""
    value = {
        "task": {
            "name": task.name,
            "users": task.users,
            "records": list(task.records),
            "parameters": task.parameters,
            "fingerprint": fingerprint(task),
            **task.facts,
        },
        "learning_rate": setting.learning_rate,
        "seed": setting.seed,
        "recipe": recipe.described(),
        "engine": {"name": "vectorised", "dtype": engine.dtype, "path": engine.path},
        "versions": versions(),
        "machine": f"{platform.system()} {platform.machine()}",
        "seconds": round(seconds, 3),
    }
    plain: dict[str, Any] = json.loads(json.dumps(value, default=str))
    return plain


@lru_cache(maxsize=8)
def fingerprint(task: Task) -> str:
    """Of all data, the loss, the model and its start: equal for equal tasks, here and elsewhere."""
    loss = task.loss if hasattr(task.loss, "__qualname__") else type(task.loss)
    digest = hashlib.sha256(f"{task.model!r} {loss.__module__}.{loss.__qualname__}".encode())
    for X, y in task.shards:
        digest.update(repr((tuple(X.shape), tuple(y.shape))).encode())
        digest.update(X.contiguous().numpy().tobytes())
        digest.update(y.contiguous().numpy().tobytes())
    for name, p in task.model.state_dict().items():
        digest.update(name.encode())
        digest.update(p.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()


def versions() -> dict[str, str]:
    found = {"decor": decor.__version__, "python": platform.python_version(), "torch": torch.__version__}
    for name in ("numpy", "scipy", "numba"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # a vendored copy without metadata
            continue
    return found
