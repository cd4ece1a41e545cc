"""What the page is told: pure functions of a question.

Every number is one that `decor plan` gives, by the same functions.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from decor.graph import mixing, spectrum
from decor.privacy import baselines
from decor.privacy.adversary import Adversary
from decor.privacy.answer import advice, calibrated, described, parts, relative_error
from decor.privacy.guarantee import Guarantee
from decor.privacy.plan import NoisePlan
from decor.results.report_data import drawn_graph
from decor.text import json_safe, rounded_up

from .question import Drawn, Question

_FLOWS = 100_000
"""Users times edges up to which the vertex connectivity of a graph without a family is computed."""


def drawing(graph: Drawn) -> dict[str, Any]:
    """The graph: where everybody is drawn, who talks to whom, and what it is worth."""
    return _drawing(graph) | {"edge_list": graph.text}


@lru_cache(maxsize=64)
def _drawing(graph: Drawn) -> dict[str, Any]:
    topology = graph.topology
    # a flow for every pair of users: half a second at this limit, minutes far above it
    quick = topology.family is not None or topology.users * topology.edge_count <= _FLOWS
    vertex = spectrum.vertex_connectivity(topology) if quick else None
    facts = {
        "edges": f"{topology.edge_count:,}",
        "degrees": _range(int(topology.degrees.min()), int(topology.degrees.max())),
        "algebraic_connectivity": rounded_up(spectrum.algebraic_connectivity(topology)),
        "vertex_connectivity": "not computed" if vertex is None else str(vertex),
        "consensus_rate": rounded_up(mixing.consensus_rate(topology)),
    }
    drawn = drawn_graph(topology, "graph")
    answer: dict[str, Any] = json_safe(drawn | {"facts": facts, "advice": advice(topology, vertex)})
    return answer


def _range(low: int, high: int) -> str:
    return str(low) if low == high else f"{low} to {high}"


def planned(question: Question) -> dict[str, Any]:
    """The noise, everybody's epsilon, the error it will cause, and the command that says the same.

    `against` has the adversaries whose epsilon is known at once; `against(question)` has them all.
    """
    plan, notes = _plan(question)
    guarantee = plan.guarantee()
    # one record: each takes a composition of 20 ms
    at_once = () if plan.exposure.unit == "example" else (0, None)
    quick = [
        each
        for each in plan.listed_adversaries()
        if each == plan.adversary or each.colluders in at_once
    ]
    assert isinstance(plan.sigma_cor, float)
    shown = {
        "sigma_cdp": rounded_up(plan.sigma_cdp),
        "sigma_cor": rounded_up(plan.sigma_cor),
        "epsilon": _epsilon(guarantee),
        "per_user": [rounded_up(epsilon) for epsilon in guarantee.per_user.tolist()],
        "worst_user": plan.topology.name(guarantee.worst_user),
        "adversary": plan.adversary.sentence,
        "warnings": [*notes, *([] if plan.topology.is_connected else [parts(plan.topology)])],
    }
    answer: dict[str, Any] = json_safe(
        described(plan, guarantee, notes)
        | {"shown": shown, "errors": _errors(plan, question), "command": question.command}
        | {
            "against": [_row(plan, each) for each in quick],
            "listed": [str(each) for each in plan.listed_adversaries()],
        }
    )
    return answer


def against(question: Question) -> dict[str, Any]:
    """The epsilon of every adversary worth a row; coalitions of two or three may take a search."""
    plan, _ = _plan(question)
    rows = [_row(plan, each) for each in plan.listed_adversaries()]
    answer: dict[str, Any] = json_safe({"against": rows})
    return answer


def _plan(question: Question) -> tuple[NoisePlan, list[str]]:
    gossip = question.gossip
    asked = (question.graph.topology, question.exposure, question.adversary, question.budget)
    return calibrated(
        *asked,
        gossip_rounds=gossip.rounds,
        accelerate=gossip.accelerate,
        any_delta=question.any_delta,
    )


def _errors(plan: NoisePlan, question: Question) -> list[dict[str, Any]]:
    """Predicted error relative to central DP: of central DP, of the plan and of local DP, each with
    its noise.
    """
    topology, exposure, budget = plan.topology, plan.exposure, question.budget
    central, local = (
        made(topology, exposure, budget, any_delta=True)
        for made in (baselines.central, baselines.local)
    )
    own, alone = relative_error(plan, question.gossip), relative_error(local, question.gossip)
    found = (("central", 1.0, central), ("decor", own, plan), ("local", alone, local))
    return [
        {"kind": kind, "value": v, "text": rounded_up(v), "sigma_cdp": rounded_up(each.sigma_cdp)}
        for kind, v, each in found
    ]


def _row(plan: NoisePlan, adversary: Adversary) -> dict[str, Any]:
    guarantee = plan.guarantee(adversary=adversary)
    return {
        "adversary": str(adversary),
        "sentence": adversary.sentence,
        "epsilon": guarantee.epsilon,
        "text": _epsilon(guarantee),
        "most_exposed": plan.topology.name(guarantee.worst_user),
        "to": [plan.topology.name(user) for user in guarantee.worst_coalition],
    }


def _epsilon(guarantee: Guarantee) -> str:
    return (
        rounded_up(guarantee.epsilon) if guarantee.exact else f"≤ {rounded_up(guarantee.epsilon)}"
    )
