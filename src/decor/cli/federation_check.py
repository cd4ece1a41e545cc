"""What `decor federation check` says: the graph, the noise, who learns what, what it takes, and
what would be better.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from decor.text import rounded_up, table

from .terminal import write_json

if TYPE_CHECKING:
    from decor.federation.federation import Federation

_MANY = 40
"""Users that are listed one by one at most."""


def report(federation: Federation, json: bool, more: dict[str, Any], first: str = "") -> None:
    facts = _facts(federation) | more
    if json:
        write_json(facts)
    else:
        print(
            first
            + "\n".join(
                [_heading(federation, facts), _adversaries(facts), _users(facts), _hints(facts)]
            )
        )


def _facts(federation: Federation) -> dict[str, Any]:
    from decor.federation.file import net_module
    from decor.federation.hints import hints

    plan, guarantee, topology = federation.plan, federation.guarantee(), federation.topology
    messages = net_module("messages")
    a_message = messages.HEADER.size + messages.Model.fixed.size + federation.model_bytes
    adversaries = []
    for adversary in plan.listed_adversaries():
        g = federation.guarantee(adversary)
        worst, to = topology.name(g.worst_user), [topology.name(v) for v in g.worst_coalition]
        row = {
            "adversary": str(adversary),
            "epsilon": g.epsilon,
            "exact": g.exact,
            "worst_user": worst,
            "to": to,
        }
        adversaries.append(row)
    degrees = topology.degrees.tolist()
    users = [
        {
            "name": m.name,
            "address": m.address,
            "neighbours": degrees[k],
            "epsilon": float(guarantee.per_user[k]),
        }
        | ({} if m.records is None else {"records": m.records})
        for k, m in enumerate(federation.members)
    ]
    return {
        "name": federation.name,
        "digest": federation.digest.hex(),
        "topology": federation.network.topology or "edges",
        "edges": topology.edge_count,
        "sigma_cdp": plan.sigma_cdp,
        "sigma_cor": plan.sigma_cor,
        "epsilon": guarantee.epsilon,
        "delta": guarantee.delta,
        "adversary": str(guarantee.adversary),
        "unit": federation.privacy.unit,
        "steps": federation.training.steps,
        "worst_user": topology.name(guarantee.worst_user),
        "worst_coalition": [topology.name(v) for v in guarantee.worst_coalition],
        "exact": guarantee.exact,
        "statement": str(guarantee),
        "adversaries": adversaries,
        "users": users,
        "parameters": federation.parameters,
        "message_bytes": a_message,
        "rounds": federation.gossip.rounds,
        "warnings": list(federation.notes),
        "hints": list(hints(federation)),
    }


def _heading(federation: Federation, facts: dict[str, Any]) -> str:
    shape = federation.network.topology or "graph of its own"
    training, size = federation.training, facts["message_bytes"]
    lines = [
        f"{federation.name}: {len(federation.members)} users, {shape}, {facts['edges']} edges; "
        f"{training.steps:,} steps, "
        f"clip {training.clip:g}; digest {facts['digest']}",
        f"  sigma_cdp  {rounded_up(facts['sigma_cdp']):>10}  independent noise of every user",
        f"  sigma_cor  {rounded_up(facts['sigma_cor']):>10}  noise shared on each edge, cancelled "
        "by the neighbour",
        f"  message    {size:>10,}  bytes a round and neighbour before TLS, "
        f"{facts['parameters']:,} numbers; "
        f"{facts['rounds']} round{'s' if facts['rounds'] > 1 else ''} a step",
        "",
        facts["statement"],
        *(f"Warning: {note}" for note in facts["warnings"]),
    ]
    return "\n".join(lines) + "\n"


def _adversaries(facts: dict[str, Any]) -> str:
    rows = []
    for row in facts["adversaries"]:
        to = ", ".join(row["to"][:8]) + (", ..." if len(row["to"]) > 8 else "")
        said = rounded_up(row["epsilon"]) if row["exact"] else f"<= {rounded_up(row['epsilon'])}"
        rows.append([row["adversary"], said, row["worst_user"] + (f", to {to}" if to else "")])
    return (
        "Who learns what (epsilon at delta "
        f"{facts['delta']:g}):\n" + table(["adversary", "epsilon", "most exposed"], rows) + "\n"
    )


def _users(facts: dict[str, Any]) -> str:
    listed = facts["users"][:_MANY]
    columns = {
        "user": [u["name"] for u in listed],
        "records": [f"{u['records']:,}" for u in listed if "records" in u],
        "address": [u["address"] or "dials only" for u in listed],
        "neighbours": [str(u["neighbours"]) for u in listed],
        "epsilon": [rounded_up(u["epsilon"]) for u in listed],
    }
    # there are records at example level
    columns = {name: column for name, column in columns.items() if column}
    left = (
        f"\n  and {len(facts['users']) - _MANY} more (--json lists them)"
        if len(facts["users"]) > _MANY
        else ""
    )
    said = table(list(columns), list(zip(*columns.values(), strict=True)))
    return f"Every user, against {facts['adversary']}:\n{said}{left}\n"


def _hints(facts: dict[str, Any]) -> str:
    return "What would make it stronger:\n" + "\n".join(f"  - {hint}" for hint in facts["hints"])
