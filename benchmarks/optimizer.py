"""What Adam of each user does to noise that cancels between neighbours, beside SGD.

    python benchmarks/optimizer.py

Two measurements. "noise": without data, how much noise a run leaves in the average of all models,
over what the users' own noise alone would leave there (1 if the noise of all edges cancels), once
steps have settled. "accuracy": breast cancer, 16 users, the best of several step sizes, on the test
data; means of some seeds. Prints a table as Markdown.
"""

from __future__ import annotations

import argparse
import math
import warnings

import numpy as np
import torch

import decor

OPTIMIZERS = {
    "SGD": {},
    "SGD, momentum 0.9": {"momentum": 0.9},
    "Adam": {"optimizer": "adam"},
    "Adam, beta2 = 0.99": {"optimizer": decor.optimizer.Adam(beta2=0.99)},
    "Adam, beta2 = 0.9999": {"optimizer": decor.optimizer.Adam(beta2=0.9999)},
}
GRAPHS = {"ring": decor.ring(16), "torus": decor.torus(4, 4)}
PARAMETERS = 1500
RATES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)


def plan_of(graph: decor.Topology, ratio: float | None, steps: int) -> decor.NoisePlan:
    exposure = decor.Exposure(clip=1.0, steps=steps)
    budget = decor.Budget(3.0, 1e-5)
    return decor.calibrate(graph, exposure, decor.Adversary.curious(), budget, ratio=ratio)


def spread(plan: decor.NoisePlan, how: dict[str, object]) -> float:
    """How far a run without data moves the average, by coordinate."""
    model = torch.nn.Linear(PARAMETERS, 1, bias=False)
    federation = decor.simulate(plan, model, learning_rate=1.0, **how)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", decor.UnsharedWarning)
        for _ in federation:
            pass  # nothing is shared: what moves the models is noise
    moved = federation.average.weight - model.weight
    return float(moved.detach().std())


def noise_left(plan: decor.NoisePlan, how: dict[str, object]) -> float:
    """Noise in the average over that of the users' own noise alone."""
    own, edge = float(plan.sigma_cdp), float(plan.sigma_cor)
    alone = decor.NoisePlan(plan.topology, plan.exposure, plan.adversary, own, 0.0)
    degree = int(plan.topology.degrees[0])
    # Adam divides by the size of all noise, which is larger with that of edges
    scale = own / math.sqrt(own**2 + degree * edge**2) if "optimizer" in how else 1.0
    return spread(plan, how) / (spread(alone, how) * scale)


def accuracy(graph: decor.Topology, steps: int, how: dict[str, object], seeds: int) -> float:
    """Test accuracy of the average model with the best step size."""
    task = decor.tasks.breast_cancer(users=16)
    plan = plan_of(graph, None, steps)
    swept = decor.sweep(
        task,
        [plan],
        learning_rates=RATES,
        seeds=range(seeds),
        gossip_rounds=4,
        evaluate_every=steps,
        **how,
    )
    found = {}
    for run in swept.runs:
        rate = run.manifest["learning_rate"]
        found.setdefault(rate, []).append(run.metrics["accuracy"])
    return max(float(np.mean(each)) for each in found.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=4)
    options = parser.parse_args()
    ratios = (10.0, 100.0, 1000.0)
    heads = [f"noise, ratio {ratio:g}" for ratio in ratios] + ["accuracy"]
    for name, graph in GRAPHS.items():
        print(f"\n| {name} | {' | '.join(heads)} |\n|---|{'---|' * len(heads)}")
        for label, how in OPTIMIZERS.items():
            left = [noise_left(plan_of(graph, ratio, options.steps), how) for ratio in ratios]
            reached = accuracy(graph, options.steps, how, options.seeds)
            cells = [*(f"{each:.2f}" for each in left), f"{reached:.3f}"]
            print(f"| {label} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
