"""ProcessGroup: one run on many processes and machines, by torch.distributed; everybody holds some of the users."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from decor.errors import DecorError, InputError
from decor.learning.batches import Batches, check_size
from decor.learning.clip import Blocks
from decor.learning.task import Task
from decor.noise import root
from decor.results.run import Run

from .across import Across, parts
from .channel import Channel, Complete, Sparse
from .cuda.steps import UNIT
from .engine import Callback, Moment, Recipe, Setting
from .manifest import fingerprint, versions
from .mixer import DENSE, is_complete
from .team import Team
from .vectorised import Simulation, Vectorised

_GIVE, _FAILED = 1, 2
"""What the first process says to the others while its callbacks are called: give your models for run k, or: all is lost."""


@dataclass(frozen=True)
class ProcessGroup:
    """The simulator over the processes that torchrun has started; alone it is one process.

    Users are dealt out so that few edges run between processes. Noise needs no words: both ends of an edge draw it from the
    seed, the edge's number and the step. In a round of gossip the models at the borders travel. Numbers are those of
    `Vectorised(noise="edges")`, to rounding, whatever the number of processes (what a module draws itself, as dropout does, is
    as random, but not the same).

    Everybody calls `decor.train` with the same task and plan. Callbacks run in the first process, whose run has everybody's
    models; the others' runs have none. A run to resume is given to the first, too. `threads` are those of one process. With
    `device="cuda"` every process takes a card of its machine, and models travel between cards (NCCL). `on_messages`, given
    everywhere, sees what `Vectorised`'s sees, in the first process.
    """

    seed: int | None = 0
    device: str = "cpu"
    dtype: str = "float32"
    threads: int | None = 1
    path: str = "auto"
    tf32: bool = False
    on_messages: Callable[[int, Tensor], object] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self.local  # noqa: B018 - checks the options

    @property
    def local(self) -> Vectorised:
        device = self.device
        if device == "cuda" and torch.cuda.is_available():
            device = f"cuda:{int(os.environ.get('LOCAL_RANK', '0')) % torch.cuda.device_count()}"
        told = {"noise": "edges", "on_messages": self.on_messages}
        return Vectorised(self.seed, device, self.dtype, self.threads, self.path, self.tf32, **told)  # type: ignore[arg-type]

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
            raise InputError(f"{team.size} processes are more than the {task.users} users; start fewer")
        again = resume is not None or os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
        if self.seed is None and int(team.total(torch.tensor(float(again)))):
            raise InputError(
                "a run with a secret seed cannot be resumed by several processes, nor begun again after one has died: messages "
                "have been between them, and would be made again with other noise; start a new run, and count both"
            )
        settings = [replace(setting, seed=_agreed(setting.seed, team)) for setting in settings]
        return _Share(self, team, task, settings, recipe, callbacks, resume).finished()


class _Share(Simulation):
    """One process's share of a grid of runs."""

    name = "process-group"

    def __init__(
        self,
        engine: ProcessGroup,
        team: Team,
        task: Task,
        settings: Sequence[Setting],
        recipe: Recipe,
        callbacks: Sequence[Callback],
        resume: Run | None,
    ) -> None:
        self.team, self.everything = team, task
        self.print_of_all = fingerprint(task)
        self.part, self.members = parts(settings[0].plan.topology, team)
        team.agree(
            {
                "data and model": self.print_of_all,
                "plans": [setting.plan.to_json() for setting in settings],
                "learning rates": [setting.learning_rate for setting in settings],
                "recipe": recipe.described(),
                "engine": [engine.dtype, engine.path, engine.tf32, engine.device.partition(":")[0]],
                "listeners": engine.on_messages is not None,
                "deal of users": [users.tolist() for users in self.members],
                "versions": versions(),
            }
        )
        self.salt = 2**40 * team.rank
        self.asks = bool(int(team.told(torch.tensor(int(bool(callbacks))))))
        check_size(task.records, recipe.batch_size or settings[0].plan.exposure.batch_size)
        some = replace(task, shards=[task.shards[int(user)] for user in self.part.users])
        super().__init__(engine.local, some, settings, recipe, callbacks, resume)

    @property
    def whole(self) -> Task:
        return self.everything

    @property
    def is_first(self) -> bool:
        return self.team.rank == 0

    def _batches(self, size: int | None, sampling: str) -> Batches:
        return Batches(self.task.records, size, sampling, self.seeds, UNIT if self.on_card else 1, self.part.users.tolist())

    def _channel(self) -> Channel:
        plans = [setting.plan for setting in self.grid]
        topology, central = plans[0].topology, plans[0].adversary.average_only
        if self.on_card:
            from .cuda.across import OnCards

            return OnCards(plans, self.seeds, self.dtype, self.device, self.part, self.team)
        complete = is_complete(topology)
        mixing = Across(topology, self.part, self.team, central or complete)
        if complete and not central and topology.users > DENSE:
            return Complete(mixing, plans, self.seeds, self.part.users)

        def of(users: int, *rest: Any) -> root.Columns:
            return root.by_edges(users, *rest).within(self.part.users, users)

        return Sparse(mixing, plans, self.seeds, of, len(self.part.users))

    @property
    def recordable(self) -> bool:
        # what waits for other processes is no graph of one card's kernels
        return self.team.size == 1 and super().recordable

    def _fingerprint(self) -> str:
        return self.print_of_all

    def _total(self, value: Tensor) -> Tensor:
        return self.team.total(value)

    def _mean(self, block: Tensor) -> Tensor:
        return (self.team.total(block.sum(0, dtype=torch.float64)) / self.whole.users).to(block.dtype)

    def _of_all(self, found: dict[str, Tensor]) -> dict[str, Tensor]:
        # every user counts the same; public test data are the same everywhere
        found["loss"] = self.team.total(found["loss"] * (self.task.users / self.whole.users))
        return found

    def _resume(self, run: Run | None) -> None:
        """The first process has the run, and deals it out."""
        problem = None
        try:
            super()._resume(run)
        except InputError as found:
            problem = found
        # 0: nothing to resume; 1: a run, 2: with its velocity; 3: one that cannot be resumed
        word = 3 if problem else 0 if run is None else 2 if run.velocity else 1
        word = int(self.team.told(torch.tensor(word)))
        if word == 3:
            raise problem or InputError("the first process cannot resume its run")
        if not word:
            return
        self.start = int(self.team.told(torch.tensor(self.start)))
        self.history[0] = self.team.said(self.history[0])
        self.models = self._dealt(self.models)
        self.velocity = self._dealt(self.velocity) if word == 2 else self.velocity

    def _dealt(self, blocks: Blocks) -> Blocks:
        """Everybody's numbers at the first process -> those of the users of each."""
        found = []
        for block in blocks:
            own = block.new_empty((len(self.part.users), *block.shape[1:]))
            rows = [block[torch.from_numpy(users)] for users in self.members] if self.is_first else []
            found.append(self.team.dealt(own, rows))
        return found

    def _everybodys(self, blocks: Blocks) -> Blocks:
        order = torch.from_numpy(np.argsort(np.concatenate(self.members)))
        gathered = [self.team.gathered(block, [len(users) for users in self.members]) for block in blocks]
        return [torch.cat(every)[order] for every in gathered] if self.is_first else []

    def _tell(self, step: int, messages: Tensor) -> None:
        everybodys = self._everybodys([messages.cpu()])
        if self.is_first:
            super()._tell(step, everybodys[0])

    def _named(self, blocks: Blocks, seed: int, setting: int) -> dict[str, Tensor]:
        if self.is_first:
            return super()._named(blocks, seed, setting)
        self._everybodys(self._picked(blocks, seed, setting))
        return {}

    def _ask(self, moments: dict[int, Moment]) -> dict[int, str]:
        """The first process asks its callbacks. When one wants a run, the others give their models; then they hear the end."""
        word = torch.zeros(2, dtype=torch.int64)
        if not self.is_first:
            while (said := int(self.team.told(word)[0])) == _GIVE:
                self._run(int(word[1]))
            if said == _FAILED:
                raise DecorError("the first process has failed in a callback")
            ended = self.team.told(torch.zeros(len(self.settings), dtype=torch.int64))
            return dict.fromkeys(torch.nonzero(ended).flatten().tolist(), f"stopped after step {self.taken}")

        def gathered(k: int) -> Run:
            if not asking:
                raise InputError("a run can be asked for while its callback is called, not later")
            self.team.told(torch.tensor([_GIVE, k]))
            return self._run(k)

        asked = {k: replace(moment, run_now=partial(gathered, k)) for k, moment in moments.items()}
        asking = True
        try:
            reasons = super()._ask(asked)
        except BaseException:
            self.team.told(torch.tensor([_FAILED, 0]))
            raise
        finally:
            asking = False
        self.team.told(word)
        self.team.told(torch.tensor([int(k in reasons) for k in range(len(self.settings))]))
        return reasons


def _agreed(seed: int, team: Team) -> int:
    """A secret seed is drawn once, by the first process."""
    return int(team.told(torch.tensor(seed)))
