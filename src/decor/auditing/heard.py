"""Real peers: processes with TLS between them, and what each of them hears and knows."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decor.engines.engine import Setting
from decor.errors import DecorError, InputError
from decor.federation import witness
from decor.federation.peers import Peers, alone
from decor.engines.released import grid_of
from decor.federation.together import Together
from decor.learning.task import Task
from decor.net.identity import Identity
from decor.noise.stream import EDGE_SIGMA, OWN_SIGMA, shared
from decor.privacy.plan import NoisePlan

from .wire import RATE, RECIPE, Hear

Array = NDArray[Any]


@dataclass(frozen=True)
class OfPeers:
    """Real processes with TLS between them: what arrives, and the keys that users hold."""

    engine: Peers
    name: str = "peers"
    secrets: bool = True
    widest: int | None = None
    hears: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.engine, Peers):
            raise InputError(f"engine must be Vectorised(), ProcessGroup() or Peers(), not {self.engine!r}")

    def deviations(self, plan: NoisePlan, parameters: int) -> tuple[float, Array]:
        """The grid's, which are those planned or a little more."""
        grid = grid_of(plan, parameters)
        return grid.unit * OWN_SIGMA, grid.unit * EDGE_SIGMA * np.array(grid.multiples, dtype=float)

    def run(self, task: Task, plan: NoisePlan, seeds: Sequence[int], hear: Hear) -> list[str]:
        identities = [Identity.new() for _ in range(task.users)]
        # nobody is left behind: who is slow is no fault
        terms = replace(self.engine, quorum=1.0).terms(task, Setting(plan, RATE, 0), RECIPE, identities, 0.5)
        with tempfile.TemporaryDirectory(prefix="decor-audit-") as folder:
            together = Together(terms, identities, alone(task), Path(folder), witnessed=True)
            try:
                together.trained()
            except DecorError as problem:  # whose log is gone with the folder
                raise DecorError(str(problem).rpartition("; see ")[0] or str(problem)) from None
            heard = _Heard(plan, [seat.witness for seat in together.seats])
            return heard.told(hear, self.engine.dtype, terms.grid.unit, terms.grid.multiples)


class _Heard:
    """What all witnesses have written down together."""

    def __init__(self, plan: NoisePlan, paths: Sequence[Path]) -> None:
        self.plan = plan
        self.messages: dict[tuple[int, int], bytes] = {}
        self.keys: dict[tuple[int, int, int], bytes] = {}
        self.problems: list[str] = []
        for user, path in enumerate(paths):
            for other, step, round_, said in witness.read(path):
                if round_ == -1:
                    self.keys[user, other, step] = said
                elif round_ == 0 and self.messages.setdefault((other, step), said) != said:
                    self.problems.append(f"user {other} has sent two different messages for step {step}")

    def told(self, hear: Hear, dtype: str, unit: float, multiples: Sequence[int]) -> list[str]:
        users = range(self.plan.topology.users)
        for step in range(1 + max((step for _, step in self.messages), default=-1)):
            missing = [user for user in users if (user, step) not in self.messages]
            if missing:
                return [*self.problems, f"nobody has heard a message of user {missing[0]} for step {step}"]
            models = np.stack([np.frombuffer(self.messages[user, step], dtype) for user in users]).astype(np.float64)
            hear(step, models, self._shared(step, models.shape[1], unit, multiples))
        return self.problems

    def _shared(self, step: int, count: int, unit: float, multiples: Sequence[int]) -> Array:
        found = np.zeros((len(multiples), count))
        for e, ((low, high), multiple) in enumerate(zip(self.plan.topology.edges.tolist(), multiples, strict=True)):
            keys = self.keys.get((low, high, step)), self.keys.get((high, low, step))
            if keys[0] != keys[1] or keys[0] is None:
                self.problems.append(f"users {low} and {high} have no common secret for step {step}")
            if keys[0] is not None:
                found[e] = unit * multiple * shared(keys[0], count)
        return found
