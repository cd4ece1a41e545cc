"""A question of the page as checked values, and as the command line that asks the same.

Guarantee: a drawn graph is read from the same text that the page offers to save, so that
`--graph FILE` is the same graph.
"""

from __future__ import annotations

import json
import math
import shlex
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

from decor.errors import GraphError, InputError
from decor.graph import edge_lists, families, named
from decor.graph.gossip import Gossip
from decor.graph.topology import Topology
from decor.privacy.adversary import Adversary
from decor.privacy.budget import Budget, Exposure

MAX_USERS = 256
"""Users that a page can show, and that are answered without a delay; `decor plan` takes more."""
MAX_EDGES = 5000
"""Edges outside named families: above it, a search for coalitions may take minutes."""
MAX_STEPS, MAX_ROUNDS = 10**9, 100
MAX_NAME = 40
FILE = "graph.txt"
"""The name under which the page saves a drawn graph, and which the command uses."""

_GRAPH = ("topology", "users", "degree", "probability", "graph_seed", "drawn")
_EXPOSURE = tuple(each.name for each in fields(Exposure))
_OTHER = ("epsilon", "delta", "any_delta", "adversary", "gossip_rounds", "accelerate")


@dataclass(frozen=True)
class GraphInput:
    """A graph, and the edge list it was read from if it was drawn or opened on the page."""

    topology: Topology
    text: str | None = None


@dataclass(frozen=True)
class Question:
    """The input of `decor plan`, and the command line with the same input.

    Without a gossip, it is "auto": chosen for the plan.
    """

    graph: GraphInput
    exposure: Exposure
    adversary: Adversary
    budget: Budget
    gossip: Gossip | None
    command: str
    any_delta: bool = False


def parse_question(value: dict[str, Any]) -> Question:
    """A question from the page's JSON; InputError explains what is wrong with it."""
    # a field that is ignored would make this the answer to another question
    _refuse_unknown(value, (*_GRAPH, *_EXPOSURE, *_OTHER))
    graph = parse_graph({name: value[name] for name in _GRAPH if name in value})
    exposure = Exposure(**{name: _number(value[name]) for name in _EXPOSURE if name in value})
    if exposure.steps > MAX_STEPS:
        raise InputError(
            f"the planner takes up to {MAX_STEPS:,} steps, not {exposure.steps:,}; decor plan "
            "takes more"
        )
    adversary = Adversary.parse(value.get("adversary", "curious"))
    if adversary.average_only:
        raise InputError(
            "average-only is not an adversary of DECOR: it sees no messages; for it, see the bar "
            "of central DP"
        )
    budget = Budget(_number(value.get("epsilon")), _number(value.get("delta", 1e-5)))
    any_delta = value.get("any_delta", False)
    # strictly: the text "false" counts as true, and would lift the check of delta
    if not isinstance(any_delta, bool):
        raise InputError(f"any_delta must be true or false, not {any_delta!r}")
    gossip, command = _gossip(value), _command(value, graph)
    return Question(graph, exposure, adversary, budget, gossip, command, any_delta)


def _gossip(value: dict[str, Any]) -> Gossip | None:
    rounds, weights = _number(value.get("gossip_rounds", "auto")), value.get("accelerate")
    if weights not in (None, "chebyshev", "designed"):
        raise InputError(f'accelerate must be "chebyshev" or "designed", not {weights!r}')
    if rounds == "auto":
        if weights == "chebyshev":
            raise InputError("auto takes designed rounds; give a number of rounds for chebyshev")
        return None
    gossip = Gossip(rounds, weights or False)
    if gossip.rounds > MAX_ROUNDS:
        raise InputError(
            f"the planner takes up to {MAX_ROUNDS} rounds of gossip, not {gossip.rounds:,}; decor "
            "plan takes more"
        )
    if gossip.accelerate and gossip.rounds < 2:
        raise InputError(
            f"accelerate changes nothing with {gossip.rounds} rounds; ask for 2 rounds or more"
        )
    return gossip


def parse_graph(value: dict[str, Any]) -> GraphInput:
    """A graph by name, or a drawn one. Equal input gives the same object, which caches answers."""
    _refuse_unknown(value, _GRAPH)
    # JSON with sorted keys is a key that can be hashed
    return _graph_from_json(json.dumps(value, sort_keys=True))


def parse_edge_list(text: str) -> GraphInput:
    """A graph from an edge list that was opened on the page."""
    topology = edge_lists.parse(text, "the edge list").topology
    for name in topology.labels or ():
        _check_name(name)
    return GraphInput(_check_size(topology), _edge_list(topology))


