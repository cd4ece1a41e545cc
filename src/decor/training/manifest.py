"""RunManifest: what a run records about itself, so that it can be repeated and resumed."""

from __future__ import annotations

import hashlib
import hmac
import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import torch

from decor.learning.known_models import definition_of
from decor.learning.recipe import Recipe
from decor.learning.task import Task
from decor.version import __version__

if TYPE_CHECKING:  # a node needs manifests, and none of the simulator that the engine's types load
    from .engine import Setting, SimulatorOptions


@dataclass(frozen=True, kw_only=True)
class RunManifest:
    """The manifest of a run; a field that is None is not written.

    A private run records nothing that depends on the data, on the time it took or on the machine.

    Attributes:
        simulated: Whether the noise comes from a known seed.
        task: Name, users and parameters; of a simulation also records, facts and a fingerprint.
        learning_rate: The step size, before the recipe's schedule.
        seed: The seed of a simulation, or "secret".
        recipe: The recipe's fields.
        engine: The engine's name and options.
        noise: Of a private run: {"kind": "grid", "distance": d}, where d bounds the total variation
            distance of all messages to the plan's Gaussian noise.
        versions: Versions of the libraries that decide the results.
        machine: Operating system and processor.
        seconds: Wall-clock time.
        run: A random name that tells private runs apart.
        resume_tag: Keyed fingerprint of an unfinished private run's data.
        stop_saw_private_data: Whether the stop may depend on private data; it voids the guarantee.
        base_rate: The accuracy of always guessing the most frequent class of the test data; of a
            private run only where these are public.
        definition: What is learnt: columns, label and model, by which the model can be built.
        frozen: How many parameters of the module are not trained, and their hash: the run has no
            copy of them.
        federation: Digest of the federation's terms, of one user's run.
        steps_missed: Steps that this user missed, of one user's run.
        noise_left: Noise in the average model over the planned noise, as far as this user knows:
            above 1 if noise of its edges did not cancel.
    """

    simulated: bool
    task: dict[str, Any] | None = None
    learning_rate: float | None = None
    seed: int | str | None = None
    recipe: dict[str, Any] | None = None
    engine: dict[str, Any] | None = None
    noise: dict[str, Any] | None = None
    versions: dict[str, str] | None = None
    machine: str | None = None
    seconds: float | None = None
    run: str | None = None
    resume_tag: str | None = None
    stop_saw_private_data: bool | None = None
    base_rate: float | None = None
    definition: dict[str, Any] | None = None
    frozen: dict[str, Any] | None = None
    federation: str | None = None
    steps_missed: int | None = None
    noise_left: float | None = None

    def to_json(self) -> dict[str, Any]:
        """The manifest as a file holds it: plain values only, as `Run.manifest` needs."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        written = {name: value for name, value in values.items() if value is not None}
        # through JSON: tuples become lists, and other types text, exactly as in the file
        plain: dict[str, Any] = json.loads(json.dumps(written, default=str))
        return plain

    @classmethod
    def from_json(cls, manifest: Mapping[str, Any]) -> RunManifest:
        """The manifest in `Run.manifest`; keys that are not fields are left out."""
        known = {each.name for each in fields(cls)}
        values = {name: value for name, value in manifest.items() if name in known}
        # a manifest that does not say so is not of a private run
        return cls(**{"simulated": True, **values})


def simulation_manifest(
    engine: SimulatorOptions,
    name: str,
    task: Task,
    fingerprint: str,
    setting: Setting,
    recipe: Recipe,
    seconds: float,
) -> RunManifest:
    """All that repeats a simulation: data (as a fingerprint), recipe, engine, seed and versions."""
    data = {"records": list(task.counts), "fingerprint": fingerprint}
    # not the GPU's number: a run may be resumed on another one
    gpu: dict[str, Any] = {}
    if engine.device != "cpu":
        gpu = {"device": "cuda", "tf32": engine.tf32}
    if engine.bf16:  # named only where it is chosen: older runs can be resumed
        gpu["bf16"] = True
    return RunManifest(
        simulated=True,
        task={**task_summary(task), **data, **task.facts},
        learning_rate=setting.learning_rate,
        seed=setting.seed,
        recipe=recipe.to_json(),
        engine={**engine_summary(engine, name), **gpu, "noise": _noise_name(engine.noise)},
        versions=versions(),
        base_rate=task.base_rate,
        definition=_definition(task),
        frozen=task.frozen,
        machine=f"{platform.system()} {platform.machine()}",
        seconds=round(seconds, 3),
    )


def private_manifest(
    engine: dict[str, Any],
    task: Task,
    setting: Setting,
    recipe: Recipe,
    distance: float,
    run: str | None,
) -> RunManifest:
    """The manifest of a private run of all users; `engine` is its name and options.

    Guarantee: nothing here depends on the data.
    """
    return RunManifest(
        simulated=False,
        task=task_summary(task),
        learning_rate=setting.learning_rate,
        seed="secret",
        recipe=recipe.to_json(),
        engine=engine,
        noise={"kind": "grid", "distance": distance},
        versions=versions(),
        base_rate=task.base_rate if task.test_public else None,
        definition=_definition(task),
        frozen=task.frozen,
        run=run,
    )


def task_summary(task: Task) -> dict[str, Any]:
    """What a private run records of its task."""
    summary = {"name": task.name, "users": task.users, "parameters": task.parameters}
    # the names by which a release knows which of the run's metrics are the task's own
    own = {"metrics": list(task.metrics)} if task.metrics and task.test_public else {}
    return {**summary, **own}


def _definition(task: Task) -> dict[str, Any] | None:
    definition = definition_of(task)
    return None if definition is None else definition.to_json()


def engine_summary(engine: SimulatorOptions, name: str) -> dict[str, Any]:
    """The options of the simulator that a run records; `name` is the engine's."""
    return {"name": name, "dtype": engine.dtype, "path": engine.path}


