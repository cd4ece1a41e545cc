"""What `decor federation check` prints: graph, noise, adversaries, users, and improvements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from decor.privacy.answer import AdversaryRow, PlanAnswer
from decor.text import rounded_up, table

from .plan_output import adversary_table, noise_lines
from .terminal import guarantee_json, write_json

if TYPE_CHECKING:
    from decor.federation.federation import Federation

_LISTED = 40
"""Users in the table of users."""


def report(
    federation: Federation, as_json: bool, more: dict[str, Any], first_line: str = ""
) -> None:
    """Prints what a federation file means.

    Args:
        federation: The file.
        as_json: Whether to print one JSON object instead of tables.
        more: Further keys of the JSON object.
        first_line: Printed above the tables.
    """
    answer = PlanAnswer(federation.plan, federation.guarantee(), tuple(federation.notes))
    rows = answer.adversary_rows(account=federation.guarantee)
    facts = _facts(federation, answer, rows) | more
    if as_json:
        write_json(facts)
        return
    hints = "\n".join(f"  - {hint}" for hint in facts["hints"])
    print(first_line + _heading(federation, facts))
    print(adversary_table(rows, facts["delta"]))
    print(_users(facts))
    print(f"What would make it stronger:\n{hints}")


def _facts(
    federation: Federation, answer: PlanAnswer, rows: Sequence[AdversaryRow]
) -> dict[str, Any]:
    from decor.federation.file import net_module
    from decor.federation.hints import hints

    plan, guarantee, topology = answer.plan, answer.guarantee, federation.topology
    messages = net_module("messages")
    # as framed on the wire: TLS adds its own bytes
    header_bytes = messages.HEADER.size + messages.Model.fixed.size
    adversaries = [
        {
            "adversary": str(row.adversary),
            "epsilon": row.epsilon,
            "exact": row.exact,
            "worst_user": row.most_exposed,
            "to": list(row.coalition),
        }
        for row in rows
    ]
    degrees = topology.degrees.tolist()
    users = [
        {
            "name": member.name,
            "address": member.address,
            "neighbours": degrees[k],
            "epsilon": float(guarantee.per_user[k]),
            **({} if member.records is None else {"records": member.records}),
        }
        for k, member in enumerate(federation.members)
    ]
    return {
        "name": federation.name,
        "digest": federation.digest.hex(),
        "topology": federation.network.topology or "edges",
        "edges": topology.edge_count,
        "sigma_cdp": plan.sigma_cdp,
        "sigma_cor": plan.sigma_cor,
        **guarantee_json(guarantee),
        "unit": federation.privacy.unit,
        "steps": federation.training.steps,
        "worst_user": topology.name(guarantee.worst_user),
        "worst_coalition": [topology.name(user) for user in guarantee.worst_coalition],
        "exact": guarantee.exact,
        "statement": str(guarantee),
        "adversaries": adversaries,
        "users": users,
        "parameters": federation.parameters,
        "message_bytes": header_bytes + federation.model_bytes,
        "rounds": federation.gossip.rounds,
        "warnings": list(answer.warnings),
        "hints": list(hints(federation)),
    }


def _heading(federation: Federation, facts: dict[str, Any]) -> str:
    graph, training = federation.network.topology or "graph by edges", federation.training
    rounds = f"{facts['rounds']} round{'s' if facts['rounds'] > 1 else ''}"
    lines = [
        f"{federation.name}: {len(federation.members)} users, {graph}, {facts['edges']} edges; "
        f"{training.steps:,} steps, clip {training.clip:g}; digest {facts['digest']}",
        *noise_lines(facts["sigma_cdp"], rounded_up(facts["sigma_cor"])),
        f"  message    {facts['message_bytes']:>10,}  bytes per round and neighbour before TLS, "
        f"{facts['parameters']:,} parameters; {rounds} per step",
        "",
        facts["statement"],
        *(f"Warning: {note}" for note in facts["warnings"]),
    ]
    return "\n".join(lines) + "\n"


def _users(facts: dict[str, Any]) -> str:
    listed, left = facts["users"][:_LISTED], len(facts["users"]) - _LISTED
    columns = {
        "user": [user["name"] for user in listed],
        # empty at user level, where the number of examples is not public
        "records": [f"{user['records']:,}" for user in listed if "records" in user],
        "address": [user["address"] or "dials only" for user in listed],
        "neighbours": [str(user["neighbours"]) for user in listed],
        "epsilon": [rounded_up(user["epsilon"]) for user in listed],
    }
    columns = {name: column for name, column in columns.items() if column}
    lines = table(list(columns), list(zip(*columns.values(), strict=True)))
    more = f"\n  and {left} more (--json lists them)" if left > 0 else ""
    return f"Each user, against {facts['adversary']}:\n{lines}{more}\n"
