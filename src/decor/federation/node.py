"""Node: one user's part of Algorithm 1 on a real network, from its first step to its model.

A step: gradient, clip, noise on the grid, local step; then the message goes into the ledger, only
then to the neighbours, and the rounds of gossip follow. After a crash the bytes in the ledger are
sent again; no step is ever computed twice.
"""

from __future__ import annotations

import asyncio
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
import torch

from decor.errors import DecorError, InputError, TransientError
from decor.graph.gossip import Gossip
from decor.learning.frozen import body_parameters, body_summary
from decor.learning.task import Task
from decor.net.connections import Log
from decor.net.identity import Identity
from decor.net.ledger import Ledger
from decor.net.ledger_reading import DIVERGED, FINISHED
from decor.net.metrics import StepTimes
from decor.net.neighbour import Values
from decor.net.peer import Peer
from decor.net.peer_config import PeerConfig
from decor.net.reach import Reach
from decor.privacy.guarantee import Guarantee
from decor.results.run import Run
from decor.results.stop_reason import StopReason
from decor.text import rounded_up
from decor.training.manifest import RunManifest
from decor.version import __version__

from .local_gradient import LocalGradient
from .loop_updates import LoopUpdates
from .recording import OF_EDGES, OF_STEPS, Recorder
from .spending import ledger_status, open_run
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
        task: Its data: one shard; or where its own loop shares models (`decor.join`).
        ledger: Its ledger, open.
        log: Receives events.
        allowance: The most that this user's data may spend in all runs of the ledger; None: as much
            as the federation's file allows.
        reach: Where to listen, and how to reach neighbours; None: as the file says.
        random: `random(n)` returns n secret bytes.
        on_step: Called with the number of steps taken, after each.
        save: Writes the run to disk. At the end it is called before the ledger says that the run
            has finished, so that no crash can lose the model.
        recorder: For an audit: writes down what is received, and secrets.
        serve: Stay at the end, for neighbours that fetch the final model later.
    """

    terms: Terms
    number: int
    identity: Identity
    task: Task | LoopUpdates
    ledger: Ledger
    log: Log
    allowance: float | None = None
    reach: Reach | None = None
    random: Callable[[int], bytes] = os.urandom
    on_step: Callable[[int], object] = field(default=lambda step: None)
    save: Callable[[Run], object] = field(default=lambda run: None)
    recorder: Recorder | None = None
    serve: bool = False

    def __post_init__(self) -> None:
        terms = self.terms
        # keys of edges and noise of steps: an audit records them apart
        self._for_keys = self.random
        if self.recorder is not None:
            self._for_keys, self.random = (
                self.recorder.record_random(self.random, kind) for kind in (OF_EDGES, OF_STEPS)
            )
        exposure = terms.plan.exposure
        self.local: LocalGradient | LoopUpdates
        if isinstance(self.task, LoopUpdates):
            self.local = self.task
        else:
            self.local = LocalGradient(
                self.task, exposure, terms.recipe, terms.dtype, self.random, len(terms.members)
            )
        self._base_rate: float | None = None
        if isinstance(self.task, Task) and self.task.test_public:
            self._base_rate = self.task.base_rate
        # once: a hash of a large body takes a while
        self._frozen = body_summary(self.local.module)
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
        self.rates = terms.rates
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
        final = self.ledger.final_model(self.run)
        if final is not None:
            self.step, self.model = self.steps + 1, self._vector(final)
        self.peer: Peer | None = None
        # where a step that was interrupted goes on: its round, and the model of the round before
        self._round = 0
        self._before: Vector | None = None
        self._start_size = float(np.abs(self.model).max())
        self._spent: Guarantee | None = None
        self._times = StepTimes()
        # this run counts with its whole plan from its beginning: the figure does not change
        self._ledger_status = ledger_status(self.ledger, terms, self.allowance)
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
            self.number,
            tuple(member.public for member in terms.members),
            terms.liars,
            self._for_keys,
        )
        reach = self.reach or terms.reach(self.number)
        more = {} if self.recorder is None else {"on_model": self.recorder.record_model}
        async with Peer(
            config, self.ledger, self.run, self.log, self._check_values, reach, **more
        ) as peer:
            self.peer = peer
            if self.step > self.steps:
                return await self._end(peer)
            self._recover(peer)
            # with all messages made, any neighbour will do for the last rounds
            all_made = self.ledger.next_step(self.run) == self.steps
            needed = 0 if all_made else config.quorum_count
            if not await peer.wait_for_neighbours(terms.patience, needed):
                raise TransientError(
                    "all messages of this user are made, and no neighbour came for the last rounds "
                    f"in {terms.patience:g} s: the others have finished, or cannot be reached. "
                    "Start again to try once more, or use decor fetch"
                )
            await peer.wait_for_progress()
            while self.step <= self.steps:
                if not self._catch_up(peer):
                    await self._take_step(peer)
            # in the ledger, which is known to be writable: no full disk or crash loses the model
            self.ledger.end(self.run, FINISHED, _bytes(self.model))
            self.log("finished", steps=self.messages, epsilon=rounded_up(self.guarantee().epsilon))
            return await self._end(peer)

    async def _end(self, peer: Peer) -> Run:
        """Saves the final model, and gives it to neighbours that were away."""
        # neighbours that connect now get the final model
        peer.begin(self.step, _bytes(self.model))
        self.save(self.outcome())
        await peer.finish(self.serve)
        # the neighbours' last tags have come meanwhile
        outcome = self.outcome()
        self.save(outcome)
        if (left := self.noise_left()) > 1:
            counts = {n: len(steps) for n, steps in peer.steps_left_over().items() if steps}
            named = ", ".join(f"{self.terms.members[n].name} {c}" for n, c in counts.items())
            self.log("noise left", times_planned=rounded_up(left), steps=named)
        return outcome

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

    def noise_left(self) -> float:
        """Noise in the average of all models over the planned noise, by this user's edges alone.

        1 if the noise of all its edges cancels. An edge and step counts as left unless both ends
        are known to have drawn the same; the step under way does not count yet.
        """
        if self.peer is None:
            return 1.0
        left_over = self.peer.steps_left_over()
        over = {n: [s for s in steps if s < self.step] for n, steps in left_over.items()}
        return self.terms.noise_left(self.number, over)

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
            base_rate=self._base_rate,
            definition=terms.public_definition,
            frozen=self._frozen,
            federation=terms.digest.hex(),
            steps_missed=self.missed,
            noise_left=self.noise_left(),
        )
        unfinished = StopReason(f"stopped after step {self.step} of {self.steps}", "unfinished")
        metrics = self.local.metrics(self.model)
        return Run(
            terms.plan,
            {"step": [messages], **{name: [value] for name, value in metrics.items()}},
            self.local.state(self.model),
            messages,
            None if self.step > self.steps else unfinished,
            manifest.to_json(),
            {},
            self.local.buffers,
            frozen=body_parameters(self.local.module),
        )

    def why_not_ready(self) -> str | None:
        """Why this user can neither take a step nor has finished; None if it can or has."""
        if self.step > self.steps:
            return None
        return "the node is starting" if self.peer is None else self.peer.why_not_ready()

    def status(self) -> dict[str, Any]:
        """For `decor status` and for monitoring: nothing of the data, no secret."""
        peer, guarantee = self.peer, self.guarantee()
        versions = {"python": platform.python_version(), "torch": str(torch.__version__)}
        return {
            "federation": self.terms.name,
            "digest": self.terms.digest.hex(),
            "user": self.terms.members[self.number].name,
            "step": min(self.step, self.steps),
            "steps": self.steps,
            "messages": self.messages,
            "missed": self.missed,
            "late": peer.late if peer is not None else 0,
            "noise_left": self.noise_left(),
            "epsilon": guarantee.epsilon,
            "epsilon_if_fixed": self.cost_so_far().epsilon,
            "epsilon_planned": self.terms.promise.epsilon,
            "delta": guarantee.delta,
            **self._ledger_status,
            "done": self.step > self.steps,
            **self._times.status(),
            "paused": peer.paused if peer is not None else "is starting",
            "neighbours": peer.neighbour_statuses() if peer is not None else [],
            "refusals": peer.refusals if peer is not None else {},
            "build": {"version": __version__, **versions},
        }

    def _recover(self, peer: Peer) -> None:
        """Continues an interrupted run where it was: in the middle of a step, if that is known."""
        last = peer.next_step - 1
        # no message yet: the run starts at its first step
        if last < 0:
            return
        message = self.ledger.message(self.run, last)
        if message is None:
            raise DecorError(
                f"the ledger has no message of step {last}, which it must have; it is damaged"
            )
        # the final gossip has no message: only what was saved before a round
        saved = self.ledger.round_state(self.run, last)
        final = self.ledger.round_state(self.run, self.steps) if last == self.steps - 1 else None
        self.step, self.model = last, self._vector(message)
        # killed between the message and the end of the run
        if not is_bounded(self.model):
            self._end_diverged(last)
        if saved is not None and saved.velocity is not None:
            self.velocity = self._vector(saved.velocity)
        if final is not None:
            self.step, saved = self.steps, final
        if saved is not None and saved.now is not None:
            self._round, self.model = saved.round, self._vector(saved.now)
            before = saved.before if saved.round > 0 else None
            self._before = None if before is None else self._vector(before)
        peer.resend(self._last_messages(last, message))
        self.log("resumed", step=self.step, round=self._round)

    def _last_messages(self, last: int, message: bytes) -> list[tuple[int, int, Values]]:
        """The two messages that neighbours may not have got: this round's and the one before."""
        now = (self.step, self._round, _bytes(self.model))
        if self._round > 0:
            assert self._before is not None
            return [(self.step, self._round - 1, _bytes(self._before)), now]
        before = self.step - 1
        if before < 0:
            return [now]
        saved, rounds = self.ledger.round_state(self.run, before), self.terms.recipe.gossip.rounds
        # with one round its model is the message itself
        values = message if before == last else self.ledger.message(self.run, before)
        if rounds > 1:
            values = saved.now if saved is not None and saved.round == rounds - 1 else None
        return [now] if values is None else [(before, rounds - 1, values), now]

    def _catch_up(self, peer: Peer) -> bool:
        """Moves to the step of a quorum of neighbours, if that is later; returns whether it did."""
        ahead = peer.ahead(self.step)
        if ahead is None:
            return False
        step, received = ahead
        self.log("caught up", from_step=self.step, to_step=min(step, self.steps))
        # steps with a message were not missed
        self.missed += max(0, min(step, self.steps) - self.ledger.next_step(self.run))
        models = [self._vector(model) for model in received]
        self.model = np.mean(models, axis=0, dtype=self.local.dtype)
        # the momentum belongs to a model that is given up
        self.step, self.velocity = step, None
        self._round, self._before = 0, None
        self._times.mark()
        return True

    async def _take_step(self, peer: Peer) -> None:
        """One step, unless the neighbours go on without it; after the last, gossip alone."""
        step, began = self.step, time.monotonic()
        # made before a crash: the model that the step began with is not known any more
        made = peer.next_step > step or self._round > 0
        peer.begin(step, None if made else _bytes(self.model))
        if step < self.steps and not made:
            keys = await peer.take_keys(step, lambda: self.random(32))
            if keys is None:
                return
            message, tags, bounded = await self._make_message(step, keys)
            # the gossip may take long, and a machine may be seized meanwhile
            del keys
            # from here on these bytes are the step's message, for ever; nothing of them has left
            # yet
            velocity = None if self.velocity is None else _bytes(self.velocity)
            peer.record(step, _bytes(message), tags, velocity)
            if not bounded:
                self._end_diverged(step)
            self.model = message
            self._times.mark()
        gossip = self.terms.recipe.gossip if step < self.steps else self.terms.recipe.final_gossip
        if await self._gossip(peer, gossip):
            self.step = step + 1
            if step < self.steps:
                self._times.steps.add(time.monotonic() - began)
            if not self._at_work:
                self._at_work = True
                self.log("at work", step=self.step)
            self.on_step(self.step)

    def _end_diverged(self, step: int) -> NoReturn:
        """Ends a run whose message of this step, which the ledger holds, cannot be used."""
        # others see that this user stops, which depends on data and noise: it is a function of a
        # message that is paid for, as long as a restart does not make another
        self.ledger.end(self.run, DIVERGED)
        raise DecorError(
            f"the model is beyond 1e18 after step {step}: it has diverged, and this user's run has "
            "ended. Agree on another federation file with a smaller learning rate"
        )

    async def _make_message(
        self, step: int, keys: Mapping[int, bytes]
    ) -> tuple[Vector, dict[int, bytes], bool]:
        """`_compute_message` in a thread, so that the network does not wait, unless it is quick."""
        if self._quick:
            return self._compute_message(step, keys)
        return await asyncio.to_thread(self._compute_message, step, keys)

    def _compute_message(
        self, step: int, keys: Mapping[int, bytes]
    ) -> tuple[Vector, dict[int, bytes], bool]:
        """The noised model after a step, each edge's tag by neighbour, and whether it is bounded.

        No value is refused here: the message goes into the ledger first.
        """
        # thread time: waiting for a core is not work
        began, recipe, rate = time.thread_time(), self.terms.recipe, float(self.rates[step])
        order = list(self.multiples)
        # an edge without a common secret has noise of the same size, from a key of this user alone
        edges = [(keys[j], self.multiples[j]) for j in order]
        if self.recorder is not None:
            self.recorder.record_start(step, _bytes(self.model))
            self.recorder.record_keys(step, keys)
        gradient, factor = self.local.gradient(self.model, rate, step)
        grid = self.terms.grid
        own = self.terms.own_multiple(self.number)
        noised, edge_tags = grid.add_noise(gradient, self.random(32), edges, factor, True, own)
        if recipe.momentum:
            if self.velocity is not None:
                noised += recipe.momentum * self.velocity
            self.velocity = noised
        # x_i^(t+1/2) of Algorithm 1, with momentum and weight decay
        message, bounded = descend(self.model, noised, rate, 1 - rate * recipe.weight_decay)
        self._quick = not self.local.waits and time.thread_time() - began < _QUICK
        return message, dict(zip(order, edge_tags, strict=True)), bounded

    async def _gossip(self, peer: Peer, gossip: Gossip) -> bool:
        """All rounds of a step that are left; False if the others have gone on meanwhile."""
        first, now = self._round, self.model
        before = now if self._before is None else self._before
        self._round, self._before = 0, None
        for round_, (a, b, _) in enumerate(gossip.steps(self.terms.plan.topology)):
            if round_ < first:
                continue
            self._save_round(round_, now, before)
            began = time.monotonic()
            received = await peer.exchange(self.step, round_, _bytes(now))
            if received is None:
                return False
            self._times.rounds.add(time.monotonic() - began)
            self._times.mark()
            # as differences: an absent neighbour has no weight, and equal models stay as they are
            mixed = now.copy()
            while received:  # each model's memory is freed as soon as it is mixed in
                j, values = received.popitem()
                other = self._vector(values)
                pull_towards(mixed, now, other, a * self.weights[j])
            # the model of the round before, in accelerated gossip only (Gossip.steps)
            if b:
                pull_towards(mixed, now, before, b)
            now, before = mixed, now
        self.model = now
        return True

    def _save_round(self, round_: int, now: Vector, before: Vector) -> None:
        """Saves what a restart in this round needs, if the ledger does not hold it already."""
        if round_ == 0 and self.step < self.steps:  # the message, with its momentum
            return
        self.ledger.save_round(
            self.run,
            self.step,
            round_,
            _bytes(now),
            _bytes(before) if round_ > 0 else None,
            None if self.velocity is None else _bytes(self.velocity),
        )

    def _vector(self, values: Values) -> Vector:
        return np.frombuffer(values, self.local.dtype)

    def _check_values(self, step: int, values: Values) -> str | None:
        """What is wrong with a neighbour's model of a step, if anything."""
        largest = self.terms.largest_parameter(min(step, self.steps - 1), self._start_size)
        if is_bounded(self._vector(values), largest):
            return None
        return f"sent a model that is not finite, or beyond {largest:g}, which no user can reach"


def _bytes(model: Vector) -> memoryview:
    return memoryview(model).cast("B")  # type: ignore[arg-type]
