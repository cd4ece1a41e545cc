"""What the page asks, as values that have been checked, and as the command line that asks the same.

Guarantee: a drawn graph is read from the very text that the page offers to save, so that `--graph
FILE` is the same graph.
"""

from __future__ import annotations

import json
import math
import shlex
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from decor.errors import GraphError, InputError
from decor.graph import families, files, named
from decor.graph.gossip import Gossip
from decor.graph.topology import Topology
from decor.privacy.adversary import Adversary
from decor.privacy.budget import Budget, Exposure

MOST_USERS = 256
"""That one page draws, and answers without a wait; `decor plan` has no such limit."""
MOST_EDGES = 5000
"""Of a graph that is no family: with more, a search for coalitions may take minutes without
a word.
"""
MOST_STEPS, MOST_ROUNDS = 10**9, 100
LONGEST_NAME = 40
FILE = "graph.txt"
"""What a drawn graph is saved as, and called in the command."""

_GRAPH = ("topology", "users", "degree", "probability", "graph_seed", "drawn")
_EXPOSURE = ("clip", "steps", "unit", "batch_size", "records", "sampling", "relation")
_REST = ("epsilon", "delta", "any_delta", "adversary", "gossip_rounds", "accelerate")


@dataclass(frozen=True)
class Drawn:
    """A graph, and the edge list it was read from if somebody drew it."""

    topology: Topology
    text: str | None = None


@dataclass(frozen=True)
class Question:
    """All that `decor plan` is asked, and the words that ask it."""

    graph: Drawn
    exposure: Exposure
    adversary: Adversary
    budget: Budget
    gossip: Gossip
    command: str
    any_delta: bool = False


def question(value: dict[str, Any]) -> Question:
    """From the page's JSON; raises with a sentence for whatever cannot be meant."""
    _known(value, (*_GRAPH, *_EXPOSURE, *_REST))
    graph = graph_of({name: value[name] for name in _GRAPH if name in value})
    exposure = Exposure(**{name: _number(value[name]) for name in _EXPOSURE if name in value})
    if exposure.steps > MOST_STEPS:
        raise InputError(
            f"the planner takes up to {MOST_STEPS:,} steps, not {exposure.steps:,}; "
            "decor plan takes more"
        )
    adversary = Adversary.parse(value.get("adversary", "curious"))
    if adversary.average_only:
        raise InputError(
            "who sees the average alone is no adversary of DECOR; compare with the "
            "bar of central DP"
        )
    budget = Budget(_number(value.get("epsilon")), _number(value.get("delta", 1e-5)))
    any_delta = value.get("any_delta", False)
    if not isinstance(any_delta, bool):
        raise InputError(f"any_delta is true or false, not {any_delta!r}")
    return Question(
        graph, exposure, adversary, budget, _gossip(value), _command(value, graph), any_delta
    )


def _gossip(value: dict[str, Any]) -> Gossip:
    rounds, weights = _number(value.get("gossip_rounds", 1)), value.get("accelerate")
    if weights not in (None, "chebyshev", "designed"):
        raise InputError(f'better weights are "chebyshev" or "designed", not {weights!r}')
    gossip = Gossip(rounds, weights or False)
    if gossip.rounds > MOST_ROUNDS:
        raise InputError(
            f"the planner takes up to {MOST_ROUNDS} rounds of gossip, not "
            f"{gossip.rounds:,}; decor plan takes more"
        )
    if gossip.accelerate and gossip.rounds < 2:
        raise InputError(
            f"better weights change nothing about {gossip.rounds} rounds; ask for 2 rounds or more"
        )
    return gossip


def graph_of(value: dict[str, Any]) -> Drawn:
    """A graph by name, or as it was drawn; the same words give the same object."""
    _known(value, _GRAPH)
    return _built(json.dumps(value, sort_keys=True))


def from_text(text: str) -> Drawn:
    """A graph from an edge list that somebody opened on the page."""
    topology = files.from_edge_list(text, "the edge list")
    for name in topology.labels or ():
        _checked_name(name)
    return Drawn(_small(topology), _text(topology))