def resume_tag(key: bytes, fingerprint: str) -> str:
    """A fingerprint that reveals nothing without the key."""
    return hmac.digest(key, fingerprint.encode(), "sha256").hex()


def fingerprint(task: Task) -> str:
    """A hash of all data, the loss, the model and its start: equal tasks have equal ones."""
    digest = hashlib.blake2b(f"{task.model!r} {_loss(task.loss)}".encode(), digest_size=32)
    for metric_name, metric in task.metrics.items():
        digest.update(f"{metric_name} {_loss(metric)}".encode())
    for X, y in (*task.shards, *([task.test] if task.test is not None else [])):
        # shapes first: without them other splits of the same bytes would have the same hash
        digest.update(repr((tuple(X.shape), tuple(y.shape))).encode())
        digest.update(X.contiguous().numpy().data.cast("B"))
        digest.update(y.contiguous().numpy().data.cast("B"))
    # buffers too: a changed normalisation is another start
    for name, p in task.model.state_dict().items():
        digest.update(name.encode())
        digest.update(p.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _noise_name(noise: object) -> str:
    if noise is None:
        return "own"
    return noise if isinstance(noise, str) else f"from outside: {type(noise).__qualname__}"


def _loss(loss: Any) -> str:
    """A function by its name, code and closure; an object by its repr."""
    code = getattr(loss, "__code__", None)
    if code is None:
        if hasattr(loss, "__qualname__"):
            return str(loss.__qualname__)
        return f"{type(loss).__module__}.{type(loss).__qualname__} {loss!r}"
    # two losses of one factory differ only in what they close over
    closure = [repr(cell.cell_contents) for cell in loss.__closure__ or ()]
    # inner code objects are left out: their repr has a memory address
    constants = [c for c in code.co_consts if not hasattr(c, "co_code")]
    return (
        f"{loss.__module__}.{loss.__qualname__} {code.co_code.hex()} {constants} "
        f"{loss.__defaults__} {closure}"
    )


def versions() -> dict[str, str]:
    """Versions of decor and of the libraries that decide its results."""
    return dict(_versions())


@cache  # metadata are parsed anew at each call, for every setting of a sweep
def _versions() -> dict[str, str]:
    known = {"decor": __version__, "python": platform.python_version(), "torch": torch.__version__}
    for name in ("numpy", "scipy", "numba"):
        try:
            known[name] = version(name)
        except PackageNotFoundError:  # a vendored copy without metadata
            continue
    return known
