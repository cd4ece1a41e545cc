"""A newcomer's first hour, from the README alone: tables of their own, six commands, predictions."""

import csv
import re
import shlex
import time
from pathlib import Path

import numpy as np
from own_tables import write

README = Path(__file__).parent.parent / "README.md"
MINUTES = 20
"""What a newcomer has for all of it; reading is not counted."""


def table(count, seed):
    """Records with words, gaps, a value nobody listed, and labels that are not known."""
    rng = np.random.default_rng(seed)
    age = rng.uniform(18, 99, count)
    pressure = rng.normal(135, 20, count)
    ward = rng.choice(["medical", "surgical", "intensive care"], count, p=[0.6, 0.3, 0.1])
    risk = age / 20 + pressure / 20 + 1.5 * (ward == "intensive care") + rng.normal(0, 0.5, count)
    label = np.where(risk > np.median(risk), "yes", "no")

    def with_gaps(values, every, gap=""):
        return [gap if k % every == seed else value for k, value in enumerate(values)]

    return {
        "age": with_gaps([f"{value:.0f}" for value in age], 31),
        "pressure": with_gaps([f"{value:.1f}" for value in pressure], 11),
        "ward": with_gaps(ward.tolist(), 83, "dental, children"),
        "smoker": rng.choice(["yes", "no", ""], count).tolist(),
        "readmitted": with_gaps(label.tolist(), 61, "unknown"),
    }


def test_the_readme_leads_from_a_table_of_ones_own_to_predictions(here, tmp_path):
    write(tmp_path / "bonn.csv", table(320, 0))
    # another order of columns, and the separator of a German spreadsheet
    write(tmp_path / "ulm.csv", dict(reversed(table(180, 1).items())), ";")
    write(tmp_path / "kiel.csv", table(90, 2))
    write(tmp_path / "sample.csv", table(200, 3))
    section = re.search(
        r"^## Your own CSV\n.*?^```console\n(.*?)^```", README.read_text(), re.M | re.S
    )
    lines = section[1].splitlines()
    assert len(lines) == 6 and all(line.startswith("$ decor ") for line in lines)
    began = time.monotonic()
    printed = {}
    for line in lines:
        _, command, *rest = shlex.split(line[2:])
        printed[command] = here(command, *rest).stdout
    assert time.monotonic() - began < 60 * MINUTES
    assert "always the same guess" in printed["compare"]
    for picture in ("report.html", "figures/privacy-utility.png"):
        assert (tmp_path / "cost" / picture).stat().st_size > 5_000
    assert "Nothing was sent or spent" in printed["rehearse"]
    assert all((tmp_path / f"trial/run/{user}").is_dir() for user in ("bonn", "ulm", "kiel"))
    with (tmp_path / "predictions.csv").open() as file:
        predicted = [row["prediction"] for row in csv.DictReader(file)]
    known = table(200, 3)["readmitted"]
    right = np.mean([a == b for a, b in zip(predicted, known, strict=True) if b != "unknown"])
    # half would be a guess; the noise of one run may cost much of what can be learnt
    assert set(predicted) <= {"no", "yes"} and right > 0.3
