"""The final model from a neighbour that has it: for a user that was away at the end of a run.

A neighbour serves it while it waits for the others to finish, and after that if its node was
started with --serve. Fetching takes no part in the run: no gradient, no message, no budget.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from decor.errors import RemoteProtocolError, TransientError
from decor.learning.frozen import body_parameters, body_summary
from decor.learning.task import Task
from decor.net.connections import Connections, Log
from decor.net.edge_keys import NO_KEY
from decor.net.identity import Identity
from decor.net.neighbour import Link, Neighbour, Values
from decor.net.reach import Reach
from decor.net.session import Event, Greeted, Received, Session, SessionConfig
from decor.results.run import Run
from decor.training.manifest import RunManifest

from .local_gradient import LocalGradient
from .terms import Terms
from .vector_kernels import is_bounded


@dataclass
class ModelFetch:
    """Asks all neighbours for the final model until one sends it.

    Attributes:
        terms: What all users of the federation have agreed on.
        number: This user, in the order of the federation's file.
        identity: Its key.
        task: The federation's model, with any data of the right shape.
        log: Receives events.
        random: `random(n)` returns n secret bytes.
        reach: Where to listen, and how to reach neighbours; None: as the file says.
    """

    terms: Terms
    number: int
    identity: Identity
    task: Task
    log: Log
    random: Callable[[int], bytes]
    reach: Reach | None = None
    _values: Values | None = field(default=None, init=False)
    _sender: str = field(default="", init=False)

    def __post_init__(self) -> None:
        terms = self.terms
        self._local = LocalGradient(
            self.task,
            terms.plan.exposure,
            terms.recipe,
            terms.dtype,
            self.random,
            len(terms.members),
        )

    async def fetch(self, patience: float) -> Run:
        """The model as a run, which promises what the whole plan does.

        Args:
            patience: Seconds to wait for a neighbour that has it.

        Raises:
            TransientError: No neighbour has sent it.
        """
        terms = self.terms
        links = {each.number: Link(each) for each in terms.neighbours(self.number)}
        connections = Connections(
            self.identity,
            links,
            self.reach or terms.reach(self.number),
            terms.timeout,
            self.log,
            self._new_session,
            self._handle_event,
            lambda link: None,
        )
        connections.open()
        try:
            until = time.monotonic() + patience
            while self._values is None:
                if (left := until - time.monotonic()) <= 0:
                    problems = [
                        f"{link.neighbour.name} {link.conn.problem}" for link in links.values()
                    ]
                    raise TransientError(
                        f"no neighbour has sent the final model in {patience:g} s: "
                        f"{'; '.join(problems)}. Ask one to start its node with --serve"
                    )
                await connections.wait_for_change(left)
        finally:
            await connections.close()
        return self._run(self._values)

    def _new_session(self, neighbour: Neighbour) -> Session:
        terms, steps = self.terms, self.terms.run_length.steps
        size = terms.parameters * self._local.dtype.itemsize
        config = SessionConfig(
            self.identity.key,
            neighbour.name,
            neighbour.public,
            neighbour.is_lower,
            terms.digest,
            terms.digests,
            size,
            self.random,
        )
        # no noise is ever drawn from this secret: any epoch that was not used before will do
        epoch = time.time_ns() // 1000
        # as if the run were over here: no step is left of which it could want a key
        return Session(config, epoch, steps, lambda: (steps, NO_KEY), fetches=True)

    def _handle_event(self, link: Link, event: Event) -> None:
        length = self.terms.run_length
        final = length.steps, length.rounds_of(length.steps)
        match event:
            case Greeted(step) if step < length.steps:
                self.log("not finished", neighbour=link.neighbour.name, step=step)
            # a new connection brings other models too: of rounds that are no result
            case Received(step, round_, values) if (step, round_) == final:
                # a neighbour may lie about its model, and the result of a run has to be a number
                if not is_bounded(np.frombuffer(values, self._local.dtype)):
                    raise RemoteProtocolError("sent a model that is not finite, or beyond 1e18")
                self._values, self._sender = values, link.neighbour.name

    def _run(self, values: Values) -> Run:
        terms, local = self.terms, self._local
        model = np.frombuffer(values, local.dtype)
        member = terms.members[self.number]
        manifest = RunManifest(
            simulated=False,
            task={"name": terms.name, "users": 1, "parameters": local.parameters},
            learning_rate=terms.learning_rate,
            recipe=terms.recipe.to_json(),
            engine={
                "name": "peers",
                "user": member.name,
                "number": self.number,
                "dtype": terms.dtype,
                "fetched_from": self._sender,
            },
            noise={"kind": "grid", "distance": terms.grid.distance},
            definition=terms.public_definition,
            frozen=body_summary(local.module),
            federation=terms.digest.hex(),
        )
        metrics = local.metrics(model)
        # how many messages this user has sent is in its ledger: here the whole plan counts
        steps = terms.plan.exposure.steps
        history: dict[str, list[float]] = {"step": [steps]}
        history |= {name: [value] for name, value in metrics.items()}
        state = local.state(model)
        return Run(
            *(terms.plan, history, state, steps, None, manifest.to_json(), {}, local.buffers),
            frozen=body_parameters(local.module),
        )
