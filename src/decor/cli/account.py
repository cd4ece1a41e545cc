"""`decor account`: the epsilon of given noise, or of a saved plan."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

import decor
from decor.errors import InputError
from decor.privacy.plan_answer import PlanAnswer

from . import options as opt
from . import plan_output, plan_users

_EXAMPLE = """example:
  decor account --topology ring --users 16 --sigma-cdp 30 --sigma-cor 130 --delta 1e-5 \\
      --steps 1000 --adversary curious"""


def add_to(commands: Any) -> None:
    help = "compute the epsilon that given noise achieves"
    parser = opt.add_command(commands, "account", run, help, _EXAMPLE)
    saved = (
        "a plan saved by decor plan, instead of --sigma-cdp, --sigma-cor and the graph and "
        "exposure options; also sets the default adversary and delta"
    )
    parser.add_argument("--plan", metavar="FILE", help=saved)
    opt.add_fixed_noise(parser)
    opt.add_method(parser)
    opt.add_adversary(parser, planning=False)
    opt.add_graph(parser)
    opt.add_exposure(parser)
    plan_users.add_to(parser)
    opt.add_output(parser)


def run(options: argparse.Namespace) -> None:
    plan = _plan(options)
    # a saved plan is accounted at its own delta, so that the answer is the epsilon it was made for
    if options.delta is None and options.plan is not None and plan.budget is not None:
        options.delta = plan.budget.delta
    options.delta = opt.delta_of(options)
    guarantee = plan.guarantee(options.delta, method=options.method)
    answer = PlanAnswer(plan, guarantee)
    if options.table:
        plan_users.write(answer, options.table)
    plan_output.show(answer, options)


def _plan(options: argparse.Namespace) -> decor.NoisePlan:
    if options.plan is not None:
        opt.refuse_beside_plan(options)
        plan = decor.NoisePlan.load(options.plan)
        if options.adversary is None:
            return plan
        # the same noise against another adversary; its budget was for the old one
        return replace(plan, adversary=opt.adversary_of(options))
    if options.sigma_cdp is None or options.sigma_cor is None:
        raise InputError(
            "give --sigma-cdp and --sigma-cor (0 for none), or a saved plan with --plan FILE"
        )
    exposure, adversary = opt.exposure_of(options), opt.adversary_of(options)
    topology = opt.topology_of(options)
    return decor.NoisePlan(topology, exposure, adversary, options.sigma_cdp, options.sigma_cor)
