"""An own module through `task.toml` against the same built-in model: same numbers, same time?

    python benchmarks/own_module.py            # all rows, one JSON object a line

Two tasks of one data file, 16 users on a ring, batches of 64: `kind = "mlp"`, and `code =
"ownmodule:..."`, where the module is written with torch alone, as an nn.Sequential or as a class
with a forward of its own. `times` is the CPU time of a step over the built-in's, both in turn in
one process on one thread: the difference of a long and a short run, the median of several.
`difference` is the largest one between parameters of both runs after the short one, and
`without_noise` the same if no noise is drawn: its order depends on the path to the gradients.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import decor
from decor.learning.csv_table import write_columns
from decor.learning.model_code import hash_source
from decor.learning.task_file import TaskFile
from decor.learning.task_from_file import make_task

USERS, RECORDS, NUMBERS, HIDDEN = 16, 4_800, 40, 64
STEPS, REPEATS = (10, 810), 7
OWN = f"""import torch
from torch import nn


def sequential():
    torch.manual_seed(0)
    layers = nn.Linear({NUMBERS}, {HIDDEN}), nn.ReLU(), nn.Linear({HIDDEN}, 2)
    return nn.Sequential(*layers), nn.functional.cross_entropy


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear({NUMBERS}, {HIDDEN}), nn.Linear({HIDDEN}, 2)

    def forward(self, x):
        return self.outer(torch.relu(self.inner(x)))


def network():
    torch.manual_seed(0)
    return Network(), nn.functional.cross_entropy
"""
HEAD = """format = "decor-task-1"
name = "speed"

[data.label]
name = "sick"
classes = ["no", "yes"]
"""


def task_of(folder: Path, model: str) -> decor.Task:
    columns = "".join(
        f'\n[[data.columns]]\nname = "x{k}"\nkind = "number"\nlow = -3\nhigh = 3\n'
        for k in range(NUMBERS)
    )
    source = '\n[source]\nfile = "train.csv"\n'
    file = folder / "task.toml"
    file.write_text(f"{HEAD}{columns}\n[model]\n{model}\n{source}")
    return make_task(TaskFile.read(file), USERS)


def trained(
    task: decor.Task, unit: str, steps: int, noise: tuple[float, float] = (0.05, 0.3)
) -> tuple[float, decor.Run]:
    """CPU seconds of a run, and the run."""
    of_examples = {"unit": "example", "batch_size": 64, "records": task.counts}
    exposure = decor.Exposure(1.0, steps, **(of_examples if unit == "example" else {}))
    plan = decor.NoisePlan(decor.ring(USERS), exposure, decor.Adversary.curious(), *noise)
    batch = {} if unit == "example" else {"batch_size": 64}
    engine = decor.Vectorised(threads=1)
    began = time.process_time()
    run = decor.train(task, plan, learning_rate=0.1, engine=engine, evaluate_every=10**6, **batch)
    return time.process_time() - began, run


def compared(own: decor.Task, built_in: decor.Task, unit: str) -> dict[str, float]:
    differences = []
    for noise in ((0.05, 0.3), (0.0, 0.0)):  # compiles, too
        runs = [trained(task, unit, STEPS[0], noise)[1] for task in (own, built_in)]
        pairs = zip(*(run.models.values() for run in runs), strict=True)
        differences.append(max(float((a - b).abs().max()) for a, b in pairs))
    (few, many), steps_ms = STEPS, []
    for _ in range(REPEATS):
        seconds = [
            [trained(task, unit, steps)[0] for task in (own, built_in)] for steps in (few, many)
        ]
        steps_ms.append(1e3 * np.subtract(*seconds[::-1]) / (many - few))
    ours, theirs = np.median(steps_ms, axis=0)
    return {
        "own_ms": round(float(ours), 4),
        "built_in_ms": round(float(theirs), 4),
        # of neighbours in time: the load of the machine changes
        "times": round(float(np.median([own / other for own, other in steps_ms])), 2),
        "difference": differences[0],
        "without_noise": differences[1],
    }


def main() -> None:
    rng = np.random.default_rng(0)
    X, noise = rng.standard_normal((RECORDS, NUMBERS)), rng.standard_normal(RECORDS)
    columns = {f"x{k}": [f"{x:.4f}" for x in X[:, k]] for k in range(NUMBERS)}
    columns["sick"] = ["yes" if x > 0 else "no" for x in X[:, 0] + noise]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "ownmodule.py").write_text(OWN)
        sys.path.insert(0, name)
        write_columns(folder / "train.csv", columns)
        built_in = task_of(folder, f'kind = "mlp"\nhidden = [{HIDDEN}]')
        digest = hash_source("ownmodule:sequential")
        for function in ("sequential", "network"):
            own = task_of(folder, f'code = "ownmodule:{function}"\ncode_sha256 = "{digest}"')
            # the start is the built-in's: then all numbers must be the same
            start = built_in.model.state_dict().values()
            weights = dict(zip(own.model.state_dict(), start, strict=True))
            own.model.load_state_dict(weights)
            for unit in ("user", "example"):
                row = {"benchmark": "own module", "what": function, "unit": unit}
                print(json.dumps(row | compared(own, built_in, unit)), flush=True)


if __name__ == "__main__":
    main()
