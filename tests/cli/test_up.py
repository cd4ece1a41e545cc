"""`decor up` and `decor status` of a run whose noise did not cancel; other runs are in
federation/test_local_federation.py.
"""

import asyncio
import json
import re
from functools import partial
from pathlib import Path

import pytest

from decor.federation import federation, user_processes
from decor.federation.federation import build_tasks

NEW = (
    "federation new --task breast-cancer --users 3 --epsilon 10 --steps 5 --quorum 0.5 "
    "--patience 0 --timeout 5 --output trial"
)
SAVED = [Path("trial/run") / name / "manifest.json" for name in ("bonn", "ulm")]


def planted(give_tasks, folder, *arguments):
    """The tasks, after a fault was planted where users are started."""
    run_node = user_processes.run_node

    async def late(node, *more):
        # the others finish without it, and wait for it for the timeout
        while node.number == 2 and not all((folder / path).exists() for path in SAVED):
            await asyncio.sleep(0.05)
        return await run_node(node, *more)

    user_processes.run_node = late
    return give_tasks(*arguments)


@pytest.fixture
def trial(here, monkeypatch, tmp_path):
    """A federation of three, one of which comes when the others have finished."""
    here(*NEW.split())
    late = partial(planted, build_tasks, tmp_path)
    monkeypatch.setattr(federation, "build_tasks", late)
    return here


def noise_left(lines):
    return [float(found[1]) for found in re.finditer(r"noise left: ([\d.]+) x planned", lines)]


def test_noise_that_did_not_cancel_is_told_with_its_size(trial):
    done = trial("up", "trial/federation.toml")
    # exit code 4 of a user is an end in good order
    assert "had finished its work" not in done.stderr, done.stderr
    rows = {line.split()[0]: line.split()[1:3] for line in done.stdout.splitlines() if line}
    assert rows["bonn"] == ["5", "0"] and rows["kiel"] == ["0", "5"]
    assert re.search(r"^bonn: noise left: [\d.]+ x planned", done.stdout, re.M)
    assert re.search(r"^ulm: noise left: [\d.]+ x planned", done.stdout, re.M)
    told = noise_left(done.stdout)
    # bonn and ulm have each an edge to kiel, and five steps without it
    assert len(told) == 2 and min(told) > 1

    shown = trial("status", "trial/run")
    assert noise_left(shown.stdout) == told
    nodes = json.loads(trial("status", "trial/run", "--json").stdout)["nodes"]
    left = {node["user"]: node["noise_left"] for node in nodes}
    assert left["bonn"] == pytest.approx(told[0], rel=1e-3) and left["kiel"] == 1

    # a second time nothing is computed: each user has its model in its ledger
    before = json.loads(trial("ledger", "trial/run/bonn.ledger", "--json").stdout)
    again = trial("up", "trial/federation.toml", "--json")
    said = json.loads(again.stdout)
    assert [user["noise_left"] for user in said["users"]] == [left[n] for n in rows if n in left]
    assert json.loads(trial("ledger", "trial/run/bonn.ledger", "--json").stdout) == before
