"""`decor plan` and `decor account`: noise from a budget, and a budget from noise."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

import numpy as np

import decor
from decor.choices import Method
from decor.errors import InputError
from decor.graph.gossip import Gossip
from decor.privacy.answer import calibrated, described, parts
from decor.text import rounded_up, table

from . import options as opt
from .terminal import write_json

_PLAN = """example:
  decor plan --topology ring --users 16 --epsilon 3 --delta 1e-5 --steps 1000 --clip 1 \\
      --adversary curious"""
_ACCOUNT = """example:
  decor account --topology ring --users 16 --sigma-cdp 30 --sigma-cor 130 --delta 1e-5 \\
      --steps 1000 --adversary curious"""

_MANY = 2000
"""Above this many users only the adversary asked about is accounted, not the whole table, nor every
user.
"""
_LISTED = 20
"""Users in the table of users."""


def add_commands(commands: Any) -> None:
    raw = argparse.RawDescriptionHelpFormatter
    plan = commands.add_parser(
        "plan", help="the noise that a budget needs", epilog=_PLAN, formatter_class=raw
    )
    plan.set_defaults(run=run_plan)
    plan.add_argument(
        "--epsilon", type=opt.number, required=True, metavar="E", help="the most that may be spent"
    )
    opt.add_adversary(plan)
    opt.add_graph(plan)
    opt.add_exposure(plan)
    couple = plan.add_argument_group(
        "the pair of noise levels (by default the one with the least predicted error)"
    )
    couple.add_argument(
        "--ratio", type=opt.number, metavar="X", help="fix sigma_cor^2 / sigma_cdp^2"
    )
    couple.add_argument("--sigma-cdp", type=opt.number, metavar="S", help="fix sigma_cdp")
    couple.add_argument("--sigma-cor", type=opt.number, metavar="S", help="fix sigma_cor")
    couple.add_argument(
        "--edges", default="uniform", help="uniform, or optimal: noise designed for every edge"
    )
    gossip = plan.add_argument_group(
        "gossip in every step (moves the default couple and the predicted errors, no epsilon)"
    )
    gossip.add_argument(
        "--gossip-rounds", type=opt.whole, default=1, metavar="K", help="rounds (default: 1)"
    )
    opt.add_accelerate(gossip)
    plan.add_argument(
        "--method",
        default="exact",
        help="exact, or paper: the paper's looser conversion (default: exact)",
    )
    plan.add_argument("--save", metavar="FILE", help="save the plan as JSON")
    opt.add_output(plan)

    account = commands.add_parser(
        "account", help="the epsilon that a noise gives", epilog=_ACCOUNT, formatter_class=raw
    )
    account.set_defaults(run=run_account)
    account.add_argument(
        "--plan",
        metavar="FILE",
        help="account a saved plan instead of the noise and graph given here",
    )
    account.add_argument(
        "--sigma-cdp", type=opt.number, metavar="S", help="independent noise of every user"
    )
    account.add_argument("--sigma-cor", type=opt.number, metavar="S", help="noise of every edge")
    account.add_argument(
        "--method",
        default="exact",
        help="exact, or paper: the paper's looser conversion (default: exact)",
    )
    opt.add_adversary(account, planning=False)
    opt.add_graph(account)
    opt.add_exposure(account)
    opt.add_output(account)


def run_plan(options: argparse.Namespace) -> None:
    options.delta = opt.DELTA if options.delta is None else options.delta
    gossip = _gossip(options)
    budget = decor.Budget(options.epsilon, options.delta)
    plan, notes = calibrated(
        opt.topology_of(options),
        opt.exposure_of(options),
        opt.adversary_of(options),
        budget,
        ratio=options.ratio,
        sigma_cdp=options.sigma_cdp,
        sigma_cor=options.sigma_cor,
        edges=options.edges,
        method=options.method,
        gossip_rounds=gossip.rounds,
        accelerate=gossip.accelerate,
        any_delta=options.any_delta,
    )
    guarantee = plan.guarantee(method=options.method)
    if options.save:
        plan.save(options.save)
    if options.json:
        write_json(described(plan, guarantee, notes))
    else:
        print(_heading(plan, guarantee, notes))
        print(_users(plan, guarantee), end="")
        print(_adversaries(plan, options.delta, options.method))
        print(_couples(plan, gossip))
    _draw(plan, options)


def run_account(options: argparse.Namespace) -> None:
    if options.plan is not None:
        opt.refuse_beside_plan(options)
        plan = decor.NoisePlan.load(options.plan)
        if options.adversary is not None:
            plan = replace(plan, adversary=opt.adversary_of(options))
        if options.delta is None and plan.budget is not None:
            options.delta = plan.budget.delta
    elif options.sigma_cdp is None or options.sigma_cor is None:
        raise InputError(
            "give --sigma-cdp and --sigma-cor (0 for none), or a saved plan with --plan FILE"
        )
    else:
        exposure, adversary = opt.exposure_of(options), opt.adversary_of(options)
        plan = decor.NoisePlan(
            opt.topology_of(options), exposure, adversary, options.sigma_cdp, options.sigma_cor
        )
    options.delta = opt.DELTA if options.delta is None else options.delta
    guarantee = plan.guarantee(options.delta, method=options.method)
    if options.json:
        write_json(described(plan, guarantee, []))
    else:
        print(_heading(plan, guarantee, []))
        print(_users(plan, guarantee), end="")
        print(_adversaries(plan, options.delta, options.method))
    _draw(plan, options)


def _gossip(options: argparse.Namespace) -> Gossip:
    gossip = Gossip(options.gossip_rounds, options.accelerate)
    if gossip.accelerate and gossip.rounds < 2:
        raise InputError(
            f"--accelerate changes nothing about --gossip-rounds {gossip.rounds}; "
            "ask for 2 rounds or more"
        )
    return gossip


def _heading(plan: decor.NoisePlan, guarantee: decor.Guarantee, notes: list[str]) -> str:
    c = plan.sigma_cor
    correlated = (
        rounded_up(c)
        if isinstance(c, float)
        else f"{rounded_up(min(c, default=0.0))} to {rounded_up(max(c, default=0.0))}"
    )
    each = "on each edge" if isinstance(c, float) else "by edge (--json lists them)"
    lines = [
        f"{plan.topology.description}; {plan.exposure.steps:,} steps, clip {plan.exposure.clip:g}",
        f"  sigma_cdp  {rounded_up(plan.sigma_cdp):>10}  independent noise of every user",
        f"  sigma_cor  {correlated:>10}  noise shared {each}, cancelled by the neighbour",
        "",
        str(guarantee),
        _failing(plan, guarantee.delta),
        *(f"Warning: {note}" for note in notes),
    ]
    if not plan.topology.is_connected:
        lines.append(parts(plan.topology))
    return "\n".join(lines) + "\n"


def _failing(plan: decor.NoisePlan, delta: float) -> str:
    units = plan.exposure.units(plan.topology)
    what = "users" if plan.exposure.unit == "user" else "records"
    return (
        f"delta x {units:,} {what} = {delta * units:.2g}: the expected number of {what} for "
        "whom the promise may fail."
    )


def _users(plan: decor.NoisePlan, guarantee: decor.Guarantee) -> str:
    """User, records and epsilon, the most exposed first, where users have names or differ in their
    records.
    """
    topology, exposure = plan.topology, plan.exposure
    records = exposure.records_of(topology) if exposure.unit == "example" else None
    if topology.users > _MANY or (topology.labels is None and len(set(records or ())) < 2):
        return ""
    epsilons = guarantee.per_user
    order = np.argsort(-epsilons, kind="stable")[:_LISTED].tolist()
    rows = []
    for user in order:
        held = [] if records is None else [f"{records[user]:,}"]
        rows.append([topology.name(user), *held, rounded_up(float(epsilons[user]))])
    header = ["user", *([] if records is None else ["records"]), "epsilon"]
    left = topology.users - len(rows)
    more = f"\n  and {left} less exposed (--json lists everybody)" if left else ""
    return f"Every user, against {guarantee.adversary}:\n{table(header, rows)}{more}\n\n"


def _adversaries(plan: decor.NoisePlan, delta: float, method: Method) -> str:
    rows = []
    for adversary in plan.listed_adversaries():
        g = plan.guarantee(delta, adversary, method)
        to = ", ".join(plan.topology.name(v) for v in g.worst_coalition[:8]) + (
            ", ..." if len(g.worst_coalition) > 8 else ""
        )
        most = f"user {plan.topology.name(g.worst_user)}" + (f", to {to}" if to else "")
        rows.append(
            [
                str(adversary),
                rounded_up(g.epsilon) if g.exact else f"<= {rounded_up(g.epsilon)}",
                most,
            ]
        )
    return (
        f"Who learns what (epsilon at delta {delta:g}):\n"
        + table(["adversary", "epsilon", "most exposed"], rows)
        + "\n"
    )


def _couples(plan: decor.NoisePlan, gossip: Gossip) -> str:
    assert plan.budget is not None
    central = decor.baselines.central(plan.topology, plan.exposure, plan.budget, any_delta=True)
    local = decor.baselines.local(plan.topology, plan.exposure, plan.budget, any_delta=True)
    best = decor.theory.average_error(central)
    rows = [["central DP", rounded_up(central.sigma_cdp), "0", "1"]]
    if plan.adversary.colluders is not None and plan.topology.users <= _MANY:
        curve = plan.couples(np.array([1.0, 10.0, 100.0, 1000.0, 10000.0]))
        for x, s, c in zip(curve.ratio, curve.sigma_cdp, curve.sigma_cor, strict=True):
            other = decor.NoisePlan(
                plan.topology, plan.exposure, plan.adversary, float(s), float(c)
            )
            rows.append(
                [
                    f"ratio {x:g}",
                    rounded_up(s),
                    rounded_up(c),
                    rounded_up(decor.theory.predicted_error(other, gossip) / best),
                ]
            )
    c = plan.sigma_cor
    shown = (
        rounded_up(c)
        if isinstance(c, float)
        else f"~{rounded_up(float(np.sqrt(np.mean(np.square(c)))))}"
    )
    rows.append(
        [
            "this plan",
            rounded_up(plan.sigma_cdp),
            shown,
            rounded_up(decor.theory.predicted_error(plan, gossip) / best),
        ]
    )
    rows.append(
        [
            "local DP",
            rounded_up(local.sigma_cdp),
            "0",
            rounded_up(decor.theory.predicted_error(local, gossip) / best),
        ]
    )
    head = ["couple", "sigma_cdp", "sigma_cor", "predicted error"]
    return (
        "The same budget, spent otherwise (error relative to central DP, from the noise alone):\n"
    ) + table(head, rows)


def _draw(plan: decor.NoisePlan, options: argparse.Namespace) -> None:
    if options.plot is None:
        return
    from decor.results import plots

    against = [
        (str(a), plan.guarantee(options.delta, a, options.method))
        for a in plan.listed_adversaries()
    ]
    plots.plan_figure(
        plan, plan.guarantee(options.delta, method=options.method), against, options.plot
    )
    if not options.json:
        print(f"\nwrote {options.plot}")
