"""Three users of this machine train for two steps, as real processes: fails if an installation does
not work, and leaves what Python and numba have compiled on the way.
"""

import numpy as np
import torch

import decor
from decor.learning.gradients import clip, tiles


def compile_both_layouts() -> None:
    # whether a tile has examples as rows or as columns follows from where memory lies, which
    # differs from process to process
    block, factor = torch.ones(1, 2, 3), torch.ones(1, 3, dtype=torch.float64)
    tiles.scale_columns(block, factor)
    tiles.column_lengths(block)
    clip.scale(block, factor[:, :2])
    clip.lengths(block)


def main() -> None:
    compile_both_layouts()
    rng = np.random.default_rng(0)
    data = [(rng.normal(size=(40, 4)), rng.integers(0, 2, 40)) for _ in range(3)]
    task = decor.Task(decor.models.logistic(4), decor.losses.logistic, data)
    exposure = decor.Exposure(clip=1.0, steps=2, unit="example", batch_size=10, records=40)
    budget = decor.Budget(epsilon=3.0, delta=1e-5)
    plan = decor.calibrate(decor.ring(3), exposure, decor.Adversary.curious(), budget)
    run = decor.train(task, plan, learning_rate=0.1, engine=decor.Peers(timeout=60.0))
    if run.steps_taken != 2:
        raise SystemExit(f"the trial took {run.steps_taken} steps instead of 2")


# users are started by a new interpreter, which must not run this again
if __name__ == "__main__":
    main()
