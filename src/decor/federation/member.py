"""join: one user's own training loop in a federation, with everything but the training done."""

from __future__ import annotations

import asyncio
import os
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from torch import nn

from decor.errors import DecorError, InputError, UnsharedWarning
from decor.net.http_proxy import HttpProxy
from decor.net.identity import Identity
from decor.net.ledger import Ledger
from decor.net.reach import Reach
from decor.privacy.guarantee import Guarantee
from decor.results.run import Run
from decor.training.turn import Turn

from .federation import Federation
from .loop_updates import LoopClosed, LoopUpdates, Offer
from .node import Node
from .operator import EventLog, run_node
from .start_model import find_start
from .terms import Terms
from .user_files import socket_of


def join(
    file: str | Path,
    *,
    identity: str | Path,
    ledger: str | Path,
    start: str | Path | None = None,
    allow: float | None = None,
    listen: Sequence[str] | None = None,
    proxy: str | None = None,
    log: str | Path | None = None,
) -> Member:
    """Takes part in a federation with a training loop of one's own: `decor node` without its loop.

    ::

        with decor.join("heart.toml", identity="bonn.key", ledger="bonn.ledger") as member:
            for round in member:
                round.share(train_my_way(round.model))
            model = member.model

    Args:
        file: The federation file; its unit is "user".
        identity: The user's key file, written by `decor keygen`.
        ledger: The record of messages, made once by `decor ledger new`. After a crash the same call
            with the same ledger goes on where the run was.
        start: The model to start from, in a renewed federation; None: the file beside `file`.
        allow: The largest epsilon that all runs in the ledger may spend together; None: the
            federation's.
        listen: Addresses to listen on; None: those in the file.
        proxy: HTTP proxy for outgoing connections.
        log: A file for events; None: nowhere.

    Returns:
        The member, for a `with` statement: its connections live as long as that.

    Raises:
        InputError: If the file, the key or the model does not allow it; nothing was sent.

    Guarantee: the federation's plan, for this user's whole data, whatever the loop does: each
    difference that is shared is clipped, gets fresh noise, and is in the ledger before it leaves.
    It does not cover what the loop itself publishes, nor when it fails (docs/own-loop.md).
    """
    federation = Federation.read(file)
    key = Identity.load(identity)
    number = federation.number_of(key.public)
    first = find_start(federation.model.start_sha256, file, start)
    module, loss = federation.load_module(first)
    updates = LoopUpdates(module, loss, federation.exposure, federation.dtype)
    terms = Terms.of(federation)
    reach = terms.reach(number, listen, None if proxy is None else HttpProxy.parse(proxy))
    return Member(terms, number, key, updates, Path(ledger), allow, reach, log)


class Round(Turn):
    """One step of the federation, as a member's own loop sees it."""


