"""Node: one user's part of Algorithm 1 on a real network, from its first step to its model.

A step: gradient, clip, noise on the grid, local step, the message into the ledger, only then to the
neighbours, and the rounds of gossip. After a crash the bytes in the ledger are sent again; no step
is ever computed twice.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from decor.errors import DecorError, InputError
from decor.graph.gossip import Gossip
from decor.learning.task import Task
from decor.net.connections import Log
from decor.net.identity import Identity
from decor.net.ledger import Ledger
from decor.net.link import Values
from decor.net.peer import Agenda, Peer
from decor.privacy.guarantee import Guarantee
from decor.results.run import Run
from decor.results.stop_reason import StopReason
from decor.text import rounded_up

from .local_gradient import Local
from .recording import OF_EDGES, OF_STEPS, Witness
from .spending import run_of
from .terms import Terms
from .vector_kernels import Vector, moderate, moved, pulled

_QUICK = 0.02
"""Seconds for which the network may wait: what takes longer is done in a thread."""


@dataclass
class Node:
    """A user at work.

    `random(n)` gives n bytes that nobody else knows; `on_step(step)` is told after every step.
    """

    terms: Terms
    number: int
    identity: Identity
    task: Task
    ledger: Ledger
    log: Log
    allowance: float | None = None
    """The most that this user's data may spend in all runs of the ledger; None: what the
    federation's file allows.
    """
    listen: str | None = None
    random: Callable[[int], bytes] = os.urandom
    on_step: Callable[[int], object] = field(default=lambda step: None)
    keep: Callable[[Run], object] = field(default=lambda run: None)
    """Writes the run to disk.

    At the end it comes before the ledger's word that all is over: no model is lost in between.
    """
    witness: Witness | None = None
    """Of an audit; nobody else may see what it is told."""

    def __post_init__(self) -> None:
        terms = self.terms
        self._for_keys = self.random
        if self.witness is not None:
            self._for_keys, self.random = (
                self.witness.drawing(self.random, kind) for kind in (OF_EDGES, OF_STEPS)
            )
        self.local = Local(self.task, terms.plan.exposure, terms.recipe, terms.dtype, self.random)
        if self.local.parameters != terms.parameters:
            raise InputError(
                f"the model has {self.local.parameters:,} parameters here and "
                f"{terms.parameters:,} in the federation"
            )
        member = terms.members[self.number]
        if member.public != self.identity.public:
            raise InputError(f"this key is not the one of {member.name} in the federation's file")
        if sys.byteorder != "little":
            raise InputError(
                "models travel as little-endian numbers, which this machine does not "
                "have; use another"
            )
        self.steps = terms.plan.exposure.steps
        self.rates = terms.recipe.schedule.rates(terms.learning_rate, self.steps)
        self.multiples = terms.multiples(self.number)
        W = terms.plan.topology.mixing
        self.weights = {j: float(W[self.number, j]) for j in self.multiples}
        self.model: Vector = self.local.start()
        self.velocity: Vector | None = None
        self.step = 0
        self.skipped = 0
        self.run, new = run_of(self.ledger, terms, self.allowance)
        if new:
            self.log("new run in the ledger", ledger=self.ledger.path)
        self.peer: Peer | None = None
        self._spent: Guarantee | None = None
        self._quick = self._at_work = False

    async def trained(self) -> Run:
        """Takes part until the end; gives this user's model and what it has cost."""
        terms = self.terms
        agenda = Agenda(
            self.identity,
            terms.neighbours(self.number),
            terms.digest,
            terms.digests,
            self.model.nbytes,
            terms.course,
            terms.timeout,
            terms.quorum,
            self._for_keys,
        )
        listen = terms.members[self.number].address if self.listen is None else self.listen
        more = {} if self.witness is None else {"heard": self.witness.heard}
        async with Peer(
            agenda, self.ledger, self.run, self.log, self._complaint, listen, **more
        ) as peer:
            self.peer = peer
            self._recover()
            paid = self.ledger.next_step(self.run) == self.steps
            if not await peer.gathered(terms.patience, 0 if paid else agenda.needed):
                raise DecorError(
                    f"all messages of this user are made, and in {terms.patience:g} s nobody came "
                    "for the last rounds: the "
                    "others have finished, or cannot be reached. Start again to try once more, or "
                    "take the model from one of them"
                )
            await peer.settled()
            while self.step <= self.steps:
                if not self._moved_on(peer):
                    await self._take_step(peer)
            peer.begin(self.step, _bytes(self.model))
            self.keep(self.outcome())
            self.ledger.end(self.run, "finished")
            self.log("finished", steps=self.messages, epsilon=rounded_up(self.guarantee().epsilon))
            await peer.finish()
        return self.outcome()

    @property
    def messages(self) -> int:
        """Steps of which a message exists: what has been paid for."""
        return next(entry.steps for entry in self.ledger.entries() if entry.run == self.run)

    def guarantee(self) -> Guarantee:
        """What is promised from the first message on: the whole plan's, however early the run
        stops.
        """
        return self.terms.promise if self.messages else self.terms.spent(0)

    def so_far(self) -> Guarantee:
        """What the messages so far cost, if their number was fixed in advance; asked for often,
        worked out once a step.
        """
        taken = self.messages
        if self._spent is None or self._spent.steps != taken:
            self._spent = self.terms.spent(taken)
        return self._spent

    def outcome(self) -> Run:
        """As far as it came."""
        taken = self.messages
        member = self.terms.members[self.number]
        manifest = {
            "task": {"name": self.terms.name, "users": 1, "parameters": self.local.parameters},
            "engine": {
                "name": "peers",
                "user": member.name,
                "number": self.number,
                "dtype": self.terms.dtype,
            },
            "learning_rate": self.terms.learning_rate,
            "recipe": self.terms.recipe.described(),
            "federation": self.terms.digest.hex(),
            "steps_missed": self.skipped,
            "simulated": False,
            "noise": {"kind": "grid", "distance": self.terms.grid.distance},
        }
        unfinished = StopReason(f"stopped after step {self.step} of {self.steps}", "unfinished")
        stopped = None if self.step > self.steps else unfinished
        measured = (
            self.local.metrics(self.model)
            if self.task.test is not None and self.task.test_public
            else {}
        )
        history: dict[str, list[float]] = {
            "step": [taken],
            **{name: [value] for name, value in measured.items()},
        }
        return Run(
            self.terms.plan,
            history,
            self.local.state(self.model),
            taken,
            stopped,
            manifest,
            {},
            self.local.fixed,
        )

    def described(self) -> dict[str, Any]:
        """For `decor status`: nothing of the data, no secret."""
        peer = self.peer
        return {
            "federation": self.terms.name,
            "user": self.terms.members[self.number].name,
            "step": min(self.step, self.steps),
            "steps": self.steps,
            "messages": self.messages,
            "missed": self.skipped,
            "late": peer.late if peer is not None else 0,
            "epsilon": self.guarantee().epsilon,
            "epsilon_if_fixed": self.so_far().epsilon,
            "delta": self.guarantee().delta,
            "paused": peer.paused if peer is not None else "is starting",
            "neighbours": peer.described() if peer is not None else [],
        }

    def _recover(self) -> None:
        """An interrupted run goes on with its last message, as it is in the ledger."""
        last = self.ledger.next_step(self.run) - 1
        if last < 0:
            return
        held = self.ledger.message(self.run, last)
        if held is None:
            raise DecorError(
                f"the ledger has no message of step {last}, which it must have; it is damaged"
            )
        self.step, self.model = last, np.frombuffer(held, self.local.dtype)
        self.log("resumed", step=last)

    def _moved_on(self, peer: Peer) -> bool:
        """Goes to where the neighbours are, if that is further, with the mean of their models."""
        found = peer.ahead(self.step)
        if found is None:
            return False
        step, models = found
        self.log("caught up", from_step=self.step, to_step=min(step, self.steps))
        self.skipped += max(0, min(step, self.steps) - self.ledger.next_step(self.run))
        self.model = np.mean(
            [np.frombuffer(model, self.local.dtype) for model in models],
            axis=0,
            dtype=self.local.dtype,
        )
        self.step, self.velocity = step, None
        return True

    async def _take_step(self, peer: Peer) -> None:
        """One step, or as much of it as others left time for; the one after the last is gossip
        alone.
        """
        step = self.step
        tags: dict[int, bytes] = {}
        # before a crash: what the step began with is not known any more
        made = peer.next_step > step
        peer.begin(step, None if made else _bytes(self.model))
        if step < self.steps and not made:
            message, tags = await self._made(step, peer.keys(step))
            # from here on these bytes are the step's message, for ever; nothing of them has left
            # yet
            self.ledger.record(self.run, step, _bytes(message))
            peer.recorded(step)
            self.model = message
        gossip = self.terms.recipe.gossip if step < self.steps else self.terms.recipe.final_gossip
        if await self._gossiped(peer, gossip, tags):
            self.step = step + 1
            if not self._at_work:
                self._at_work = True
                self.log("at work", step=self.step)
            self.on_step(self.step)

    async def _made(
        self, step: int, keys: Mapping[int, bytes | None]
    ) -> tuple[Vector, dict[int, bytes]]:
        """`_message` beside the network, which it must not keep waiting, unless it is done sooner
        than a thread would be.
        """
        return (
            self._message(step, keys)
            if self._quick
            else await asyncio.to_thread(self._message, step, keys)
        )

    def _message(
        self, step: int, keys: Mapping[int, bytes | None]
    ) -> tuple[Vector, dict[int, bytes]]:
        """The model after a step with noise on it; and for every neighbour what that noise looks
        like from outside.
        """
        began, recipe, rate = time.thread_time(), self.terms.recipe, float(self.rates[step])
        order = list(self.multiples)
        # who holds no secret with this user gets noise of the same size from nobody
        edges = [(keys[j] or self.random(32), self.multiples[j]) for j in order]
        if self.witness is not None:
            self.witness.began(step, _bytes(self.model))
            self.witness.shared(step, {j: key for j, (key, _) in zip(order, edges, strict=True)})
        gradient, factor = self.local.gradient(self.model, rate)
        noised, shown = self.terms.grid.noised(gradient, self.random(32), edges, factor, over=True)
        if recipe.momentum:
            if self.velocity is not None:
                noised += recipe.momentum * self.velocity
            self.velocity = noised
        message = moved(self.model, noised, rate, 1 - rate * recipe.weight_decay)
        if message is None:
            raise DecorError(
                f"the model is beyond 1e18 after step {step}: it has diverged; take "
                "a smaller learning rate"
            )
        self._quick = time.thread_time() - began < _QUICK
        return message, {j: tag for j, tag in zip(order, shown, strict=True) if keys[j] is not None}

    async def _gossiped(self, peer: Peer, gossip: Gossip, tags: Mapping[int, bytes]) -> bool:
        """All rounds of a step; False if the others have gone on meanwhile."""
        now, before = self.model, self.model
        for round_, (a, b, _) in enumerate(gossip.steps(self.terms.plan.topology)):
            found = await peer.exchange(
                self.step, round_, _bytes(now), tags if round_ == 0 else None
            )
            if found is None:
                return False
            # as differences: who is missing has no weight, and models that agree stay as they are
            mixed = now.copy()
            while found:
                j, values = found.popitem()
                pulled(mixed, now, np.frombuffer(values, self.local.dtype), a * self.weights[j])
            if b:
                pulled(mixed, now, before, b)
            now, before = mixed, now
        self.model = now
        return True

    def _complaint(self, values: Values) -> str | None:
        return (
            None
            if moderate(np.frombuffer(values, self.local.dtype))
            else "sent a model that is not finite, or beyond 1e18"
        )


def _bytes(model: Vector) -> memoryview:
    return memoryview(model).cast("B")  # type: ignore[arg-type]