@lru_cache(maxsize=64)
def _built(words: str) -> Drawn:
    value = json.loads(words)
    if "drawn" in value:
        return _drawn(value["drawn"])
    name = value.get("topology", "ring")
    if not isinstance(name, str):
        raise GraphError(f"topology must be a name, such as ring, not {name!r}")
    chosen = {
        key: _number(value[key])
        for key in ("users", *named.TAKES.get(named.plain(name), ()))
        if key in value
    }
    for key in ("users", "degree", "graph_seed"):
        if key in chosen and (isinstance(chosen[key], bool) or not isinstance(chosen[key], int)):
            raise GraphError(
                f"{key.replace('graph_', '')} must be a whole number, not {chosen[key]!r}"
            )
    _few(chosen.get("users", named.USERS))
    return Drawn(_small(named.named(name, **chosen)))


def _drawn(value: Any) -> Drawn:
    names, edges = (
        (value.get("names"), value.get("edges")) if isinstance(value, dict) else (None, None)
    )
    if (
        not isinstance(names, list)
        or not isinstance(edges, list)
        or not all(isinstance(name, str) for name in names)
    ):
        raise GraphError('a drawn graph is {"names": [...], "edges": [[0, 1], ...]}')
    if not names:
        raise GraphError("nobody is drawn yet; add a user")
    _few(len(names))
    for name in names:
        _checked_name(name)
    topology = _small(families.from_edges(len(names), edges, names))
    text = _text(topology)
    # as whoever reads the file sees it: numbers are sorted, and 0 to n - 1 need no names
    return Drawn(files.from_edge_list(text), text)


def _text(topology: Topology) -> str:
    text = files.edge_list(topology)
    order = [topology.name(user) for user in range(topology.users)]
    read = files.from_edge_list(text)
    if [read.name(user) for user in range(read.users)] == order:
        return text
    # users come in the order in which they are first named
    return "".join(f"{name}\n" for name in order) + text


def _few(users: int) -> None:
    if users > MOST_USERS:
        raise GraphError(
            f"the planner draws up to {MOST_USERS} users, not {users:,}; ask decor plan about more"
        )


def _small(topology: Topology) -> Topology:
    _few(topology.users)
    if topology.family is None and topology.edge_count > MOST_EDGES:
        raise GraphError(
            f"the planner takes up to {MOST_EDGES:,} edges, not "
            f"{topology.edge_count:,}; ask decor plan about more"
        )
    return topology


def _checked_name(name: str) -> None:
    if not 1 <= len(name) <= LONGEST_NAME or not name.isprintable() or set(name) & set(" ,#"):
        raise GraphError(
            f"a user is named by 1 to {LONGEST_NAME} letters without blanks, commas "
            f"and #, not {name[:60]!r}"
        )


def _known(value: dict[str, Any], names: tuple[str, ...]) -> None:
    for name in value:
        if name not in names:
            raise InputError(f"{name[:60]!r} is nothing that can be asked; ask {', '.join(names)}")


def _number(value: Any) -> Any:
    """A whole number as such, however it was written; everything else as it is, for whoever checks
    it.
    """
    if isinstance(value, list):
        return tuple(_number(each) for each in value)
    if isinstance(value, dict):
        return {name: _number(each) for name, each in value.items()}
    if (
        isinstance(value, float)
        and math.isfinite(value)
        and value == int(value)
        and abs(value) < 2**53
    ):
        return int(value)
    return value


def _command(value: dict[str, Any], graph: Drawn) -> str:
    """The words of `decor plan` that ask the same; numbers are written so that they are read back
    to the last bit.
    """
    words = ["decor", "plan"]
    if graph.text is not None:
        words += ["--graph", FILE]
    else:
        name = named.plain(str(value.get("topology", "ring")))
        words += ["--topology", name, "--users", str(graph.topology.users)]
        words += _options(value, named.TAKES.get(name, ()))
    words += _options(value, ("epsilon", "delta", "steps", "clip", "adversary"))
    words += ["--any-delta"] if value.get("any_delta") is True else []
    if value.get("unit") == "example":
        words += _options(value, ("unit", "batch_size", "records", "sampling", "relation"))
    if _number(value.get("gossip_rounds", 1)) != 1:
        words += _options(value, ("gossip_rounds", "accelerate"))
    return shlex.join(words)


def _options(value: dict[str, Any], names: tuple[str, ...]) -> list[str]:
    return [
        word
        for name in names
        if value.get(name) not in (None, False)
        for word in (f"--{name.replace('_', '-')}", _word(value[name]))
    ]


def _word(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(_word, value))
    if isinstance(value, dict):
        return ",".join(f"{name}={_word(each)}" for name, each in value.items())
    return str(_number(value)) if isinstance(value, int | float) else str(value)
