"""`decor federation check`: a file's graph, noise, adversaries, users, and improvements."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from decor.errors import InputError
from decor.privacy.adversary import Adversary
from decor.privacy.plan_answer import AdversaryRow, PlanAnswer
from decor.text import amount, rounded_up, table

from . import options as opt
from .json_output import guarantee_json, write_json
from .plan_output import adversary_table, noise_lines

if TYPE_CHECKING:
    from decor.federation.federation import Federation

_EXAMPLE = """example:
  decor federation check heart.toml"""
_LISTED = 40
"""Users in the table of users."""


def add_to(kinds: Any) -> None:
    help = "show a federation's guarantee, and what would improve it"
    parser = opt.add_command(kinds, "check", run, help, _EXAMPLE)
    parser.add_argument("file", metavar="FILE", help="the federation file")
    trust = (
        "import and call the model's code that the file names, which can do anything on this "
        "machine; without it the model's size is unknown"
    )
    parser.add_argument("--trust-code", action="store_true", help=trust)
    opt.add_json(parser)


def run(options: argparse.Namespace) -> None:
    from decor.federation.federation import Federation

    # somebody else wrote the file, and nobody here has agreed to run its code
    federation = Federation.read(options.file, run_code=options.trust_code)
    report(
        federation, options.json, {"file": options.file, **start_facts(federation, options.file)}
    )


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
    rows, unknown = adversary_rows(federation, answer)
    facts = _facts(federation, answer, rows, unknown) | more
    if as_json:
        write_json(facts)
        return
    hints = "\n".join(f"  - {hint}" for hint in facts["hints"])
    print(first_line + _heading(federation, facts))
    print(adversary_table(rows, facts["delta"]))
    if unknown:
        names = ", ".join(map(str, unknown))
        print(f"Epsilon against {names} depends on the size of the model, which is unknown.\n")
    print(_users(facts))
    print(f"What would make it stronger:\n{hints}")


def start_facts(federation: Federation, file: str | Path) -> dict[str, Any]:
    """The model that training begins with, and whether it lies beside the federation's file.

    Args:
        federation: The file's content.
        file: The file.
    """
    from decor.federation.start_model import find_start, path_beside

    sha256, problem = federation.model.start_sha256, None
    if sha256 is None:
        return {}
    try:
        # noted and not raised: the guarantee can be judged without the model
        find_start(sha256, file, None)
    except InputError as reason:
        problem = str(reason)
    facts = {"sha256": sha256, "file": str(path_beside(file)), "problem": problem}
    return {"start_model": facts}


def adversary_rows(
    federation: Federation, answer: PlanAnswer
) -> tuple[list[AdversaryRow], list[Adversary]]:
    """What each adversary learns, and those against whom it needs a size that is not known.

    Args:
        federation: The file's content.
        answer: Its plan and guarantee.
    """
    listed, unknown = federation.plan.listed_adversaries(), []
    if not federation.is_size_known:
        for adversary in listed:
            try:
                # tried, because the accounting alone knows when it needs the size of the model
                federation.guarantee(adversary)
            except InputError:
                unknown.append(adversary)
    known = [adversary for adversary in listed if adversary not in unknown]
    return answer.adversary_rows(known, federation.guarantee), unknown


def code_facts(federation: Federation) -> dict[str, Any]:
    """The model's code, and whether the installed code is the file's; nothing of it is run.

    Args:
        federation: The content of a file that names code.
    """
    from decor.learning.model_code import hash_source

    installed, problem = None, None
    try:
        # code that is missing is no error: files are also checked where no node will run
        installed = hash_source(federation.model.code or "")
    except InputError as reason:
        problem = str(reason)
    return {
        "name": federation.model.code,
        "sha256": federation.model.code_sha256,
        "installed_sha256": installed,
        "problem": problem,
        "run": federation.run_code,
    }


def _facts(
    federation: Federation,
    answer: PlanAnswer,
    rows: Sequence[AdversaryRow],
    unknown: Sequence[Adversary],
) -> dict[str, Any]:
    from decor.federation.file_rules import net_module
    from decor.federation.improvements import hints

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
    for adversary in unknown:
        nobody: dict[str, Any] = {"epsilon": None, "exact": False, "worst_user": None, "to": []}
        # listed without a figure, or a program would take their absence for safety
        adversaries.append({"adversary": str(adversary), **nobody})
    known = federation.is_size_known
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
        # in full: members compare it, and another file with the same few digits is soon found
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
        "parameters": federation.parameters if known else None,
        "message_bytes": header_bytes + federation.model_bytes if known else None,
        **({} if federation.data is None else {"data": federation.data.to_json()}),
        **({} if federation.model.code is None else {"code": code_facts(federation)}),
        "rounds": federation.gossip.rounds,
        "warnings": list(answer.warnings),
        "hints": list(hints(federation)),
    }


def _heading(federation: Federation, facts: dict[str, Any]) -> str:
    graph, training = federation.network.topology or "graph by edges", federation.training
    rounds = f"{facts['rounds']} round{'s' if facts['rounds'] > 1 else ''}"
    lines = [
        f"{federation.name}: {amount(len(federation.members), 'user')}, {graph}, "
        f"{amount(facts['edges'], 'edge')}; "
        f"{amount(training.steps, 'step')}, clip {training.clip:g}; digest {facts['digest']}",
        *noise_lines(rounded_up(facts["sigma_cdp"]), rounded_up(facts["sigma_cor"])),
        _message_line(facts, rounds),
        *_column_lines(federation),
        *(["", *code_lines(facts["code"])] if "code" in facts else []),
        *_start_lines(facts),
        "",
        facts["statement"],
        *(f"Warning: {note}" for note in facts["warnings"]),
    ]
    return "\n".join(lines) + "\n"


def _message_line(facts: dict[str, Any], rounds: str) -> str:
    if facts["message_bytes"] is None:
        return f"  message       unknown  bytes per round and neighbour; {rounds} per step"
    return (
        f"  message    {facts['message_bytes']:>10,}  bytes per round and neighbour before TLS, "
        f"{facts['parameters']:,} parameters; {rounds} per step"
    )


def _column_lines(federation: Federation) -> list[str]:
    """What users' tables need to have."""
    if federation.data is None:
        return []
    names = ", ".join(column.name for column in federation.data.columns)
    label = federation.data.label.name
    classes = federation.data.classes
    what = "a number" if classes is None else ", ".join(classes)
    return textwrap.wrap(
        f"Tables have the columns {names}; and the label {label} ({what}).",
        100,
        initial_indent="  ",
        subsequent_indent="  ",
    )


