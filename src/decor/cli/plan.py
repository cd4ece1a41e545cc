"""`decor plan`: the noise that a privacy budget needs."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

import decor
from decor.errors import InputError
from decor.graph.gossip import Gossip
from decor.graph.user_values import in_order
from decor.learning.recipe import Recipe
from decor.privacy import baselines, theory
from decor.privacy.affordable import affordable_plan
from decor.privacy.edge_advice import EdgeAdvice, best_edges
from decor.privacy.gossip_choice import GossipChoice, choose_gossip, gossip_for
from decor.privacy.plan_answer import PlanAnswer
from decor.text import amount, rounded_up, table

from . import options as opt
from . import plan_output, plan_units, plan_users, values
from .json_output import write_json

_EXAMPLE = """example:
  decor plan --topology ring --users 16 --epsilon 3 --delta 1e-5 --steps 1000 --clip 1 \\
      --adversary curious"""

_SHOWN_ROUNDS = (1, 2, 3, 4, 6, 8, 12, 16)
_RATIOS = (1.0, 10.0, 100.0, 1000.0, 10000.0)
"""sigma_cor^2 / sigma_cdp^2 of the noise pairs that are compared with the plan."""


def add_to(commands: Any) -> None:
    parser = opt.add_command(
        commands, "plan", run, "compute the noise that a privacy budget needs", _EXAMPLE
    )
    opt.add_epsilon(parser)
    opt.add_adversary(parser)
    opt.add_graph(parser)
    opt.add_exposure(parser)
    pair = parser.add_argument_group(
        "noise (default: least predicted error; fix at most one of ratio, sigma-cdp, sigma-cor)"
    )
    ratio = "sigma_cor^2 / sigma_cdp^2: variance of shared noise relative to independent noise"
    pair.add_argument("--ratio", type=values.number, metavar="X", help=ratio)
    opt.add_fixed_noise(pair)
    edges = (
        "shared noise: uniform, or optimal for a level designed for each edge (default: uniform)"
    )
    pair.add_argument("--edges", default="uniform", metavar="NAME", help=edges)
    own = (
        "own noise: uniform, or per-user for a level designed for each user, with one for each "
        "edge (default: uniform)"
    )
    pair.add_argument("--own", default="uniform", metavar="NAME", help=own)
    gossip = parser.add_argument_group(
        "gossip (affects the default noise and the predicted errors, but not epsilon)"
    )
    for name in ("gossip_rounds", "accelerate"):
        opt.add_field(gossip, opt.field_of(Recipe, name))
    opt.add_method(parser)
    questions = parser.add_argument_group("questions")
    solve = (
        "steps: the largest number of steps that --epsilon pays for, with noise fixed by "
        "--sigma-cdp and either --sigma-cor or --ratio"
    )
    questions.add_argument("--solve", metavar="WHAT", help=solve)
    units = (
        "with --unit example, compare with a plan that protects all data of a user, side by side"
    )
    best = "name the N edges to add that reduce the predicted error most"
    questions.add_argument("--best-edges", type=values.whole, metavar="N", help=best)
    questions.add_argument("--compare-units", action="store_true", help=units)
    parser.add_argument("--save", metavar="FILE", help="save the plan to this file, as JSON")
    plan_users.add_to(parser)
    opt.add_output(parser)


def run(options: argparse.Namespace) -> None:
    # once for all: --compare-units, tables and the plan must be at the same delta
    options.delta = opt.delta_of(options)
    topology, exposure = opt.topology_of(options), opt.exposure_of(options)
    given = _gossip_of(options)
    if options.compare_units:
        _compare_units(options, topology, exposure, given)
        return
    if options.solve is None:
        answer = _calibrate(options, topology, exposure, given)
    else:
        answer = _solve_steps(options, topology, exposure)
        if not options.json:
            steps = amount(answer.plan.exposure.steps, "step")
            print(f"The budget pays for {steps} with this noise.\n")
    gossip = given or gossip_for(answer.plan)
    if options.save:
        answer.plan.save(options.save)
    if options.table:
        plan_users.write(answer, options.table)
    best = (
        _edge_advice(answer, gossip, options.best_edges) if options.best_edges is not None else None
    )
    more: dict[str, Any] = {"gossip_rounds": gossip.rounds}
    if best is not None:
        more["best_edges"] = best.to_json()
    plan_output.show(
        answer,
        options,
        lambda: f"{_noise_pairs(answer, gossip)}{_rounds_table(answer, options, gossip)}",
        more,
    )
    if best is not None and not options.json:
        print(f"\n{best}")
    # private with a rate, so that no plan has them: they are for this line alone
    counts = _counts(options.records, answer.plan.topology)
    if answer.plan.exposure.rate is not None and counts and not options.json:
        names = [answer.plan.topology.name(user) for user in range(len(counts))]
        print(f"\n{plan_output.local_step_line(answer.plan.exposure, counts, names)}")


def _calibrate(
    options: argparse.Namespace,
    topology: decor.Topology,
    exposure: decor.Exposure,
    gossip: Gossip | None,
) -> PlanAnswer:
    return PlanAnswer.calibrate(
        topology,
        exposure,
        opt.adversary_of(options),
        decor.Budget(options.epsilon, options.delta),
        ratio=options.ratio,
        sigma_cdp=options.sigma_cdp,
        sigma_cor=options.sigma_cor,
        edges=options.edges,
        own=options.own,
        method=options.method,
        # "auto" also limits the ratio, so that one absent user is cheap
        gossip_rounds="auto" if gossip is None else gossip.rounds,
        accelerate=False if gossip is None else gossip.accelerate,
        any_delta=options.any_delta,
    )


def _solve_steps(
    options: argparse.Namespace, topology: decor.Topology, exposure: decor.Exposure
) -> PlanAnswer:
    """The plan with the most steps that the budget pays for."""
    if options.solve != "steps":
        raise InputError(f"--solve {options.solve!r} is unknown; it solves for steps")
    if options.steps is not None:
        raise InputError("--solve steps computes the number of steps; drop --steps")
    pair = options.sigma_cor, options.ratio
    if options.sigma_cdp is None or pair.count(None) != 1:
        raise InputError(
            "--solve steps needs the noise: --sigma-cdp, and either --sigma-cor (0 for none) or "
            "--ratio"
        )
    cdp = options.sigma_cdp
    cor = cdp * math.sqrt(max(0.0, options.ratio)) if options.sigma_cor is None else pair[0]
    budget = decor.Budget(options.epsilon, options.delta)
    if not options.any_delta:
        budget.check_delta(exposure, topology)
    noise = decor.NoisePlan(topology, exposure, opt.adversary_of(options), cdp, cor)
    plan = affordable_plan(noise, budget, options.method)
    return PlanAnswer(plan, plan.guarantee(method=options.method))


def _compare_units(
    options: argparse.Namespace,
    topology: decor.Topology,
    exposure: decor.Exposure,
    gossip: Gossip | None,
) -> None:
    given = options.solve, options.save, options.table, options.plot
    # two plans side by side cannot share one file, one figure or one noise
    if any(given) or (options.ratio, options.sigma_cdp, options.sigma_cor).count(None) < 3:
        raise InputError(
            "--compare-units makes two plans with noise of their own; drop --solve, --save, "
            "--table, --plot, --ratio, --sigma-cdp and --sigma-cor"
        )
    compared = plan_units.rows(
        exposure,
        lambda each: _calibrate(options, topology, each, gossip),
        lambda plan: gossip or gossip_for(plan),
    )
    if options.json:
        write_json({"delta": options.delta, "units": [asdict(row) for row in compared]})
        return
    print(plan_units.text(compared))


def _counts(records: Any, topology: decor.Topology) -> list[int]:
    """Each user's number of examples, as typed; with a rate the plan itself forgets them."""
    if isinstance(records, Mapping):
        return in_order(records, topology, "records")
    if records is None:
        return []
    return [records] * topology.users if isinstance(records, int) else list(records)


