"""Peers: the engine that runs each user as a process of its own, with real TLS between them."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from decor import progress
from decor.choices import Dtype
from decor.errors import InputError
from decor.learning.frozen import body_parameters
from decor.learning.gradients.choose import choose_gradients
from decor.learning.recipe import Recipe
from decor.learning.task import Task
from decor.net import addresses
from decor.net.identity import Identity
from decor.privacy.plan import NoisePlan
from decor.results.run import Run
from decor.training.engine import IN_MEMORY, Callback, Capabilities, Setting
from decor.training.manifest import private_manifest
from decor.training.measurement import measure_own, public_test_metrics
from decor.training.validation import check

from .federation import Member
from .local_federation import LocalFederation
from .process_starter import ProcessStarter
from .terms import Terms


@dataclass(frozen=True)
class Peers:
    """Runs each user as a process of its own, as a deployed federation does.

    Keys and noise are from the operating system, so no run can be repeated. Only the
    final model is measured: metrics during training would make users share more than messages.

    Attributes:
        dtype: Of the models that are sent.
        timeout: Seconds of silence after which a step goes on without a neighbour.
        quorum: Smallest share of its neighbours with which a user continues, above 0 and up to 1.
        folder: Where ledgers, logs and models are kept; None: nowhere after the run.
        private_metrics: Also keep the training loss, which is known here because all data is on
            one machine. The guarantee does not cover it: it must not be published.

    Guarantee:
        The plan's epsilon at the delta of its budget. Noise is drawn on a grid, and the delta
        used up by the noise tables is accounted for.
    """

    dtype: Dtype = "float32"
    timeout: float = 30.0
    quorum: float = 0.5
    folder: str | Path | None = None
    private_metrics: bool = False

    def __post_init__(self) -> None:
        if self.dtype not in ("float32", "float64"):
            raise InputError(f'dtype must be "float32" or "float64", not {self.dtype!r}')
        if not self.timeout > 0 or not 0 < self.quorum <= 1:
            raise InputError(
                "timeout must be above 0 seconds, and quorum a share above 0 and at most 1, not "
                f"{self.timeout!r} and {self.quorum!r}"
            )

    @property
    def seed(self) -> None:
        """None: peers draw from the operating system."""
        return None

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            several_settings=False, callbacks=False, resuming=False, measurements=False
        )

    @property
    def parameters_at_once(self) -> int:
        return IN_MEMORY

    def run(
        self,
        task: Task,
        settings: Sequence[Setting],
        recipe: Recipe,
        callbacks: Sequence[Callback] = (),
        resume: Run | None = None,
    ) -> list[Run]:
        """Trains with one setting; see `decor.train`.

        Args:
            task: The users' data and the model.
            settings: One setting: a plan that was made for a budget, and a learning rate.
            recipe: How to train, with at least one gossip round per step.
            callbacks: None: peers cannot be watched step by step.
            resume: None: an interrupted federation continues from its ledgers (`decor node`).

        Returns:
            The run of all users together.

        Raises:
            InputError: Peers cannot run this.
            DecorError: A user could not go on; the message names it and its log.
        """
        self.capabilities.check(self, settings, recipe, callbacks, resume)
        # `check` has refused several settings
        (setting,) = settings
        plan = setting.plan
        # the same checks as of the simulator's private runs
        task = check(task, plan, recipe, allow_disconnected=True)
        if plan.budget is None:
            raise InputError(
                "peers need a plan with a privacy budget; make one with decor.calibrate()"
            )
        # central DP needs a server that sees only averages
        if plan.adversary.average_only:
            raise InputError(
                "peers have no server, so they cannot run central DP; use Vectorised()"
            )

        def report(statuses: list[dict[str, Any]]) -> None:
            slowest = min((status["step"] for status in statuses), default=0)
            what = f"{task.users} peers training {task.name}"
            progress.report(what, slowest, plan.exposure.steps)

        with ExitStack() as stack:
            # first: it loads torch meanwhile
            starter = stack.enter_context(ProcessStarter())
            # fresh keys: this federation lives as long as the run
            identities = [Identity.new() for _ in range(task.users)]
            terms = self.terms(task, setting, recipe, identities, plan.budget.delta)
            # a folder of our own is removed after the run
            folder = Path(
                self.folder or stack.enter_context(tempfile.TemporaryDirectory(prefix="decor-"))
            )
            tasks = partial(split_by_user, task)
            runs = LocalFederation(
                starter, terms, identities, tasks, folder, on_status=report
            ).run()
        engine = {
            "name": "peers",
            "dtype": self.dtype,
            "timeout": self.timeout,
            "quorum": self.quorum,
        }
        name, distance = terms.digest.hex()[:16], terms.grid.distance
        manifest = private_manifest(engine, task, setting, recipe, distance, name).to_json()
        return [combine(task, plan, runs, manifest, self.private_metrics)]

    def terms(
        self,
        task: Task,
        setting: Setting,
        recipe: Recipe,
        identities: Sequence[Identity],
        delta: float,
    ) -> Terms:
        """The terms that a federation's file would give, for an existing plan.

        Args:
            task: The users' data and the model.
            setting: The plan and the learning rate.
            recipe: How to train.
            identities: The users' keys.
            delta: What is promised, the part of the noise tables included.
        """
        ports = addresses.free_ports(task.users)
        members = tuple(
            Member(name=f"user-{i}", address=f"127.0.0.1:{port}", public=identity.public)
            for i, (identity, port) in enumerate(zip(identities, ports, strict=True))
        )
        # there is no file to compare: the keys are fresh, so they identify the federation
        digest = hashlib.sha256(b"".join(identity.public for identity in identities)).digest()
        return Terms(
            task.name,
            members,
            setting.plan,
            delta,
            recipe,
            setting.learning_rate,
            self.dtype,
            task.parameters,
            digest,
            (("all", digest[:8]),),
            self.timeout,
            self.quorum,
            # at least a minute: on a busy machine processes start slowly
            patience=max(60.0, self.timeout),
        )


def split_by_user(task: Task) -> list[Task]:
    """The task as each of its users has it."""
    return [Task(task.model, task.loss, [shard], name=task.name) for shard in task.shards]


def combine(
    task: Task,
    plan: NoisePlan,
    runs: Sequence[Run],
    manifest: dict[str, object],
    private_metrics: bool = False,
) -> Run:
    """All users' runs as one, measured as the simulator does.

    Args:
        task: The data of all users.
        plan: The plan of the runs.
        runs: One run per user.
        manifest: Of the result.
        private_metrics: Also keep the training loss.
    """
    models: dict[str, Tensor] = {
        name: torch.cat([run.models[name] for run in runs]) for name in runs[0].models
    }
    # in float64, whatever the dtype of the models
    gradients = choose_gradients(task, plan.exposure.unit, None, torch.float64, exact=True)
    own = {name: value.double() for name, value in models.items() if name not in gradients.tied}
    blocks = gradients.blocks(own)
    mean = [block.mean(0, keepdim=True) for block in blocks]
    measured = gradients.evaluate(mean, loss=private_metrics)
    metrics = {name: float(value) for name, value in measured.items()}
    # metrics on data that are not public stay out of the history, which is published
    own_metrics = measure_own(task, gradients, mean)
    metrics |= {name: float(value) for name, value in own_metrics.items()}
    public = public_test_metrics(task)
    published = {name: metrics[name] for name in public if name in metrics}
    deviations = [
        float((block - centre).square().sum()) for block, centre in zip(blocks, mean, strict=True)
    ]
    published["consensus"] = sum(deviations) / len(runs)
    steps = max(run.steps_taken for run in runs)
    history: dict[str, list[float]] = {"step": [steps]}
    history |= {name: [value] for name, value in published.items()}
    private = {}
    if private_metrics:
        private = history | {name: [value] for name, value in metrics.items()}
    frozen = body_parameters(task.model)
    # folders of an earlier version have frozen parameters as well
    buffers = {name: each for name, each in runs[0].fixed.items() if name not in frozen}
    return Run(*(plan, history, models, steps, None, manifest, {}, buffers, private), frozen=frozen)
