"""Statuses as nodes give them, and what has been seen of nodes."""

import time

from decor.ui.node_poll import Observation
from decor.ui.node_status import NodeStatus

DIGEST = "ab" * 32


def neighbour(name, here=True, done=False, **more):
    problem = None if here or done else "connection refused"
    known = {"name": name, "here": here, "done": done, "connections": 1, "problem": problem}
    return known | more


def status(user, *neighbours, step=20, **more):
    """The JSON of a running node; a neighbour is a name, if it is connected, or a dictionary."""
    others = [neighbour(each) if isinstance(each, str) else each for each in neighbours]
    known = {
        "federation": "heart",
        "user": user,
        "digest": DIGEST,
        "step": step,
        "steps": 40,
        "messages": step,
        "missed": 0,
        "late": 0,
        "noise_left": 1.0,
        "epsilon": 9.99999,
        "epsilon_if_fixed": 5.43211,
        "delta": 1e-5,
        "paused": None,
        "neighbours": others,
    }
    return known | more


def seen(answer, source=None, asked_at=None):
    """A node that has answered once."""
    found = Observation(source or f"{answer['user']}.example.org:9464")
    found.record(NodeStatus.of_json(answer), time.monotonic() if asked_at is None else asked_at)
    return found
