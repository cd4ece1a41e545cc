"""The barrier of a peer: when a step's keys or a round's models are complete enough to go on.

A round goes on without a neighbour that has been silent for too long, as long as a quorum of
neighbours is connected.
"""

from __future__ import annotations

import math
import time

from .connections import OPENING_SECONDS, Connections
from .messages import KeyRequest
from .neighbour import Link, Values
from .peer_state import PeerState

PATIENCE = 3
"""Timeouts for which a neighbour may send Alive and nothing else."""


class PeerBarrier:
    """Says whether there is anything to wait for, and for how long.

    Args:
        state: The peer's.
        connections: Connections to neighbours that are given up are dropped.
    """

    def __init__(self, state: PeerState, connections: Connections) -> None:
        self._state, self._connections = state, connections
        self._config, self._links, self._log = state.config, state.links, state.log
        self.paused: str | None = None
        """Why no step is taken now; None while steps are taken."""

    def ahead(self, step: int) -> tuple[int, list[Values]] | None:
        """The step that a quorum of neighbours has reached, and the models they begin it with.

        None if that step is not later than `step`, or not proven: more users than may lie must have
        signed a message of it.
        """
        # the rounds' own models, if they are all here, are better than a later mean
        if all(link.inbox.has(*self._state.at) for link in self._links.values()):
            return None
        starts = [link.step_start for link in self._links.values() if link.step_start is not None]
        # the furthest first
        starts.sort(key=lambda start: -start[0])
        # a quorum is at the first of these steps, and at the later ones of the list all the more; a
        # liar's claim must not hide what is proven
        for reached, _ in starts[self._config.quorum_count - 1 :]:
            if reached > step and self._state.receipts.is_proven(reached):
                return reached, [model for at, model in starts if at >= reached]
        return None

    def why_not_ready(self) -> str | None:
        """Who is missing for a quorum of neighbours; None if there is one."""
        # a neighbour that is done has left for good, and nothing is missing for it
        missing = [each for each in self._links.values() if not (each.is_open or each.done)]
        here, needed = len(self._links) - len(missing), self._config.quorum_count
        if here >= needed:
            return None
        names = ", ".join(link.neighbour.name for link in missing)
        return (
            f"{here} of {len(self._links)} neighbours connected, quorum {needed}; missing: {names}"
        )

    def are_keys_ready(self, step: int, until: float) -> bool:
        """Whether the keys of a step can be taken: all that will come are here."""
        now, waiting, connected = time.monotonic(), False, 0
        all_greeted = all(link.has_greeted for link in self._links.values())
        for link in self._links.values():
            connected += link.is_open
            if link.keys.is_ready(step):
                continue
            if link.keys.is_confirming:
                # no key before it is open or lost: the neighbour may use either secret
                if now >= until + OPENING_SECONDS:
                    self._connections.drop(link, "did not confirm a secret in time")
                else:
                    waiting = True
            elif link.is_open and link.keys.needs(step):
                # a key that was used may be used again only if nobody has a message of this step:
                # between two messages under one key only own noise is left
                if all_greeted and not link.asked_for_key:
                    link.asked_for_key = link.awaits_key = True
                    link.send(KeyRequest(step))
                    # the answer comes after models that wait for the key
                    link.inbox.release_reader()
                waiting |= not link.key_is_gone and now < until
            elif not link.is_open and not (link.absent or link.done):
                waiting |= now < self._deadline(link, until)
        if waiting:
            return False
        # once keys are taken the step has a message, and its price, even if no quorum hears it
        if connected < self._config.quorum_count:
            self.pause(f"only {connected} of {len(self._links)} neighbours are here")
            return False
        self.paused = None
        return True

    def seconds_to_key(self, until: float) -> float | None:
        """Seconds until waiting for keys changes anything by itself."""
        now = time.monotonic()
        # the second is when handshakes that are half open are given up
        ends = [until, until + OPENING_SECONDS]
        ends += [self._deadline(link, until) for link in self._links.values() if not link.is_open]
        later = [end for end in ends if end > now]
        return min(later) - now + 0.001 if later else None

    def is_round_ready(self, step: int, round_: int, until: float) -> bool:
        """Whether a round can end: all models are here, or a quorum after the timeout.

        Gives up on neighbours whose deadline is over.
        """
        now, here, waiting = time.monotonic(), 0, False
        for link in self._links.values():
            if link.inbox.has(step, round_):
                here += 1
            elif link.is_given_up:
                # it has cost a timeout: one silent user must not cost another in every round
                continue
            elif now < self._deadline(link, until):
                waiting = True
            elif link.is_open:
                # both: a new connection clears only `absent`, and it may be silent on that one too
                link.absent = link.silent = True
                timeout = self._config.timeout
                is_alive = now < link.heard_at + timeout
                quiet = f"was silent for {timeout:g} s"
                no_model = f"sent no model for {PATIENCE * timeout:g} s"
                self._connections.drop(link, no_model if is_alive else quiet)
            else:
                link.absent = True
                name, problem = link.neighbour.name, link.conn.problem
                self._log("going on without", neighbour=name, step=step, why=problem)
        if waiting:
            return False
        if step == self._config.length.steps:
            # after the last step a neighbour that is done has nothing to wait for
            finished = [link for link in self._links.values() if link.done]
            here += sum(not link.inbox.has(step, round_) for link in finished)
        needed = self._config.quorum_count
        if here < needed:
            count = len(self._links)
            self.pause(f"only {here} of {count} neighbours are here, and {needed} are needed")
            return False
        if self.paused:
            self._log("goes on", step=step)
            self.paused = None
        return True

    def seconds_to_deadline(self, step: int, round_: int, until: float) -> float | None:
        """Seconds until waiting changes anything by itself; None: it never does."""
        now = time.monotonic()
        deadlines = [
            self._deadline(link, until)
            for link in self._links.values()
            if not (link.inbox.has(step, round_) or link.is_given_up)
        ]
        # a millisecond more, so that the deadline is over when the wait is
        return max(0.0, min(deadlines) - now) + 0.001 if deadlines else None

    def _deadline(self, link: Link, until: float) -> float:
        """When a neighbour has been waited for long enough.

        A neighbour that has just connected, or sends Alive, has more time. A user that waits for
        another sends Alive; otherwise the silence of one user would make its neighbours'
        neighbours drop their connections too.
        """
        timeout = self._config.timeout
        if link.is_open:
            # while there is no quorum, dropping a neighbour that is alive gains nothing
            last = math.inf if self.paused else until + (PATIENCE - 1) * timeout
            return min(max(until, link.heard_at + timeout), last)
        # one that was lost before this wait began has had part of its time already
        return min(until, link.conn.down_since + timeout)

    def pause(self, reason: str) -> None:
        """Says why no step is taken; a reason that lasts is logged once."""
        if self.paused != reason:
            self.paused = reason
            self._log("paused", why=reason)
