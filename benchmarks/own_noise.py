"""Own noise per user on the graph of a bank: how long it takes, and how good it is.

    python benchmarks/own_noise.py > benchmarks/own_noise.jsonl
    python benchmarks/own_noise.py --table benchmarks/own_noise.jsonl    # for docs/benchmarks.md

40 branches, some with two neighbours and the others with at least four, three colluders. Errors are
relative to central DP; `bound` is what no such plan can go below. CPU seconds on one thread.
"""

from __future__ import annotations

import json
import os
import sys
import time

for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"

BRANCHES, STEPS, COLLUDERS = 40, 400, 3
CASES = [(1, 0.12, 4, 2.5), (1, 0.25, 1, 5.6), (1, 0.12, 1, 5.6), (4, 0.12, 4, None)]
"""Weak branches, density of the other edges, gossip rounds (designed from two), reach."""


def bank(weak: int, density: float):
    """Weak branches come last."""
    import networkx as nx
    import numpy as np

    import decor

    rng, strong = np.random.default_rng(7), BRANCHES - weak
    graph = nx.gnp_random_graph(strong, density, seed=7)
    for branch in range(strong):
        while graph.degree(branch) < 4:
            other = int(rng.integers(strong))
            if other != branch:
                graph.add_edge(branch, other)
    for branch in range(strong, BRANCHES):
        for other in rng.choice(strong, 2, replace=False):
            graph.add_edge(branch, int(other))
    return decor.from_networkx(graph)


def measured(weak: int, density: float, rounds: int, reach: float | None) -> dict:
    import warnings

    import decor
    from decor.graph.gossip import Gossip
    from decor.privacy import own_noise_design, theory

    topology, budget = bank(weak, density), decor.Budget(3.0, 1e-5)
    exposure, adversary = decor.Exposure(1.0, STEPS), decor.Adversary.colluding(COLLUDERS)
    gossip = Gossip(rounds, "designed" if rounds > 1 else False)
    options = {"gossip_rounds": rounds, "accelerate": gossip.accelerate}
    warnings.simplefilter("ignore")
    bounds, design = [], own_noise_design.design_own_noise

    def noted(*arguments):
        made = design(*arguments)
        bounds.append(made.bound)
        return made

    own_noise_design.design_own_noise = noted
    began = time.process_time()
    plan = decor.calibrate(topology, exposure, adversary, budget, own="per-user", **options)
    seconds = time.process_time() - began
    own_noise_design.design_own_noise = design
    uniform = decor.calibrate(topology, exposure, adversary, budget, **options)
    central = theory.average_error(decor.baselines.central(topology, exposure, budget))
    error, before = (theory.predicted_error(each, gossip) / central for each in (plan, uniform))
    assert plan.guarantee().epsilon <= budget.epsilon
    return {
        "benchmark": "own noise",
        "weak": weak,
        "edges": topology.edge_count,
        "rounds": rounds,
        "error": round(error, 3),
        "bound": round(bounds[0] / central, 3),
        "uniform": round(before, 1),
        "reach": reach,
        "cpu_seconds": round(seconds, 1),
    }


def table(rows: list[dict]) -> str:
    lines = [
        "| weak branches | edges | gossip rounds | one level for all | own noise per user | bound "
        "| reach | CPU seconds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        cells = [row[key] for key in ("weak", "edges", "rounds", "uniform", "error", "bound")]
        reach = "" if row["reach"] is None else str(row["reach"])
        missed = " (missed)" if reach and row["error"] > row["reach"] else ""
        cells += [reach + missed, row["cpu_seconds"]]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--table"]:
        with open(sys.argv[2], encoding="utf-8") as file:
            print(table([json.loads(line) for line in file]))
    else:
        for case in CASES:
            print(json.dumps(measured(*case)), flush=True)
