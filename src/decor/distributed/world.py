"""World: the rank of this process among the processes of one run.

Only a process group that this process has joined gives it a rank. RANK is also set in processes
that belong to no group: in all but one pod of a Kubernetes job, in everything that torchrun
starts, by some Slurm prologues. So the environment tells an engine which group it may *join*, and
never decides what is saved, printed or attacked.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

from decor.errors import InputError

TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Set for each process by torchrun, a Kubernetes PyTorchJob or a Slurm script: all, or no group."""


@dataclass(frozen=True)
class World:
    """Process `rank` of `size`; without a process group, rank 0 of 1."""

    rank: int = 0
    size: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this process has all models, saves them, and prints for all ranks."""
        return self.rank == 0

    @classmethod
    def current(cls) -> World:
        """The process group that this process has joined. Reads no environment variable."""
        # a process that never loaded torch.distributed is in no group; loading it here is slow
        dist = sys.modules.get("torch.distributed")
        if dist is None or not dist.is_available() or not dist.is_initialized():
            return cls()
        return cls(dist.get_rank(), dist.get_world_size())

    @classmethod
    def from_environment(cls) -> World | None:
        """The process group that the environment offers, or None if a variable is missing."""
        if not all(name in os.environ for name in TORCHRUN):
            return None
        values = {name: os.environ[name] for name in ("RANK", "WORLD_SIZE")}
        try:
            rank, size = (int(value) for value in values.values())
        except ValueError:
            # refused below, with the values as they are
            rank, size = -1, 0
        if not 0 <= rank < size:
            shown = " and ".join(f"{name}={value}" for name, value in values.items())
            raise InputError(
                f"{shown} name no process of a group; start all of them by torchrun, or unset both"
            )
        return cls(rank, size)
