"""Users of a federation in one process, with real TLS between them, for tests that look inside."""

import asyncio
import copy
import hashlib

from ledgers import open_ledger

import decor
from decor.federation.node import Node
from decor.federation.terms import Terms
from decor.net.addresses import free_ports
from decor.net.identity import Identity


def make_terms(
    task,
    plan,
    recipe,
    identities,
    rate=0.5,
    dtype="float64",
    timeout=20.0,
    quorum=0.5,
    patience=20.0,
):
    """Terms of users that listen at ports of this machine."""
    from decor.federation.federation import Member

    members = tuple(
        Member(name=f"user-{i}", address=f"127.0.0.1:{port}", public=identity.public)
        for i, (identity, port) in enumerate(
            zip(identities, free_ports(len(identities)), strict=True)
        )
    )
    delta = 1e-5 if plan.budget is None else plan.budget.delta
    digest = hashlib.sha256(b"".join(m.public for m in members)).digest()
    digests = (("all", digest[:8]),)
    count = task.parameters
    return Terms(
        "party",
        members,
        plan,
        delta,
        recipe,
        rate,
        dtype,
        count,
        digest,
        digests,
        timeout,
        quorum,
        patience,
    )


def task_of_user(task, user):
    """The task as one user has it."""
    return decor.Task(
        copy.deepcopy(task.model), task.loss, [task.shards[user]], test=task.test, name=task.name
    )


class Events:
    """A log that tests can read."""

    def __init__(self):
        self.lines = []

    def __call__(self, event, **facts):
        self.lines.append((event, facts))

    def named(self, event):
        return [facts for name, facts in self.lines if name == event]


def train_together(task, plan, recipe, folder, random=None, tasks=None, **options):
    """Trains all users; returns their nodes and their runs.

    `tasks`: what each user has in place of its part of the task.
    """
    identities = [Identity.new() for _ in range(task.users)]
    terms = make_terms(task, plan, recipe, identities, **options)
    nodes = []

    async def together():
        for i, identity in enumerate(identities):
            more = {} if random is None else {"random": random(i)}
            ledger = open_ledger(folder / f"{i}.ledger", identity.public)
            own = task_of_user(task, i) if tasks is None else tasks[i]
            nodes.append(Node(terms, i, identity, own, ledger, Events(), **more))
        return await asyncio.gather(*(node.train() for node in nodes))

    runs = asyncio.run(together())
    for node in nodes:
        node.ledger.close()
    return nodes, runs
