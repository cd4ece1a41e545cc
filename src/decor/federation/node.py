"""Node: one user's part of Algorithm 1 on a real network, from its first step to its model.

A step: gradient, clip, noise on the grid, local step; then the message goes into the ledger, only
then to the neighbours, and the rounds of gossip follow. After a crash the bytes in the ledger are
sent again; no step is ever computed twice.
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
from decor.net.neighbour import Values
from decor.net.peer import Peer, PeerConfig
from decor.privacy.guarantee import Guarantee
from decor.results.run import Run
from decor.results.stop_reason import StopReason
from decor.text import rounded_up
from decor.training.manifest import RunManifest

from .local_gradient import LocalGradient
from .recording import OF_EDGES, OF_STEPS, Recorder
from .spending import open_run
from .terms import Terms
from .vector_kernels import Vector, descend, is_bounded, pull_towards

_QUICK = 0.02
"""Seconds for which the network may wait: work that takes longer is done in a thread."""


@dataclass
class Node:
    """A user at work.

    Attributes:
        terms: What all users of the federation have agreed on.
        number: This user, in the order of the federation's file.
        identity: Its key.
        task: Its data: one shard.
        ledger: Its ledger, open.
        log: Receives events.
        allowance: The most that this user's data may spend in all runs of the ledger; None: as much
            as the federation's file allows.
        listen: Address to accept connections at; None: the one in the file.
        random: `random(n)` returns n secret bytes.
        on_step: Called with the number of steps taken, after each.
        save: Writes the run to disk. At the end it is called before the ledger says that the run
            has finished, so that no crash can lose the model.
        recorder: For an audit: writes down what is received, and secrets.
    """

    terms: Terms
    number: int
    identity: Identity
    task: Task
    ledger: Ledger
    log: Log
    allowance: float | None = None
    listen: str | None = None
    random: Callable[[int], bytes] = os.urandom
    on_step: Callable[[int], object] = field(default=lambda step: None)
    save: Callable[[Run], object] = field(default=lambda run: None)
    recorder: Recorder | None = None

    def __post_init__(self) -> None:
        terms = self.terms
        # keys of edges and noise of steps: an audit records them apart
        self._for_keys = self.random
        if self.recorder is not None:
            self._for_keys, self.random = (
                self.recorder.record_random(self.random, kind) for kind in (OF_EDGES, OF_STEPS)
            )
        exposure = terms.plan.exposure
        self.local = LocalGradient(self.task, exposure, terms.recipe, terms.dtype, self.random)
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
                "models are sent as little-endian numbers, and this machine is big-endian; use "
                "another"
            )
        self.steps = exposure.steps
        self.rates = terms.recipe.schedule.rates(terms.learning_rate, self.steps)
        self.multiples = terms.multiples(self.number)
        # the gossip weights of the plan: row i of W
        W = terms.plan.topology.mixing
        self.weights = {j: float(W[self.number, j]) for j in self.multiples}
        self.model: Vector = self.local.start()
        self.velocity: Vector | None = None
        # steps 0 to steps - 1 have a gradient; step number `steps` is the final gossip
        self.step = 0
        # steps that the others took without this user
        self.missed = 0
        self.run, new = open_run(self.ledger, terms, self.number, self.allowance)
        if new:
            self.log("new run in the ledger", ledger=self.ledger.path)
        self.peer: Peer | None = None
        self._spent: Guarantee | None = None
        self._quick = self._at_work = False

    async def train(self) -> Run:
        """Takes part until the end; returns this user's model and what it has cost."""
        terms = self.terms
        config = PeerConfig(
            self.identity,
            terms.neighbours(self.number),
            terms.digest,
            terms.digests,
            self.model.nbytes,
            terms.run_length,
            terms.timeout,
            terms.quorum,
            self._for_keys,
        )
        listen = terms.members[self.number].address if self.listen is None else self.listen
        more = {} if self.recorder is None else {"on_model": self.recorder.record_model}
        async with Peer(
            config, self.ledger, self.run, self.log, self._check_values, listen, **more
        ) as peer:
            self.peer = peer
            self._recover()
            # with all messages made, any neighbour will do for the last rounds
            all_made = self.ledger.next_step(self.run) == self.steps
            needed = 0 if all_made else config.quorum_count
            if not await peer.wait_for_neighbours(terms.patience, needed):
                raise DecorError(
                    "all messages of this user are made, and no neighbour came for the last rounds "
                    f"in {terms.patience:g} s: the others have finished, or cannot be reached. "
                    "Start again to try once more, or take the model from one of them"
                )
            await peer.wait_for_progress()
            while self.step <= self.steps:
                if not self._catch_up(peer):
                    await self._take_step(peer)
            # neighbours that connect now get the final model
            peer.begin(self.step, _bytes(self.model))
            # in this order: a crash in between repeats the end, and loses no model
            self.save(self.outcome())
            self.ledger.end(self.run, "finished")
            self.log("finished", steps=self.messages, epsilon=rounded_up(self.guarantee().epsilon))
            await peer.finish()
        return self.outcome()

    @property
    def messages(self) -> int:
        """How many steps have a message: what has been paid for."""
        return next(entry.steps for entry in self.ledger.entries() if entry.run == self.run)

    def guarantee(self) -> Guarantee:
        """What is promised: from the first message on the whole plan's, however early it stops."""
        return self.terms.promise if self.messages else self.terms.guarantee_after(0)

    def cost_so_far(self) -> Guarantee:
        """What the messages so far cost, if their number was fixed in advance."""
        messages = self.messages
        # asked for often: computed once per step
        if self._spent is None or self._spent.steps != messages:
            self._spent = self.terms.guarantee_after(messages)
        return self._spent

    def outcome(self) -> Run:
        """The run as far as it has come."""
        terms, messages = self.terms, self.messages
        manifest = RunManifest(
            simulated=False,
            task={"name": terms.name, "users": 1, "parameters": self.local.parameters},
            learning_rate=terms.learning_rate,
            recipe=terms.recipe.to_json(),
            engine={
                "name": "peers",
                "user": terms.members[self.number].name,
                "number": self.number,
                "dtype": terms.dtype,
            },
            noise={"kind": "grid", "distance": terms.grid.distance},
            federation=terms.digest.hex(),
            steps_missed=self.missed,
        )
        unfinished = StopReason(f"stopped after step {self.step} of {self.steps}", "unfinished")
        # private test data stay unmeasured: a metric would reveal something of them
        is_measured = self.task.test is not None and self.task.test_public
        metrics = self.local.metrics(self.model) if is_measured else {}
        return Run(
            terms.plan,
            {"step": [messages], **{name: [value] for name, value in metrics.items()}},
            self.local.state(self.model),
            messages,
            None if self.step > self.steps else unfinished,
            manifest.to_json(),
            {},
            self.local.fixed,
        )

    def status(self) -> dict[str, Any]:
        """For `decor status`: nothing of the data, no secret."""
        peer, guarantee = self.peer, self.guarantee()
        return {
            "federation": self.terms.name,
            "user": self.terms.members[self.number].name,
            "step": min(self.step, self.steps),
            "steps": self.steps,
            "messages": self.messages,
            "missed": self.missed,
            "late": peer.late if peer is not None else 0,
            "epsilon": guarantee.epsilon,
            "epsilon_if_fixed": self.cost_so_far().epsilon,
            "delta": guarantee.delta,
            "paused": peer.paused if peer is not None else "is starting",
            "neighbours": peer.neighbour_statuses() if peer is not None else [],
        }

    def _recover(self) -> None:
        """Continues an interrupted run with its last message, as it is in the ledger."""
        last = self.ledger.next_step(self.run) - 1
        # no message yet: the run starts at its first step
        if last < 0:
            return
        message = self.ledger.message(self.run, last)
        if message is None:
            raise DecorError(
                f"the ledger has no message of step {last}, which it must have; it is damaged"
            )
        self.step, self.model = last, np.frombuffer(message, self.local.dtype)
        self.log("resumed", step=last)

    def _catch_up(self, peer: Peer) -> bool:
        """Moves to the step of a quorum of neighbours, if that is later; returns whether it did."""
        ahead = peer.ahead(self.step)
        if ahead is None:
            return False
        step, received = ahead
        self.log("caught up", from_step=self.step, to_step=min(step, self.steps))
        # steps with a message were not missed
        self.missed += max(0, min(step, self.steps) - self.ledger.next_step(self.run))
        dtype = self.local.dtype
        models = [np.frombuffer(model, dtype) for model in received]
        self.model = np.mean(models, axis=0, dtype=dtype)
        # the momentum belongs to a model that is given up
        self.step, self.velocity = step, None
        return True

    async def _take_step(self, peer: Peer) -> None:
        """One step, unless the neighbours go on without it; after the last, gossip alone."""
        step = self.step
        tags: dict[int, bytes] = {}
        # made before a crash: the model that the step began with is not known any more
        made = peer.next_step > step
        peer.begin(step, None if made else _bytes(self.model))
        if step < self.steps and not made:
            message, tags = await self._make_message(step, peer.keys(step))
            # from here on these bytes are the step's message, for ever; nothing of them has left
            # yet
            self.ledger.record(self.run, step, _bytes(message))
            peer.mark_recorded(step)
            self.model = message
        gossip = self.terms.recipe.gossip if step < self.steps else self.terms.recipe.final_gossip
        if await self._gossip(peer, gossip, tags):
            self.step = step + 1
            if not self._at_work:
                self._at_work = True
                self.log("at work", step=self.step)
            self.on_step(self.step)

    async def _make_message(
        self, step: int, keys: Mapping[int, bytes | None]
    ) -> tuple[Vector, dict[int, bytes]]:
        """`_compute_message` in a thread, so that the network does not wait, unless it is quick."""
        if self._quick:
            return self._compute_message(step, keys)
        return await asyncio.to_thread(self._compute_message, step, keys)

    def _compute_message(
        self, step: int, keys: Mapping[int, bytes | None]
    ) -> tuple[Vector, dict[int, bytes]]:
        """The noised model after a step, and the tag of its noise for each connected neighbour."""
        # thread time: waiting for a core is not work
        began, recipe, rate = time.thread_time(), self.terms.recipe, float(self.rates[step])
        order = list(self.multiples)
        # an edge without a common secret has noise of the same size, from a key of this user alone
        edges = [(keys[j] or self.random(32), self.multiples[j]) for j in order]
        if self.recorder is not None:
            self.recorder.record_start(step, _bytes(self.model))
            own_keys = [key for key, _ in edges]
            self.recorder.record_keys(step, dict(zip(order, own_keys, strict=True)))
        gradient, factor = self.local.gradient(self.model, rate)
        grid = self.terms.grid
        noised, edge_tags = grid.add_noise(gradient, self.random(32), edges, factor, over=True)
        if recipe.momentum:
            if self.velocity is not None:
                noised += recipe.momentum * self.velocity
            self.velocity = noised
        # x_i^(t+1/2) of Algorithm 1, with momentum and weight decay
        message = descend(self.model, noised, rate, 1 - rate * recipe.weight_decay)
        if message is None:
            raise DecorError(
                f"the model is beyond 1e18 after step {step}: it has diverged; take a smaller "
                "learning rate"
            )
        self._quick = time.thread_time() - began < _QUICK
        tags = dict(zip(order, edge_tags, strict=True))
        return message, {j: tag for j, tag in tags.items() if keys[j] is not None}

    async def _gossip(self, peer: Peer, gossip: Gossip, tags: Mapping[int, bytes]) -> bool:
        """All rounds of a step; False if the others have gone on meanwhile."""
        now, before = self.model, self.model
        for round_, (a, b, _) in enumerate(gossip.steps(self.terms.plan.topology)):
            own_tags = tags if round_ == 0 else None
            received = await peer.exchange(self.step, round_, _bytes(now), own_tags)
            if received is None:
                return False
            # as differences: an absent neighbour has no weight, and equal models stay as they are
            mixed = now.copy()
            while received:  # each model's memory is freed as soon as it is mixed in
                j, values = received.popitem()
                other = np.frombuffer(values, self.local.dtype)
                pull_towards(mixed, now, other, a * self.weights[j])
            # the model of the round before, in accelerated gossip only (Gossip.steps)
            if b:
                pull_towards(mixed, now, before, b)
            now, before = mixed, now
        self.model = now
        return True

    def _check_values(self, values: Values) -> str | None:
        """What is wrong with a neighbour's model, if anything."""
        if is_bounded(np.frombuffer(values, self.local.dtype)):
            return None
        return "sent a model that is not finite, or beyond 1e18"


def _bytes(model: Vector) -> memoryview:
    return memoryview(model).cast("B")  # type: ignore[arg-type]