class Member:
    """A user whose own loop trains, while a thread of its own does what `decor node` does.

    Iterating gives a `Round` for each step that has no message yet: after a restart, or where
    neighbours went on without this user, steps are left out.
    """

    def __init__(
        self,
        terms: Terms,
        number: int,
        identity: Identity,
        updates: LoopUpdates,
        ledger: Path,
        allow: float | None = None,
        reach: Reach | None = None,
        log: str | Path | None = None,
    ) -> None:
        self._terms, self._number, self._identity = terms, number, identity
        self._updates, self._ledger, self._log = updates, ledger, log
        self._allow, self._reach = allow, reach
        self._round: Round | None = None
        self._run: Run | None = None
        self._problem: BaseException | None = None
        self._is_at_end = False
        self._started = threading.Event()
        self._event_loop: asyncio.AbstractEventLoop | None = None
        self._work: asyncio.Task[Run] | None = None
        # a daemon: a program that never leaves its `with` must still be able to end
        self._thread = threading.Thread(target=self._take_part, daemon=True, name="decor-member")

    def __repr__(self) -> str:
        return f"Member({self.name!r} of {self._terms.name!r}, {self.steps:,} steps)"

    @property
    def name(self) -> str:
        """The user's name in the federation's file."""
        return self._terms.members[self._number].name

    @property
    def steps(self) -> int:
        """How many steps the plan has."""
        return self._terms.plan.exposure.steps

    @property
    def guarantee(self) -> Guarantee:
        """What the whole plan promises; it holds however early the run stops."""
        return self._terms.promise

    @property
    def run(self) -> Run:
        """The run as `decor node` would save it; once the last round is over.

        Raises:
            InputError: If rounds are left.
        """
        if self._run is None or self._run.stopped is not None:
            raise InputError(
                f"the run of {self.name} has rounds left, and no final model; go on to the end of "
                "the loop, or join again with the same ledger"
            )
        return self._run

    @property
    def model(self) -> nn.Module:
        """The final model, which may be published; once the last round is over."""
        run = self.run
        named = {name: value[0] for name, value in run.models.items()}
        return self._updates.flat.module(self._updates.read(named | run.fixed | run.frozen))

    def __enter__(self) -> Member:
        if self._thread.ident is not None:
            raise InputError("a member joins once; call decor.join again")
        self._thread.start()
        self._started.wait()
        # the key, the ledger or the budget does not allow it: before any round
        self._raise_problem()
        return self

    def __iter__(self) -> Iterator[Round]:
        return self

    def __next__(self) -> Round:
        if not self._started.is_set():
            raise InputError("write: with decor.join(...) as member: for round in member: ...")
        over, self._round = self._round, None
        if over is not None:
            over.end()
        offer = self._next_offer()
        if offer is None:
            self._raise_problem()
            raise StopIteration
        updates = self._updates
        self._round = Round(updates.flat, offer.model, offer.step, offer.rate, "", updates.answer)
        return self._round

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if problem is None:
            self._send_the_rest()
        else:
            # zero differences would end the run; a node that is stopped can go on with its ledger
            self._stop()
        # until the ledger is closed, nobody can join with it again
        self._thread.join()
        # the loop's own error comes first: the node's may only follow from it
        if problem is None:
            self._raise_problem()

    def _next_offer(self) -> Offer | None:
        if self._is_at_end:
            return None
        offer = self._updates.offers.get()
        self._is_at_end = offer is None
        return offer

    def _send_the_rest(self) -> None:
        """Zero differences to the end: when a loop breaks off must not be seen by neighbours."""
        over, self._round = self._round, None
        left = int(over is not None and over.end(quietly=True))
        while self._next_offer() is not None:
            self._updates.answer(None)
            left += 1
        if left:
            warnings.warn(
                f"the loop ended before its last round: zero differences were sent in {left} more, "
                "so that neighbours do not see when it ended",
                UnsharedWarning,
                stacklevel=3,
            )

    def _stop(self) -> None:
        """Ends the node where it is, as an operator does; it can go on later."""
        # the node's thread may be waiting for the loop, where no cancellation reaches it
        self._updates.close()
        if self._event_loop is not None and self._work is not None:
            # the node may have ended by itself meanwhile, and its event loop with it
            with suppress(RuntimeError):
                self._event_loop.call_soon_threadsafe(self._work.cancel)

    def _raise_problem(self) -> None:
        problem, self._problem = self._problem, None
        if problem is not None and not isinstance(problem, LoopClosed):
            raise problem

    def _take_part(self) -> None:
        """The thread's work: the node, from its ledger to its last message."""
        try:
            with open(self._log or os.devnull, "a", encoding="utf-8") as stream:
                asyncio.run(self._run_node(EventLog(self.name, stream)))
        except OSError as problem:
            self._problem = DecorError(f"{problem.filename}: {problem.strerror}")
        except BaseException as problem:
            # raised again in the owner's thread, the only place where anybody can catch it
            self._problem = problem
        finally:
            # whatever has happened, the owner's thread may be waiting for either of the two
            self._updates.offers.put(None)
            self._started.set()

    async def _run_node(self, log: EventLog) -> None:
        with Ledger(self._ledger, self._identity.public) as ledger:
            node = Node(
                self._terms,
                self._number,
                self._identity,
                self._updates,
                ledger,
                log,
                self._allow,
                self._reach,
                save=self._keep,
            )
            self._event_loop, self._work = asyncio.get_running_loop(), asyncio.current_task()
            self._started.set()
            await run_node(node, socket_of(self._ledger), None)

    def _keep(self, run: Run) -> None:
        """Takes the run; with its final model the loop is over, while neighbours may still come."""
        self._run = run
        if run.stopped is None:
            self._updates.offers.put(None)
