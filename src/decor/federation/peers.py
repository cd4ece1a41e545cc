"""Peers: the engine that runs every user as a process of its own, with real TLS between them, on
this machine.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from decor import progress
from decor.choices import Dtype
from decor.errors import InputError
from decor.learning.gradients.choose import choose_gradients
from decor.learning.recipe import Recipe
from decor.learning.task import Task
from decor.net import transport
from decor.net.identity import Identity
from decor.privacy.plan import NoisePlan
from decor.results.run import Run
from decor.training.engine import IN_MEMORY, Callback, Capabilities, Setting
from decor.training.manifest import versions
from decor.training.measurement import PUBLIC
from decor.training.validation import check

from .federation import Member
from .local_federation import Together
from .terms import Terms


@dataclass(frozen=True)
class Peers:
    """Real peers: keys and noise from the operating system, nothing repeatable.

    `folder` keeps their ledgers and logs.

    A neighbour may be silent for `timeout` seconds; a user goes on with a share `quorum` of its
    neighbours. Metrics are of the end alone: a federation measures nothing on the way that its
    users would have to share. The run is a private one. With `private_metrics` the run keeps the
    training loss as well, which is known here because all data is on one machine.
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
                "timeout is a number of seconds above 0, and quorum a share above 0 and at most 1"
            )

    @property
    def seed(self) -> None:
        """Peers draw from the operating system."""
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
        self.capabilities.check(self, settings, recipe, callbacks, resume)
        (setting,) = settings
        task = check(task, setting.plan, recipe, allow_disconnected=True)
        if setting.plan.budget is None:
            raise InputError(
                "peers promise something to people: make the plan for a budget, with "
                "decor.calibrate()"
            )
        if setting.plan.adversary.average_only:
            raise InputError(
                "peers have no server, so they cannot run central DP; use Vectorised()"
            )
        identities = [Identity.new() for _ in range(task.users)]
        terms = self.terms(task, setting, recipe, identities, setting.plan.budget.delta)
        with ExitStack() as stack:
            folder = Path(
                self.folder or stack.enter_context(tempfile.TemporaryDirectory(prefix="decor-"))
            )
            tasks = alone(task)
            steps = setting.plan.exposure.steps
            runs = Together(
                terms,
                identities,
                tasks,
                folder,
                on_status=lambda said: progress.report(
                    f"{task.users} peers training {task.name}",
                    min((s["step"] for s in said), default=0),
                    steps,
                ),
            ).trained()
        manifest = {
            "simulated": False,
            "task": {"name": task.name, "users": task.users, "parameters": task.parameters},
            "learning_rate": setting.learning_rate,
            "seed": "secret",
            "recipe": recipe.described(),
            "engine": {
                "name": "peers",
                "dtype": self.dtype,
                "timeout": self.timeout,
                "quorum": self.quorum,
            },
            "noise": {"kind": "grid", "distance": terms.grid.distance},
            "versions": versions(),
            "run": terms.digest.hex()[:16],
        }
        return [joined(task, setting.plan, runs, manifest, self.private_metrics)]

    def terms(
        self,
        task: Task,
        setting: Setting,
        recipe: Recipe,
        identities: Sequence[Identity],
        delta: float,
    ) -> Terms:
        """As of a federation's file, for a plan that is there already; nobody else takes part, so
        the digest is of the keys.
        """
        ports = transport.free_ports(task.users)
        members = tuple(
            Member(name=f"user-{i}", address=f"127.0.0.1:{port}", public=identity.public)
            for i, (identity, port) in enumerate(zip(identities, ports, strict=True))
        )
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
            patience=max(60.0, self.timeout),
        )


def alone(task: Task) -> list[Task]:
    """The task as each of its users has it."""
    return [Task(task.model, task.loss, [shard], name=task.name) for shard in task.shards]


def joined(
    task: Task,
    plan: NoisePlan,
    runs: Sequence[Run],
    manifest: dict[str, object],
    private_metrics: bool = False,
) -> Run:
    """All users' runs as one, measured as the simulator does.

    With `private_metrics` it keeps the training loss as well.
    """
    models: dict[str, Tensor] = {
        name: torch.cat([run.models[name] for run in runs]) for name in runs[0].models
    }
    gradients = choose_gradients(task, plan.exposure.unit, None, torch.float64)
    own = {name: value.double() for name, value in models.items() if name not in gradients.tied}
    mean = [block.mean(0, keepdim=True) for block in gradients.blocks(own)]
    every = {
        name: float(value) for name, value in gradients.evaluate(mean, loss=private_metrics).items()
    }
    found = {name: every[name] for name in PUBLIC if name in every and task.test_public}
    found["consensus"] = sum(
        float((block - centre).square().sum())
        for block, centre in zip(gradients.blocks(own), mean, strict=True)
    ) / len(runs)
    taken = max(run.steps_taken for run in runs)
    history: dict[str, list[float]] = {
        "step": [taken],
        **{name: [value] for name, value in found.items()},
    }
    private = history | {name: [value] for name, value in every.items()} if private_metrics else {}
    return Run(plan, history, models, taken, None, manifest, {}, runs[0].fixed, private)
