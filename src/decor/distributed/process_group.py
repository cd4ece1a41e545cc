"""ProcessGroup: one run on many processes and machines, each with some of the users."""

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
from decor.training.share import common_rate
from decor.training.simulation import Simulation
from decor.training.validation import check
from decor.training.vectorised import Vectorised, draw_secret

from .communicator import Communicator
from .rank_share import RankShare


@dataclass(frozen=True)
class ProcessGroup:
    """The simulator on all processes that torchrun has started; without torchrun, on one process.

    Users are assigned to ranks so that few edges cross ranks. Both ends of an edge draw its noise
    from the seed, the edge's number and the step, so noise is never sent; in a gossip round only
    the models at the borders travel. Results are those of `Vectorised(noise="edges")`, to rounding,
    for any number of processes. What a module draws itself (dropout) has the same distribution, not
    the same values.

    Every process calls `decor.train` with the same task and plan. Callbacks run on rank 0, whose
    run has all models; the other ranks' runs have none. A run to resume is given to rank 0 only.

    Attributes:
        seed: Seed of a simulation. None: a private run. Each process draws 256 bits for the noise
            and batches of its users, and processes that share an edge agree on its key by X25519.
        device: "cpu", or "cuda": each process takes a GPU of its machine, and models travel between
            GPUs (NCCL).
        dtype: Precision of models, "float32" or "float64".
        threads: Threads of one process; None tries how many help. The default suits one process
            per core.
        path: Gradient code, as of `Vectorised`.
        tf32: Whether GPUs multiply with operands of eleven bits, as of `Vectorised`.
        bf16: Whether gradients come from operands of eight bits, as of `Vectorised`.
        on_messages: Called on rank 0 as `Vectorised`'s is; give it on every rank.

    Guarantee: in a private run only messages on the grid, and what follows from them, travel: no
    seed, no hash of data, no loss. That protects against eavesdroppers between the processes, not
    against a machine that poses as one of them. Each process also holds its users' data, which no
    adversary of a plan stands for.
    """

    seed: int | None = 0
    device: str = "cpu"
    dtype: Dtype = "float32"
    threads: int | None = 1
    path: GradientPath = "auto"
    tf32: bool = False
    bf16: bool = False
    on_messages: Callable[[int, Tensor], object] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self._simulator()  # refuses options that do not go together

    @property
    def capabilities(self) -> Capabilities:
        # a private run cannot be resumed, but only rank 0 is given a run to resume: `run` makes all
        # ranks refuse it together
        return Capabilities()

    @property
    def parameters_at_once(self) -> int:
        return IN_MEMORY

    def _simulator(self) -> Vectorised:
        """The simulator of this process's users."""
        device = self.device
        # ranks of one machine take its GPUs in turn
        if device == "cuda" and torch.cuda.is_available():
            device = f"cuda:{int(os.environ.get('LOCAL_RANK', '0')) % torch.cuda.device_count()}"
        return Vectorised(
            self.seed,
            device,
            self.dtype,
            self.threads,
            self.path,
            self.tf32,
            self.bf16,
            noise=None if self.seed is None else "edges",
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
        """Runs all settings on all processes; called by `train` and `sweep`.

        Args:
            task: All users' data; each process trains its own users.
            settings: As of `Vectorised.run`, the same on every rank.
            recipe: How to train, the same on every rank.
            callbacks: Called on rank 0.
            resume: On rank 0, a run that stopped early, to be continued.

        Returns:
            One run for every setting. Only rank 0's runs have models.

        Raises:
            InputError: On all ranks, if their arguments differ.
        """
        comm = Communicator.from_environment(self.device)
        if comm.size > task.users:
            raise InputError(
                f"{comm.size} processes are more than the {task.users} users; start fewer"
            )
        secret = None
        if self.seed is None:
            self._refuse_restart(comm, resume)
            secret = draw_secret(settings)
            task = check(task, settings[0].plan, recipe, allow_disconnected=True)
        share = RankShare(comm, task, settings[0].plan.topology, len(settings), callbacks, secret)
        # of a private run not even a hash of the data travels: it would confirm a guessed record
        data = (
            {"data and model": share.fingerprint}
            if secret is None
            else {"model": str(task.model), "users": task.users}
        )
        comm.assert_equal(
            {
                **data,
                "plans": [setting.plan.to_json() for setting in settings],
                "learning rates": [setting.learning_rate for setting in settings],
                "seeds": [setting.seed for setting in settings],
                "recipe": recipe.to_json(),
                "engine": [
                    *(self.dtype, self.path, self.tf32, self.bf16),
                    self.device.partition(":")[0],
                ],
                "listeners": self.on_messages is not None,
                "users of each rank": [users.tolist() for users in share.users_by_rank],
                "versions": versions(),
            }
        )
        # with all users' counts, so that every rank refuses alike
        plan = settings[0].plan
        size = recipe.batch_size or plan.exposure.batch_size
        check_size(task.counts, size, common_rate(plan))
        return Simulation(self._simulator(), share, settings, recipe, resume).run()

    def _refuse_restart(self, comm: Communicator, resume: Run | None) -> None:
        """Refuses, on all ranks, a private run that may have sent messages before."""
        restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        again = resume is not None or restarts != "0" or comm.is_restarted()
        if int(comm.all_reduce_sum(torch.tensor(float(again)))):
            raise InputError(
                "a private run cannot be resumed by several processes, nor restarted after one has "
                "died or another has joined: messages were sent, and would be sent again with "
                "other noise; start a new run, and count both"
            )
