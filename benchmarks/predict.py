"""How long `decor predict` takes for 100,000 records, from a CSV file to a CSV file.

    python benchmarks/predict.py            # all rows, one JSON object a line

`seconds` is from the first record to the written file, in a process that has everything loaded, and
`cpu_seconds` the processor time of that; the best of three counts. `process_seconds` is the whole
command, with the start of Python and torch, and `start_seconds` is the same command for two
records. `reach` is the target for `seconds`; `load` is that of the machine, with its `cores`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from decor.cli.main import main as decor_command
from decor.learning.csv_table import write_columns

RECORDS, REACH = 100_000, 2.0
NUMBERS, CATEGORIES = 10, ("north", "south", "east", "west")
HEAD = """format = "decor-task-1"
name = "speed"

[data.label]
name = "sick"
classes = ["no", "yes"]
"""


def task_text(model: str) -> str:
    """A task's file with ten numbers and a category."""
    columns = [
        f'\n[[data.columns]]\nname = "x{k}"\nkind = "number"\nlow = -3\nhigh = 3\n'
        for k in range(NUMBERS)
    ]
    ward = f'\n[[data.columns]]\nname = "ward"\nkind = "category"\nvalues = {[*CATEGORIES]}\n'
    source = '\n[source]\nfile = "train.csv"\n'
    return HEAD + "".join(columns) + ward + f"\n[model]\n{model}\n" + source


def table(records: int) -> dict[str, list[str]]:
    """Random records."""
    rng = np.random.default_rng(0)
    columns = {f"x{k}": [f"{x:.4f}" for x in rng.standard_normal(records)] for k in range(NUMBERS)}
    wards = [CATEGORIES[k] for k in rng.integers(0, len(CATEGORIES), records)]
    return {**columns, "ward": wards, "sick": ["no", "yes"] * (records // 2)}


def measured(folder: Path, model: str) -> dict[str, float]:
    """Seconds for all records, of the whole command, and of the command for one record."""
    (folder / "task.toml").write_text(task_text(model))
    train = f"train --task {folder}/task.toml --users 4 --epsilon 10 --steps 2 --json"
    run = folder / "run"
    silent(train.split() + ["--learning-rate", "0.1", "--output", str(run), "--overwrite"])
    best = cpu = np.inf
    for _ in range(3):
        began, used = time.perf_counter(), time.process_time()
        silent(words(folder, "new.csv"))
        best = min(best, time.perf_counter() - began)
        cpu = min(cpu, time.process_time() - used)
    whole, start = (process_seconds(folder, name) for name in ("new.csv", "two.csv"))
    return {
        "seconds": best,
        "cpu_seconds": cpu,
        "process_seconds": whole,
        "start_seconds": start,
        "load": os.getloadavg()[0],
        "cores": os.cpu_count() or 0,
    }


def words(folder: Path, data: str) -> list[str]:
    output = ["--output", str(folder / "out.csv"), "--overwrite", "--json"]
    return ["predict", str(folder / "run"), "--data", str(folder / data), *output]


def silent(arguments: list[str]) -> None:
    before, sys.stdout = sys.stdout, Path("/dev/null").open("w")
    try:
        assert decor_command(arguments) == 0
    finally:
        sys.stdout.close()
        sys.stdout = before


def process_seconds(folder: Path, data: str) -> float:
    began = time.perf_counter()
    command = [sys.executable, "-m", "decor", *words(folder, data)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def main() -> None:
    models = {"logistic": 'kind = "logistic"', "mlp": 'kind = "mlp"\nhidden = [64, 64]'}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, records in (("train.csv", 400), ("new.csv", RECORDS), ("two.csv", 2)):
            write_columns(folder / file, table(records))
        for kind, model in models.items():
            seconds = {each: round(s, 3) for each, s in measured(folder, model).items()}
            row = {"benchmark": "predict", "what": kind, "records": RECORDS, "columns": 11}
            print(json.dumps({**row, **seconds, "reach": REACH}), flush=True)


if __name__ == "__main__":
    main()
