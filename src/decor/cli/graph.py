"""`decor graph`: properties of a graph that matter for privacy and for learning."""

from __future__ import annotations

import argparse
from typing import Any

import decor
from decor.graph import laplacian, mixing
from decor.privacy.edge_advice import EdgeAdvice, best_edges
from decor.privacy.leverage.coalition import Phase, worst_leverages
from decor.privacy.leverage.solve import ScaledCovariance
from decor.privacy.plan_answer import advice
from decor.text import rounded_up, table

from . import options as opt
from . import values
from .json_output import write_json

_EXAMPLE = """example:
  decor graph --topology torus --users 64 --plot torus.png"""

_STEPS = 1000
"""Steps of the plan for which edges to add are named: clip and budget do not matter to them."""
_CONNECTIVITY_LIMIT = 300
"""Users up to which vertex connectivity is computed: it is a flow problem for every pair. In a
named family it is known.
"""


def add_to(commands: Any) -> None:
    help = "show a graph's connectivity, how fast it mixes, and how exposed its users are"
    parser = opt.add_command(commands, "graph", run, help, _EXAMPLE)
    opt.add_graph(parser)
    ratio = (
        "sigma_cor^2 / sigma_cdp^2: variance of shared noise relative to independent noise, for "
        "users' exposure (default: 10)"
    )
    parser.add_argument("--ratio", type=values.number, default=10.0, metavar="X", help=ratio)
    best = (
        "name the N edges to add that reduce the predicted error of a plan for 1,000 steps against "
        "a curious user most (decor plan --best-edges does so for any plan)"
    )
    parser.add_argument("--best-edges", type=values.whole, metavar="N", help=best)
    save = "save the graph to this file: .gml, .graphml, or else an edge list"
    parser.add_argument("--save", metavar="FILE", help=save)
    opt.add_output(parser)


def run(options: argparse.Namespace) -> None:
    topology, ratio = opt.topology_of(options), options.ratio
    # written so that NaN is refused
    if not (0 <= ratio < float("inf")):
        raise decor.InputError(f"--ratio must be a finite number of at least 0, not {ratio!r}")
    # before the slow part, so that a large graph is saved even if that is interrupted
    if options.save:
        decor.write(topology, options.save)
    # one phase of unit weight: each user's leverage in one step
    exposures = worst_leverages((Phase(ScaledCovariance(topology, ratio), 1.0),), 0).per_user
    facts = _facts(topology, ratio, exposures)
    best = None if options.best_edges is None else _best_edges(topology, options.best_edges)
    if options.json:
        write_json(facts if best is None else facts | {"best_edges": best.to_json()})
    else:
        print(_text(topology, facts))
        if best is not None:
            print(f"\n{best}")
    if options.plot is not None:
        from decor.results import plan_figures

        plan_figures.graph_figure(topology, exposures, ratio, options.plot)
        if not options.json:
            print(f"\nwrote {options.plot}")


def _best_edges(topology: decor.Topology, count: int) -> EdgeAdvice:
    # a user without others has nobody who could be curious
    adversary = decor.Adversary.curious() if topology.users > 1 else decor.Adversary.eavesdropper()
    return best_edges(
        topology, decor.Exposure(1.0, _STEPS), adversary, decor.Budget(1.0, 1e-6), count
    )


def _facts(topology: decor.Topology, ratio: float, exposures: Any) -> dict[str, Any]:
    # a family has a closed form, however large the graph
    known = topology.family is not None or topology.users <= _CONNECTIVITY_LIMIT
    degrees = topology.degrees
    return {
        "users": topology.users,
        "edges": topology.edge_count,
        "components": topology.component_count,
        "least_degree": int(degrees.min()),
        "mean_degree": float(degrees.mean()),
        "largest_degree": int(degrees.max()),
        "algebraic_connectivity": laplacian.algebraic_connectivity(topology),
        "vertex_connectivity": laplacian.vertex_connectivity(topology) if known else None,
        "consensus_rate": mixing.consensus_rate(topology),
        "heterogeneity": mixing.heterogeneity(topology),
        "ratio": ratio,
        "largest_exposure": float(exposures.max()),
        "smallest_exposure": float(exposures.min()),
        "most_exposed": int(exposures.argmax()),
        **({"labels": list(topology.labels)} if topology.labels is not None else {}),
    }


def _text(topology: decor.Topology, facts: dict[str, Any]) -> str:
    vertex = facts["vertex_connectivity"]
    degrees = f"{facts['least_degree']} to {facts['largest_degree']}"
    low, high = (rounded_up(facts[f"{end}_exposure"]) for end in ("smallest", "largest"))
    rows = {
        "edges": (f"{facts['edges']:,}", ""),
        "degrees": (degrees, f"{facts['mean_degree']:.3g} on average"),
        "a(G)": (
            rounded_up(facts["algebraic_connectivity"]),
            "algebraic connectivity: the larger, the less correlated noise is needed",
        ),
        "vertex connectivity": (
            "not computed" if vertex is None else str(vertex),
            "users whose loss disconnects the graph",
        ),
        "p": (
            rounded_up(facts["consensus_rate"]),
            "consensus rate: the share of squared disagreement one gossip round removes",
        ),
        "H_G(W)": (
            rounded_up(facts["heterogeneity"]),
            "the share of correlated noise one gossip round leaves",
        ),
        "exposure": (
            f"{low} to {high}",
            f"leverage relative to local DP, at ratio {facts['ratio']:g}; central DP has "
            f"{1 / topology.users:.4g}",
        ),
    }
    lines = table(["property", "value", "meaning"], [[name, *row] for name, row in rows.items()])
    return f"{topology.description}\n{lines}\n\n{advice(topology, vertex)}"