def _edge_advice(answer: PlanAnswer, gossip: Gossip, count: int) -> EdgeAdvice:
    plan = answer.plan
    assert plan.budget is not None
    asked = plan.topology, plan.exposure, plan.adversary, plan.budget
    return best_edges(*asked, count, gossip)


def _gossip_of(options: argparse.Namespace) -> Gossip | None:
    """The gossip that was asked for; None is "auto", which depends on the plan."""
    if options.gossip_rounds in (None, "auto"):
        opt.refuse_weights_of_auto(options)
        return None
    gossip = Gossip(options.gossip_rounds, options.accelerate or False)
    if gossip.accelerate and gossip.rounds < 2:
        raise InputError(
            f"--accelerate changes nothing with --gossip-rounds {gossip.rounds}; ask for 2 rounds "
            "or more"
        )
    return gossip


def _choice(
    options: argparse.Namespace, topology: decor.Topology, exposure: decor.Exposure
) -> GossipChoice:
    budget = decor.Budget(options.epsilon, options.delta)
    setting = topology, exposure, opt.adversary_of(options), budget
    return choose_gossip(*setting, options.method, options.own)


def _rounds_table(answer: PlanAnswer, options: argparse.Namespace, gossip: Gossip) -> str:
    """Gossip rounds against predicted error and bytes, each with its own best noise pair.

    Own noise per user is not designed again for every number of rounds: all take the plan's.
    """
    plan = answer.plan
    if plan.topology.users > plan_output.MANY_USERS or plan.budget is None:
        return ""
    # also where rounds were given: the table marks those that auto would take
    choice = _choice(options, plan.topology, plan.exposure)
    # a yardstick and no promise: whether delta is too large was judged with the plan
    central = baselines.central(plan.topology, plan.exposure, plan.budget, any_delta=True)
    unit, is_own = theory.average_error(central), isinstance(plan.sigma_cdp, tuple)
    steps, cells = plan.exposure.steps, []
    for row in choice.rows:
        rounds = row.gossip.rounds
        if rounds not in (*_SHOWN_ROUNDS, gossip.rounds, choice.gossip.rounds):
            continue
        note = "auto" if row.gossip == choice.gossip else ("" if row.is_steady else "amplifies")
        error = theory.predicted_error(plan, row.gossip) if is_own else choice.perfect * row.error
        messages = f"{rounds * steps:,}"
        cells.append(
            [str(rounds), rounded_up(error / unit), messages, f"{4 * rounds * steps:,}", note]
        )
    header = ["rounds", "predicted error", "messages", "bytes per parameter", ""]
    text = (
        f"\n\nGossip rounds per step, {'all' if is_own else 'each'} with "
        f"{'the noise of this plan' if is_own else 'its own best noise pair'}, and what a user "
        f"sends to each neighbour in the run (float32):\n{table(header, cells)}"
    )
    if any("amplifies" in row for row in cells):
        text += "\n  amplifies: such rounds enlarge what a missing neighbour leaves"
    return text


def _noise_pairs(answer: PlanAnswer, gossip: Gossip) -> str:
    """A table of the plan, the baselines and other noise pairs, with their predicted errors."""
    many = answer.plan.topology.users > plan_output.MANY_USERS
    rows = []
    for row in answer.noise_pair_rows(gossip, () if many else _RATIOS):
        sigma = row.plan.sigma_cor
        if isinstance(sigma, float):
            correlated = rounded_up(sigma)
        else:
            # the uniform noise of the same total variance
            correlated = f"~{rounded_up(float(np.sqrt(np.mean(np.square(sigma)))))}"
        noise = plan_output.sigma_cdp_text(row.plan), correlated
        rows.append([row.name, *noise, rounded_up(row.relative_error)])
    header = ["noise pair", "sigma_cdp", "sigma_cor", "predicted error"]
    return (
        "Other noise pairs within the same budget (predicted error relative to central DP, from "
        f"the noise alone):\n{table(header, rows)}"
    )
