"""`decor graph`: what a graph is worth."""

from __future__ import annotations

import argparse
from typing import Any

import decor
from decor.graph import mixing, spectrum
from decor.privacy.answer import advice
from decor.privacy.leverage.coalition import Phase, exposed
from decor.privacy.leverage.solve import Noise
from decor.text import rounded_up, table

from . import options as opt
from .terminal import write_json

_GRAPH = """example:
  decor graph --topology torus --users 64 --plot torus.png"""

_CONNECTIVITY_LIMIT = 300
"""Users up to which vertex connectivity (a flow problem for every pair) is computed for a graph of
no known family.
"""


def add_commands(commands: Any) -> None:
    raw = argparse.RawDescriptionHelpFormatter
    graph = commands.add_parser(
        "graph", help="what a graph is worth", epilog=_GRAPH, formatter_class=raw
    )
    graph.set_defaults(run=run_graph)
    opt.add_graph(graph)
    graph.add_argument(
        "--ratio",
        type=opt.number,
        default=10.0,
        metavar="X",
        help="sigma_cor^2/sigma_cdp^2 of exposures (default: 10)",
    )
    graph.add_argument(
        "--save", metavar="FILE", help="write the graph: edge list, .gml or .graphml"
    )
    opt.add_output(graph)


def run_graph(options: argparse.Namespace) -> None:
    topology = opt.topology_of(options)
    if not (0 <= options.ratio < float("inf")):
        raise decor.InputError(
            f"--ratio must be a finite number of at least 0, not {options.ratio!r}"
        )
    if options.save:
        decor.write(topology, options.save)
    facts = _facts(topology, options.ratio)
    if options.json:
        write_json(facts)
    else:
        print(_page(topology, facts))
    if options.plot is not None:
        from decor.results import plots

        plots.graph_figure(
            topology, _exposures(topology, options.ratio), options.ratio, options.plot
        )
        if not options.json:
            print(f"\nwrote {options.plot}")


def _exposures(topology: decor.Topology, ratio: float) -> Any:
    return exposed((Phase(Noise(topology, ratio), 1.0),), 0).per_user


def _facts(topology: decor.Topology, ratio: float) -> dict[str, Any]:
    known = topology.family is not None or topology.users <= _CONNECTIVITY_LIMIT
    degrees = topology.degrees
    exposures = _exposures(topology, ratio)
    return {
        "users": topology.users,
        "edges": topology.edge_count,
        "components": topology.component_count,
        "least_degree": int(degrees.min()),
        "mean_degree": float(degrees.mean()),
        "largest_degree": int(degrees.max()),
        "algebraic_connectivity": spectrum.algebraic_connectivity(topology),
        "vertex_connectivity": spectrum.vertex_connectivity(topology) if known else None,
        "consensus_rate": mixing.consensus_rate(topology),
        "heterogeneity": mixing.heterogeneity(topology),
        "ratio": ratio,
        "largest_exposure": float(exposures.max()),
        "smallest_exposure": float(exposures.min()),
        "most_exposed": int(exposures.argmax()),
        **({"labels": list(topology.labels)} if topology.labels is not None else {}),
    }


def _page(topology: decor.Topology, facts: dict[str, Any]) -> str:
    vertex = facts["vertex_connectivity"]
    rows = [
        ["edges", f"{facts['edges']:,}", ""],
        [
            "degrees",
            f"{facts['least_degree']} to {facts['largest_degree']}",
            f"{facts['mean_degree']:.3g} on average",
        ],
        [
            "a(G)",
            rounded_up(facts["algebraic_connectivity"]),
            "algebraic connectivity: how much correlated noise is needed",
        ],
        [
            "vertex connectivity",
            "not computed" if vertex is None else str(vertex),
            "users whose loss disconnects the graph",
        ],
        [
            "p",
            rounded_up(facts["consensus_rate"]),
            "consensus rate: what one gossip round takes off disagreement",
        ],
        [
            "H_G(W)",
            rounded_up(facts["heterogeneity"]),
            "what one gossip round leaves of correlated noise",
        ],
        [
            "exposure",
            f"{rounded_up(facts['smallest_exposure'])} to {rounded_up(facts['largest_exposure'])}",
            f"of local DP's variance, at ratio {facts['ratio']:g}; {1 / topology.users:.4g} is "
            "central DP",
        ],
    ]
    return (
        f"{topology.description}\n"
        + table(["what", "value", "meaning"], rows)
        + "\n\n"
        + advice(topology, vertex)
    )