def code_lines(code: dict[str, Any]) -> list[str]:
    """What the file says about a model's code, and what is installed here.

    Args:
        code: From `code_facts`.
    """
    from decor.learning.model_code import shorten

    lines = [
        f"The model is the code {code['name']}, which a node runs with access to its data.",
    ]
    named, installed = code["sha256"], code["installed_sha256"]
    if named is None:
        lines.append("The file has no model.code_sha256: each user may be running other code.")
    elif installed is None:
        lines.append(f"The file's code has SHA-256 {shorten(named)}; none can be compared here.")
    elif installed == named:
        lines.append(f"The code installed here is the file's (SHA-256 {shorten(named)}).")
    else:
        lines.append(
            f"The code installed here is NOT the file's: its SHA-256 is {shorten(installed)}, the "
            f"file has {shorten(named)}. A node would refuse it."
        )
    if code["problem"] is not None:
        lines.append(f"Note: {code['problem']}.")
    if not code["run"]:
        lines.append(
            "The size of the model is unknown because its code is not run. A node checks it: it "
            "refuses a model of over 4 GB, or too large for the noise tables at this budget. Read "
            "the code, then use --trust-code to run it here."
        )
    return lines


def _start_lines(facts: dict[str, Any]) -> list[str]:
    """Which model training begins with, where it is not a new one."""
    from decor.learning.model_code import shorten

    start = facts.get("start_model")
    if start is None:
        return []
    if start["problem"] is not None:
        return ["", f"A node would refuse to start: {start['problem']}."]
    digest = shorten(start["sha256"])
    return ["", f"Training begins with the model {start['file']} (SHA-256 {digest})."]


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
