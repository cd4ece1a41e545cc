"""Run: the result of a training, in memory and as a folder.

A run folder holds manifest.json, plan.json, metrics.jsonl and each user's model as safetensors. An
unfinished private run also has resume.key, and a run that measured private metrics private.jsonl.
Only the owner can read these two files, and neither is ever released.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from decor import checks
from decor.errors import InputError, require
from decor.learning.definition import Definition
from decor.privacy.adversary import Adversary
from decor.privacy.budget import ACCOUNTED
from decor.privacy.guarantee import Guarantee
from decor.privacy.plan import NoisePlan
from decor.text import amount, html_table

from . import publication
from .safe_files import (
    metrics_lines,
    read_json,
    read_key,
    read_metrics,
    replace_text,
    write_private,
)
from .stop_reason import StopReason

if TYPE_CHECKING:
    from torch import Tensor, nn

    from decor.learning.predictions import Predictions

_FORMAT = "decor-run-1"
_MANIFEST, _PLAN, _METRICS = "manifest.json", "plan.json", "metrics.jsonl"
_PRIVATE, _KEY = "private.jsonl", "resume.key"
_TENSORS = ("models", "velocity", "fixed")
_IDENTITY = ("task", "recipe", "seed", "learning_rate", "engine", "run")
"""Keys of the manifest that two states of the same run have in common, beside the plan."""


@dataclass(frozen=True, eq=False)
class Run:
    """One training: its guarantee, its metrics, and each user's model.

    Attributes:
        plan: The noise plan.
        history: A list of values for each metric, and for "step".
        models: Each trained parameter by its name, stacked over users.
        steps_taken: The number of steps that were taken.
        stopped: Why the run ended early; None if it took all steps of the plan.
        manifest: Settings, versions and where the noise came from; stored as manifest.json.
        velocity: The state of momentum, needed to resume.
        fixed: The module's buffers.
        frozen: The module's parameters that are not trained, while the module is in memory. Neither
            folder nor release has them: the module has, and the manifest has their hash.
        private_metrics: Metrics on private data of a private run, where they were asked for.
        resume_key: The key by which an unfinished private run recognises its data when it resumes.
        elsewhere: True for the part of a distributed run whose models are at another process.
    """

    plan: NoisePlan
    history: dict[str, list[float]]
    models: dict[str, Tensor]
    steps_taken: int
    stopped: StopReason | None = None
    manifest: dict[str, Any] = field(default_factory=dict)
    velocity: dict[str, Tensor] = field(default_factory=dict, repr=False)
    fixed: dict[str, Tensor] = field(default_factory=dict, repr=False)
    private_metrics: dict[str, list[float]] = field(default_factory=dict, repr=False)
    resume_key: bytes | None = field(default=None, repr=False)
    elsewhere: bool = field(default=False, repr=False)
    frozen: dict[str, Tensor] = field(default_factory=dict, repr=False)

    def __repr__(self) -> str:
        name = self.manifest.get("task", {}).get("name", "run")
        metrics = [f"{m} {value:.4g}" for m, value in self.metrics.items() if m != "step"]
        text = ", ".join([repr(name), amount(self.steps_taken, "step"), *metrics])
        return f"Run({text}, {self.stopped})" if self.stopped else f"Run({text})"

    def _repr_html_(self) -> str:
        """The last metrics and the guarantee, as a notebook shows them."""
        metrics = [(name, f"{value:.4g}") for name, value in self.metrics.items()]
        promise = "" if self.plan.budget is None else f"<p>{escape(str(self.guarantee))}</p>"
        stopped = f"<p>{escape(str(self.stopped))}</p>" if self.stopped else ""
        return f"{html_table((), metrics)}{stopped}{promise}"

    @property
    def average_model(self) -> dict[str, Tensor]:
        """The mean of all users' models, as a state dict that the module loads.

        Of a run that was read from its folder it lacks frozen parameters, which the module has:
        `module.load_state_dict(run.average_model, strict=False)`.
        """
        # what is not trained is the same for all users: it needs no mean
        trained = {name: value.mean(0) for name, value in self.models.items()}
        return trained | self.fixed | self.frozen

    @property
    def metrics(self) -> dict[str, float]:
        """The last value of each metric."""
        return {name: values[-1] for name, values in self.history.items()}

    @property
    def simulated(self) -> bool:
        """Whether anyone who knows the seed can subtract the noise.

        Folders from before version 0.2 are simulations, except those of peers.
        """
        # a private run knows how far its noise is from Gaussian; a simulation has no such bound
        return self._distance is None

    @property
    def guarantee(self) -> Guarantee:
        """The whole plan's guarantee at the budget's delta, however early the run stopped.

        A transcript that stops early is a function of the one that goes on to the end, so the
        guarantee holds for any rule that looks at messages, public data or faults. A rule that has
        looked at private metrics leaves no guarantee: epsilon is then infinite.
        """
        return self.guarantee_at()

    def guarantee_at(
        self,
        delta: float | None = None,
        adversary: Adversary | None = None,
        steps: int | None = None,
    ) -> Guarantee:
        """The guarantee at another delta, against another adversary, or for fewer steps.

        Args:
            delta: The failure probability; None: the budget's.
            adversary: The adversary; None: the plan's.
            steps: What this many steps cost if their number was fixed in advance; None: the whole
                plan. It is no guarantee for a run that stopped there for a reason: neighbours can
                cause faults, and a rule that looks at messages can stop where they reveal most.

        Raises:
            InputError: If `steps` is not between 0 and the steps of the plan.
        """
        plan = self.plan
        if steps is not None and not 0 <= steps <= plan.exposure.steps:
            raise InputError(
                f"steps must be from 0 to the plan's {plan.exposure.steps}, not {steps!r}"
            )
        # zero for a simulation is no claim: the sentence says that anyone can subtract its noise
        distance, delta = self._distance or 0.0, self._federation_delta(delta)
        guarantee = plan.guarantee_on_grid(distance, delta, adversary, steps)
        guarantee = replace(guarantee, simulated=self.simulated, assumption=self._assumption)
        # the number of steps itself then reveals private data, which no epsilon counts
        if self.manifest.get("stop_saw_private_data"):
            infinite = np.full(plan.topology.users, math.inf)
            void = "the stop depended on private data"
            return replace(guarantee, epsilon=math.inf, void=void, everybody=lambda: infinite)
        if self.stopped is None or steps is not None:
            return guarantee
        ended = f"stopped after {self.steps_taken:,} of {plan.exposure.steps:,} steps"
        if self.stopped.cause != "unfinished":
            # the reason without the advice that follows it
            ended += f" ({self.stopped.partition(';')[0].partition(':')[0]})"
        return replace(guarantee, stopped=ended)

    @property
    def _assumption(self) -> str | None:
        """What the guarantee rests on where one program has trained for all users."""
        engine = self.manifest.get("engine")
        by_loop = isinstance(engine, dict) and engine.get("name") == "own loop"
        if self.simulated or not by_loop:
            return None
        return "nothing but models passed between users in the training loop"

    @property
    def _distance(self) -> float | None:
        """Total variation between the messages of a private run and the plan's Gaussian messages.

        None for a simulation.
        """
        noise, engine = self.manifest.get("noise"), self.manifest.get("engine")
        if isinstance(noise, dict) and noise.get("kind") == "grid":
            distance = noise.get("distance")
            if isinstance(distance, float):
                return distance
        by_peers = isinstance(engine, dict) and engine.get("name") == "peers"
        budget = self.plan.budget
        if by_peers and budget is not None:
            # peers before 0.2 refused to run unless this share of delta was left for it
            return (1 / ACCOUNTED - 1) * budget.delta / (1 + math.exp(min(budget.epsilon, 700.0)))
        return None

    def _federation_delta(self, delta: float | None) -> float | None:
        """The given delta, or the one that the federation promised.

        Peers before 0.2 stored only the share of delta that was left for Gaussian noise.
        """
        budget = self.plan.budget
        is_old = not self.simulated and "noise" not in self.manifest
        return (
            budget.delta / ACCOUNTED if delta is None and budget is not None and is_old else delta
        )

    @property
    def definition(self) -> Definition:
        """What was learnt: columns, label and model.

        Raises:
            InputError: If the run does not say it: it is of an older version, or its model was made
                in Python.
        """
        saved = self.manifest.get("definition")
        if not isinstance(saved, dict):
            raise InputError(
                "this run does not say how its model is made (it is of an older version, or the "
                "model is a module of your own); load run.average_model into that module"
            )
        return Definition.of(saved.get("data"), saved.get("model"))

    def model(self, user: int | None = None, *, trust_code: bool = False) -> nn.Module:
        """The trained model.

        Args:
            user: Whose model; None: the mean of all users' models.
            trust_code: Whether the model's code may be imported, where the run names code. It is
                compared with its hash first.

        Returns:
            A module in evaluation mode.

        Raises:
            InputError: If the run does not say how its model is made, or its code is not trusted
                or not the one that is installed.
        """
        return self._model_and_loss(user, trust_code)[0]

    def predict(self, table: Any, *, trust_code: bool = False) -> Predictions:
        """What the mean of all users' models says of new records.

        Args:
            table: A DataFrame, or columns by name; the label is not needed.
            trust_code: As of `model`.

        Returns:
            Probabilities and names of classes, or predicted numbers.
        """
        # here, because a run is read without torch
        from decor.learning.predictions import predict

        module, loss = self._model_and_loss(None, trust_code)
        return predict(self.definition, module, loss, table)

    def _model_and_loss(self, user: int | None, trust_code: bool) -> tuple[nn.Module, Any]:
        definition = self.definition
        code = definition.model.code
        if code is not None and not trust_code:
            raise InputError(
                f"the model is the code {code!r}, which can do anything on this machine; read it, "
                "then say trust_code=True (decor predict --trust-code)"
            )
        state = self.average_model if user is None else self._model_of(user)
        self._check_size(definition)
        module, loss = definition.build()
        held = self._body_of(module)
        # a run in float64 would lose half of its digits in a float32 module
        module = module.to(next(iter(state.values())).dtype)
        try:
            result = module.load_state_dict(state, strict=False)
        except RuntimeError as problem:
            raise InputError(f"the run's parameters do not fit its model: {problem}") from None
        # tied parameters may be saved under one of their names
        own = {name for name, _ in module.named_parameters()} - held
        absent = own & {*result.missing_keys}
        if absent or result.unexpected_keys:
            names = ", ".join(sorted({*absent, *result.unexpected_keys})[:4])
            raise InputError(f"the run's parameters do not fit its model: {names}")
        return module.eval(), loss

    def _body_of(self, module: nn.Module) -> set[str]:
        """The names of parameters that the folder leaves to the module, which must have the same.

        Empty for a folder of an earlier version, which has them itself.
        """
        # here, because a run is read without torch
        from decor.learning.frozen import body_parameters, body_summary

        recorded = self.manifest.get("frozen")
        if recorded is None:
            return set()
        if body_summary(module) != recorded:
            raise InputError(
                "the frozen parameters of the run's model are not those that it was trained with: "
                f"the run names {_hash_of(recorded)}, and the module has "
                f"{_hash_of(body_summary(module))}; use the same body, or load "
                "run.average_model into your own module"
            )
        return set(body_parameters(module))

    def _check_size(self, definition: Definition) -> None:
        """Before a module is made: a folder from elsewhere may name a model of any size."""
        if definition.model.code is None:
            own = sum(int(value[0].numel()) for value in self.models.values())
            named = definition.parameters
            if own != named:
                raise InputError(
                    f"the run's model has {own:,} parameters, and the one it names {named:,}; its "
                    "manifest.json is not that of these models"
                )

    def _model_of(self, user: int) -> dict[str, Tensor]:
        count = len(next(iter(self.models.values())))
        checks.count("user", user, 0, count - 1)
        trained = {name: value[user] for name, value in self.models.items()}
        return trained | self.fixed | self.frozen

    def release(self, path: str | Path) -> None:
        """Writes what may be published of a private run to a new folder.

        The folder holds the models, the plan, the guarantee, public metrics and a model card.

        Args:
            path: A folder that is new or empty.

        Raises:
            InputError: If this is a simulation, has no guarantee or no models, or the folder is not
                empty.

        Guarantee: nothing in the folder depends on the data but through the models and through
        metrics on public data.
        """
        # all checks come before the first byte is written
        folder, guarantee = Path(path), self.guarantee
        if self.simulated:
            raise InputError(
                "this run is a simulation: anyone who knows its seed can subtract the noise, so it "
                "must not be published. Train with Vectorised(seed=None) (decor train --seed "
                "secret), or with real peers"
            )
        if guarantee.void is not None:
            raise InputError(
                f"{guarantee} It must not be published; train again without private metrics, or "
                "without a callback"
            )
        if not self.models:
            raise InputError(
                "this run has no models to publish: they are at another process, or were not kept"
            )
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise InputError(f"{str(folder)!r} is not empty; name a new folder")
        # without one it is a run of an older version, or of a module of the caller's own
        definition = self.definition if "definition" in self.manifest else None
        # the folder is written from a run that holds nothing private any more
        public = replace(
            self,
            manifest=publication.public_manifest(self.manifest),
            history=publication.public_metrics(self.manifest, self.history),
            velocity={},
            private_metrics={},
            resume_key=None,
        )
        public._write(folder, overwrite=False)
        card = publication.model_card(
            public.plan,
            public.guarantee,
            public.manifest,
            public.metrics,
            public.steps_taken,
            public._models_file,
            definition,
        )
        replace_text(folder / publication.CARD, card)

    def save(self, path: str | Path, overwrite: bool = False) -> None:
        """Writes the run folder.

        The manifest is replaced last, in one move: whenever the process dies, the folder holds the
        earlier state or this one. Of a distributed run only the process that has the models writes;
        for the other processes this does nothing.

        Args:
            path: The folder. An earlier state of the same run is replaced.
            overwrite: Whether another run in the folder is replaced too.

        Raises:
            InputError: If the folder holds another run, or cannot be written.
        """
        if self.models or not self.elsewhere:
            self._write(Path(path), overwrite)

    @classmethod
    def load(cls, path: str | Path, models: bool = True) -> Run:
        """Reads a run folder that `save` or `release` wrote.

        Args:
            path: The folder.
            models: Whether to read the models, which loads torch; without them the run has its
                guarantee, metrics and manifest.

        Raises:
            InputError: If a file is missing or damaged; the message names it.
        """
        require("safetensors", "train", "run folders")
        folder = Path(path)
        manifest = read_json(folder / _MANIFEST)
        if not isinstance(manifest, dict) or manifest.pop("format", None) != _FORMAT:
            raise InputError(
                f'{str(folder)!r} is not a run folder: its {_MANIFEST} is not of format "{_FORMAT}"'
            )
        plan, name = NoisePlan.load(folder / _PLAN), str(folder / _MANIFEST)
        # these become attributes; what is left of the manifest is `manifest`
        keys = ("steps_taken", "stopped", "stop_cause", "models")
        steps, stopped, cause, file = (manifest.pop(key, None) for key in keys)
        # a manifest from elsewhere: more steps than planned would have spent more than planned
        if not checks.is_count(steps, 0, plan.exposure.steps):
            raise InputError(
                f"{name!r} says steps_taken {steps!r}, but the plan has {plan.exposure.steps} steps"
            )
        if not isinstance(stopped, str | None) or not isinstance(file, str):
            raise InputError(f"{name!r} does not name the models file, or why the run stopped")
        private = folder / _PRIVATE
        # only a file of this folder: a manifest from elsewhere must not lead to other files
        tensors = _load_tensors(folder / Path(file).name) if models else _no_tensors()
        return cls(
            plan,
            read_metrics(folder / _METRICS, steps),
            tensors["models"],
            steps,
            None if stopped is None else StopReason.load(stopped, cause),
            manifest,
            tensors["velocity"],
            tensors["fixed"],
            read_metrics(private, steps) if private.exists() else {},
            read_key(folder / _KEY),
        )

    @property
    def _models_file(self) -> str:
        return f"models-{self.steps_taken}.safetensors"

    def _write(self, folder: Path, overwrite: bool) -> None:
        require("safetensors", "train", "run folders")
        from safetensors import SafetensorError

        own = {
            "format": _FORMAT,
            "steps_taken": self.steps_taken,
            "stopped": self.stopped,
            "models": self._models_file,
        }
        if self.stopped is not None:
            own["stop_cause"] = self.stopped.cause
        # everything becomes text first: a value that is not JSON must not leave half a folder
        manifest = json.dumps({**self.manifest, **own}, indent=1, allow_nan=False) + "\n"
        metrics = metrics_lines(self.history)
        private = {
            _PRIVATE: metrics_lines(self.private_metrics),
            _KEY: "" if self.resume_key is None else self.resume_key.hex() + "\n",
        }
        try:
            folder.mkdir(parents=True, exist_ok=True)
            # before the first file is touched
            self._check_replaceable(folder, overwrite)
            # the name has the number of steps: the old models stay until the manifest names these
            self._save_tensors(folder / self._models_file)
            replace_text(folder / _PLAN, self.plan.to_json() + "\n")
            replace_text(folder / _METRICS, metrics)
            for name, text in private.items():
                if text:
                    write_private(folder / name, text)
            # from here on the folder is this state; what follows only removes what is left over
            replace_text(folder / _MANIFEST, manifest)
            for old in folder.glob("models-*.safetensors"):
                if old.name != self._models_file:
                    old.unlink()
            for name, text in private.items():
                if not text:
                    (folder / name).unlink(missing_ok=True)
        except (OSError, SafetensorError) as problem:
            raise InputError(f"the run cannot be written to {str(folder)!r}: {problem}") from None

    def _save_tensors(self, path: Path) -> None:
        from safetensors.torch import save_file

        tensors = {}
        for kind in _TENSORS:
            for name, value in getattr(self, kind).items():
                tensors[f"{kind}/{name}"] = value.contiguous()
        # safetensors writes in place, and a save may be killed
        partial = path.with_name(path.name + ".new")
        save_file(tensors, partial)
        os.replace(partial, path)

    def _check_replaceable(self, folder: Path, overwrite: bool) -> None:
        """Refuses a folder of something else than an earlier state of this run.

        With `overwrite` another run is accepted, and its manifest is removed first: until the new
        one is written the folder is no run, rather than a mixture of two.
        """
        if not (folder / _MANIFEST).is_file():
            return
        try:
            old = read_json(folder / _MANIFEST)
        except InputError:
            old = None
        if self._is_earlier_state(old, folder):
            return
        if not isinstance(old, dict) or old.get("format") != _FORMAT:
            raise InputError(f"{str(folder)!r} is not a run folder; name another folder")
        if not overwrite:
            raise InputError(
                f"{str(folder)!r} holds another run; name another folder, or say overwrite=True"
            )
        (folder / _MANIFEST).unlink()

    def _is_earlier_state(self, old: Any, folder: Path) -> bool:
        if not isinstance(old, dict) or not isinstance(old.get("steps_taken"), int):
            return False
        try:
            # as text: a plan that differs in the last digit of its noise is another plan
            same_plan = (folder / _PLAN).read_text("utf-8") == self.plan.to_json() + "\n"
        except (OSError, UnicodeDecodeError):
            return False
        same_run = all(old.get(name) == self.manifest.get(name) for name in _IDENTITY)
        # a state of fewer steps would undo the later one in the folder
        return same_plan and same_run and bool(old["steps_taken"] <= self.steps_taken)


def _hash_of(summary: Any) -> str:
    """What a message says of frozen parameters; a manifest from elsewhere may have anything."""
    sha256 = summary.get("sha256") if isinstance(summary, dict) else None
    return f"SHA-256 {str(sha256)[:12]}..." if sha256 else "none"


def _no_tensors() -> dict[str, dict[str, Tensor]]:
    return {kind: {} for kind in _TENSORS}


def _load_tensors(path: Path) -> dict[str, dict[str, Tensor]]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as problem:
        raise InputError(f"{str(path)!r} cannot be read: {problem}") from None
    parts = _no_tensors()
    for name, tensor in tensors.items():
        kind, _, parameter = name.partition("/")
        # later versions may store more
        if kind in parts:
            parts[kind][parameter] = tensor
    return parts