@lru_cache(maxsize=64)
def _graph_from_json(text: str) -> GraphInput:
    value = json.loads(text)
    if "drawn" in value:
        return _graph_from_drawing(value["drawn"])
    name = value.get("topology", "ring")
    if not isinstance(name, str):
        raise GraphError(f"topology must be a name, such as ring, not {name!r}")
    keys = ("users", *named.TAKES.get(named.canonical_name(name), ()))
    given = {key: _number(value[key]) for key in keys if key in value}
    for key in ("users", "degree", "graph_seed"):
        if key in given and (isinstance(given[key], bool) or not isinstance(given[key], int)):
            what = key.removeprefix("graph_")
            raise GraphError(f"{what} must be a whole number, not {given[key]!r}")
    # before the graph is built: a huge one would fill the memory
    _check_users(given.get("users", named.USERS))
    return GraphInput(_check_size(named.from_name(name, **given)))


def _graph_from_drawing(value: Any) -> GraphInput:
    value = value if isinstance(value, dict) else {}
    names, edges = value.get("names"), value.get("edges")
    lists = isinstance(names, list) and isinstance(edges, list)
    if not lists or not all(isinstance(name, str) for name in names):
        raise GraphError('a drawn graph is {"names": [...], "edges": [[0, 1], ...]}')
    if not names:
        raise GraphError("the drawing is empty; add a user")
    _check_users(len(names))
    for name in names:
        _check_name(name)
    text = _edge_list(_check_size(families.from_edges(len(names), edges, names)))
    # as a reader of the file gets it: numbers are sorted, and 0 to n - 1 are not names
    return GraphInput(edge_lists.parse(text).topology, text)


def _edge_list(topology: Topology) -> str:
    """The graph as an edge list that is read back with its users in the same order."""
    text = edge_lists.format(topology)
    order = [topology.name(user) for user in range(topology.users)]
    read = edge_lists.parse(text).topology
    if [read.name(user) for user in range(read.users)] == order:
        return text
    # a reader numbers users in the order of their first lines
    return "".join(f"{edge_lists.quote_name(name)}\n" for name in order) + text


def _check_users(users: int) -> None:
    if users > MAX_USERS:
        raise GraphError(
            f"the planner draws up to {MAX_USERS} users, not {users:,}; use decor plan for more"
        )


def _check_size(topology: Topology) -> Topology:
    _check_users(topology.users)
    if topology.family is None and topology.edge_count > MAX_EDGES:
        raise GraphError(
            f"the planner takes up to {MAX_EDGES:,} edges, not {topology.edge_count:,}; use decor "
            "plan for more"
        )
    return topology


def _check_name(name: str) -> None:
    # as an edge list can hold it
    if not 1 <= len(name) <= MAX_NAME or not name.isprintable() or name != name.strip():
        raise GraphError(
            f"a user's name has 1 to {MAX_NAME} printable characters, and no blank at either end, "
            f"not {name[:60]!r}"
        )


def _refuse_unknown(value: dict[str, Any], names: tuple[str, ...]) -> None:
    for name in value:
        if name not in names:
            raise InputError(f"unknown field {name[:60]!r}; the fields are {', '.join(names)}")


def _number(value: Any) -> Any:
    """Floats that are whole as integers, because JavaScript has only floats; else unchanged."""
    if isinstance(value, list):
        return tuple(_number(each) for each in value)
    if isinstance(value, dict):
        return {name: _number(each) for name, each in value.items()}
    # beyond 2^53 neighbouring integers are the same float
    if isinstance(value, float) and math.isfinite(value) and abs(value) < 2**53:
        return int(value) if value == int(value) else value
    return value


def _command(value: dict[str, Any], graph: GraphInput) -> str:
    """`decor plan` with the same input; numbers are written so that they are read back exactly."""
    words = ["decor", "plan"]
    if graph.text is not None:
        words += ["--graph", FILE]
    else:
        name = named.canonical_name(str(value.get("topology", "ring")))
        words += ["--topology", name, "--users", str(graph.topology.users)]
        words += _options(value, named.TAKES.get(name, ()))
    words += _options(value, ("epsilon", "delta", "steps", "clip", "adversary"))
    words += ["--any-delta"] if value.get("any_delta") is True else []
    if value.get("unit") == "example":
        of_examples = ("unit", "batch_size", "records", "sampling", "relation")
        words += _options(value, (*of_examples, "rate", "weighting"))
    # auto is the default of `decor plan`
    if _number(value.get("gossip_rounds", "auto")) != "auto":
        words += _options(value, ("gossip_rounds", "accelerate"))
    # quoted, because people paste it into a shell, and names on a page may hold anything
    return shlex.join(words)


def _options(value: dict[str, Any], names: tuple[str, ...]) -> list[str]:
    words = []
    for name in names:
        if value.get(name) not in (None, False):
            words += [f"--{name.replace('_', '-')}", _word(value[name])]
    return words


def _word(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(_word, value))
    if isinstance(value, dict):
        return ",".join(f"{name}={_word(each)}" for name, each in value.items())
    return str(_number(value)) if isinstance(value, int | float) else str(value)
