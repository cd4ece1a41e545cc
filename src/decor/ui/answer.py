"""The answers to the page's questions: pure functions of a question.

All numbers come from the functions that `decor plan` uses, so that both show the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from decor.graph import laplacian, mixing
from decor.graph.gossip import Gossip
from decor.privacy.adversary import Adversary
from decor.privacy.edge_advice import best_edges
from decor.privacy.gossip_choice import gossip_for
from decor.privacy.plan import NoisePlan
from decor.privacy.plan_answer import AdversaryRow, PlanAnswer, advice, note_on_parts
from decor.results.report_data import GraphDrawing
from decor.text import json_safe, rounded_up, rounded_up_range

from .question import GraphInput, Question

_MOST_ADVISED = 64
"""Most users of a graph whose best edges to add are named: about a second."""
_MAX_FLOW_SIZE = 100_000
"""Users times edges up to which vertex connectivity is computed: a flow for every pair of users,
half a second at this limit and minutes far above it. In a named family it is known.
"""


def describe_graph(graph: GraphInput) -> dict[str, Any]:
    """Where to draw users and edges, the properties of the graph, and its edge list if drawn."""
    return _drawing(graph) | {"edge_list": graph.text}


# a page asks again whenever a slider moves, mostly for a graph that it has seen
@lru_cache(maxsize=64)
def _drawing(graph: GraphInput) -> dict[str, Any]:
    topology = graph.topology
    small = topology.users * topology.edge_count <= _MAX_FLOW_SIZE
    known = topology.family is not None or small
    vertex = laplacian.vertex_connectivity(topology) if known else None
    low, high = int(topology.degrees.min()), int(topology.degrees.max())
    facts = {
        "edges": f"{topology.edge_count:,}",
        "degrees": str(low) if low == high else f"{low} to {high}",
        "algebraic_connectivity": rounded_up(laplacian.algebraic_connectivity(topology)),
        "vertex_connectivity": "not computed" if vertex is None else str(vertex),
        "consensus_rate": rounded_up(mixing.consensus_rate(topology)),
    }
    drawing = GraphDrawing.of_topology(topology, "graph").to_json()
    return _plain(drawing | {"facts": facts, "advice": advice(topology, vertex)})


def describe_plan(question: Question) -> dict[str, Any]:
    """The noise, the epsilon of each user, the predicted errors, and the same as a command.

    `against` has the adversaries whose epsilon is quick; `describe_adversaries` has all of them.
    """
    answer = _calibrate(question)
    plan, guarantee = answer.plan, answer.guarantee
    gossip = _gossip(question, plan)
    adversaries = plan.listed_adversaries()
    # at example level each adversary takes a composition of 20 ms
    at_once = () if plan.exposure.unit == "example" else (0, None)
    quick = [each for each in adversaries if each == plan.adversary or each.colluders in at_once]
    assert isinstance(plan.sigma_cor, float)  # a question cannot ask for noise by edge
    parts = [] if plan.topology.is_connected else [note_on_parts(plan.topology)]
    shown = {
        "sigma_cdp": _sigma_cdp(plan),
        "sigma_cor": rounded_up(plan.sigma_cor),
        "epsilon": AdversaryRow.of(guarantee).epsilon_text("≤"),
        "per_user": [rounded_up(epsilon) for epsilon in guarantee.per_user.tolist()],
        "worst_user": plan.topology.name(guarantee.worst_user),
        "adversary": plan.adversary.sentence,
        "warnings": [*answer.warnings, *parts],
    }
    more = {
        "shown": shown,
        "errors": _errors(answer, gossip),
        "gossip_rounds": gossip.rounds,
        "command": question.command,
        "against": _adversaries(answer, quick),
        "listed": [str(each) for each in adversaries],
    }
    return _plain(answer.to_json() | more)


def describe_adversaries(question: Question) -> dict[str, Any]:
    """The epsilon of every adversary, and the edges worth adding: what may take a second or more.

    Coalitions of two or three users may need a search.
    """
    answer = _calibrate(question)
    best = _best_edges(question, _gossip(question, answer.plan))
    return _plain({"against": _adversaries(answer), "best_edges": best})


def _gossip(question: Question, plan: NoisePlan) -> Gossip:
    """The rounds of each step, chosen for the plan if they are "auto"."""
    return question.gossip or gossip_for(plan)


def _best_edges(question: Question, gossip: Gossip) -> str:
    """The edges that reduce the predicted error most, in a sentence; none where it takes long."""
    topology, colluders = question.graph.topology, question.adversary.colluders
    # larger coalitions would need a search for every edge that is tried
    if topology.users > _MOST_ADVISED or colluders is None or colluders > 1:
        return ""
    asked = topology, question.exposure, question.adversary, question.budget
    return str(best_edges(*asked, gossip=gossip))


def _plain(value: dict[str, Any]) -> dict[str, Any]:
    # JSON has no infinity, and epsilon may be infinite
    safe: dict[str, Any] = json_safe(value)
    return safe


def _sigma_cdp(plan: NoisePlan) -> str:
    return rounded_up_range(plan.least_sigma_cdp, float(plan.sigma_cdp_per_user.max()))


def _calibrate(question: Question) -> PlanAnswer:
    return PlanAnswer.calibrate(
        question.graph.topology,
        question.exposure,
        question.adversary,
        question.budget,
        gossip_rounds="auto" if question.gossip is None else question.gossip.rounds,
        accelerate=False if question.gossip is None else question.gossip.accelerate,
        any_delta=question.any_delta,
    )


def _errors(answer: PlanAnswer, gossip: Gossip) -> list[dict[str, Any]]:
    """The noise and the predicted error, relative to central DP, of the plan and its baselines."""
    rows = answer.noise_pair_rows(gossip)
    return [
        {
            "kind": kind,
            "value": row.relative_error,
            "text": rounded_up(row.relative_error),
            "sigma_cdp": _sigma_cdp(row.plan),
        }
        for kind, row in zip(("central", "decor", "local"), rows, strict=True)
    ]


def _adversaries(
    answer: PlanAnswer, adversaries: Sequence[Adversary] | None = None
) -> list[dict[str, Any]]:
    return [
        {
            "adversary": str(row.adversary),
            "sentence": row.adversary.sentence,
            "epsilon": row.epsilon,
            "text": row.epsilon_text("≤"),
            "most_exposed": row.most_exposed,
            "to": list(row.coalition),
        }
        for row in answer.adversary_rows(adversaries)
    ]
