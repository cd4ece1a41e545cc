"""ProcessGroup: one run on many processes and machines, by torch.distributed; everybody holds some
of the users.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from decor.choices import Dtype, GradientPath
from decor.errors import InputError
from decor.learning.batches import check_size
from decor.learning.recipe import Recipe
from decor.learning.task import Task
from decor.results.run import Run
from decor.training.engine import IN_MEMORY, Callback, Capabilities, Setting
from decor.training.manifest import versions
from decor.training.simulation import Simulation
from decor.training.validation import check
from decor.training.vectorised import Vectorised, check_private

from .communicator import Team
from .rank_share import Teammate


@dataclass(frozen=True)
class ProcessGroup:
    """The simulator over the processes that torchrun has started; alone it is one process.

    Users are dealt out so that few edges run between processes. Noise needs no words: both ends of
    an edge draw it from the seed, the edge's number and the step. In a round of gossip the models
    at the borders travel. Numbers are those of `Vectorised(noise="edges")`, to rounding, whatever
    the number of processes (what a module draws itself, as dropout does, is as random, but not the
    same).

    Everybody calls `decor.train` with the same task and plan. Callbacks run in the first process,
    whose run has everybody's models; the others' runs have none. A run to resume is given to the
    first, too. `threads` are those of one process. With `device="cuda"` every process takes a card
    of its machine, and models travel between cards (NCCL). `on_messages`, given everywhere, sees
    what `Vectorised`'s sees, in the first process.

    `seed=None` is a private run: every process draws its own 256 bits for the noise and batches of
    its users, and processes that share an edge agree on its key by X25519. Only messages on the
    grid, and what follows from them, travel: no seed, no hash of data, no loss. That protects from
    those who listen between the processes, not from one who poses as a process; and every process
    holds the data of its users, whom no adversary of a plan stands for.
    """

    seed: int | None = 0
    device: str = "cpu"
    dtype: Dtype = "float32"
    threads: int | None = 1
    path: GradientPath = "auto"
    tf32: bool = False
    on_messages: Callable[[int, Tensor], object] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self._simulator()  # refuses options that do not go together

    @property
    def capabilities(self) -> Capabilities:
        # a private run cannot be resumed, but only the first process is given a run to resume:
        # `run` lets all refuse it together
        return Capabilities()

    @property
    def parameters_at_once(self) -> int:
        return IN_MEMORY

    def _simulator(self) -> Vectorised:
        """The simulator of this process's users."""
        device = self.device
        if device == "cuda" and torch.cuda.is_available():
            device = f"cuda:{int(os.environ.get('LOCAL_RANK', '0')) % torch.cuda.device_count()}"
        noise = None if self.seed is None else "edges"
        return Vectorised(
            self.seed,
            device,
            self.dtype,
            self.threads,
            self.path,
            self.tf32,
            noise,
            on_messages=self.on_messages,
        )

    def run(
        self,
        task: Task,
        settings: Sequence[Setting],
        recipe: Recipe,
        callbacks: Sequence[Callback] = (),
        resume: Run | None = None,
    ) -> list[Run]:
        """Everybody's grid of runs; see `Vectorised.run`."""
        team = Team.of_environment(self.device)
        if team.size > task.users:
            raise InputError(
                f"{team.size} processes are more than the {task.users} users; start fewer"
            )
        secret = None
        if self.seed is None:
            again = (
                resume is not None
                or os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
                or team.is_restarted()
            )
            if int(team.total(torch.tensor(float(again)))):
                raise InputError(
                    "a private run cannot be resumed by several processes, nor begun again after "
                    "one has died or another has "
                    "joined: messages have been between them, and would be made again with other "
                    "noise; start a new run, and "
                    "count both"
                )
            secret = check_private(settings)
            task = check(task, settings[0].plan, recipe, allow_disconnected=True)
        mate = Teammate(team, task, settings[0].plan.topology, len(settings), callbacks, secret)
        # of a private run not even a hash of the data travels: who differs there has its own users'
        # data wrong
        data = (
            {"data and model": mate.fingerprint}
            if secret is None
            else {"model": str(task.model), "users": task.users}
        )
        team.agree(
            {
                **data,
                "plans": [setting.plan.to_json() for setting in settings],
                "learning rates": [setting.learning_rate for setting in settings],
                "seeds": [setting.seed for setting in settings],
                "recipe": recipe.described(),
                "engine": [self.dtype, self.path, self.tf32, self.device.partition(":")[0]],
                "listeners": self.on_messages is not None,
                "deal of users": [users.tolist() for users in mate.members],
                "versions": versions(),
            }
        )
        check_size(task.counts, recipe.batch_size or settings[0].plan.exposure.batch_size)
        return Simulation(self._simulator(), mate, settings, recipe, resume).finished()
