"""World: which of the processes of one run this is.

Only a process group that was joined knows a rank.

RANK is in the environment of many a process that belongs to no group: in every pod of a Kubernetes
job but one, in whatever torchrun starts, after many a prologue of Slurm. So the environment says
where a group can be *joined*, to the engine that joins one, and never what is saved, printed or
attacked.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

from decor.errors import InputError

TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""What torchrun, a PyTorchJob of Kubernetes or a script of Slurm sets for each process of a group.
All, or there is no group.
"""


@dataclass(frozen=True)
class World:
    """Process `rank` of `size`; a process alone is the first of one."""

    rank: int = 0
    size: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this process has everybody's models, saves them, and speaks for all."""
        return self.rank == 0

    @classmethod
    def joined(cls) -> World:
        """The process group that this process is in; alone without one.

        Reads no environment variable.
        """
        dist = sys.modules.get("torch.distributed")  # whoever has not loaded it is in no group
        if dist is None or not dist.is_available() or not dist.is_initialized():
            return cls()
        return cls(dist.get_rank(), dist.get_world_size())

    @classmethod
    def announced(cls) -> World | None:
        """The process group that the environment offers to join, or None where one of torchrun's
        variables is missing.
        """
        if not all(name in os.environ for name in TORCHRUN):
            return None
        said = {name: os.environ[name] for name in ("RANK", "WORLD_SIZE")}
        try:
            rank, size = (int(value) for value in said.values())
        except ValueError:
            rank, size = -1, 0
        if not 0 <= rank < size:
            shown = " and ".join(f"{name}={value}" for name, value in said.items())
            raise InputError(
                f"{shown} name no process of a group; start all of them by torchrun, or unset both"
            )
        return cls(rank, size)
