"""`decor up` of renewed federations, and of a run whose noise did not cancel; other runs are in
federation/test_local_federation.py.
"""

import asyncio
import json
import re
from functools import partial
from pathlib import Path

import pytest

import decor
from decor.cli.up import _check_ledgers as check_ledgers
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


SMALL = "federation new --task breast-cancer --users 3 --epsilon 2 --steps 5 --output trial"
RENEW = (
    "federation renew trial/federation.toml --output trial/next.toml --start trial/run/bonn "
    "--epsilon 1"
)


def test_a_renewed_federation_goes_on_with_the_ledgers_of_the_first(here):
    here(*SMALL.split())
    here("up", "trial/federation.toml", "--allow", "2.2")
    here(*RENEW.split())
    model = Path("trial/run/bonn/manifest.json").read_bytes()
    # the same folder would lose the first models, and another one what the data has spent
    refused = here("up", "trial/next.toml", check=2).stderr
    assert "holds another run" in refused and "--ledgers trial/run" in refused
    assert Path("trial/run/bonn/manifest.json").read_bytes() == model
    # 2 and 1 come to more than 2.2 against the adversary of the plan
    second = ["up", "trial/next.toml", "--output", "trial/run-2", "--ledgers", "trial/run"]
    assert "above 2.2" in here(*second, check=2).stderr
    assert not list(Path("trial/run-2").glob("*/manifest.json"))
    ledger = json.loads(here("ledger", "trial/run/bonn.ledger", "--json").stdout)
    assert [run["messages"] for run in ledger["runs"]] == [5]


def test_a_renewed_federation_begins_no_new_ledgers_of_the_same_data(here):
    here(*SMALL.split())
    here("up", "trial/federation.toml", "--allow", "5")
    here(*RENEW.split())
    second = ["up", "trial/next.toml", "--output", "trial/run-2"]
    refused = here(*second, "--ledgers", "trial/rum", check=2).stderr
    assert "no member has a ledger in 'trial/rum'" in refused
    refused = here(*second, check=2).stderr
    assert "goes on from an earlier run" in refused and "--ledgers" in refused
    assert not Path("trial/rum").exists() and not Path("trial/run-2").exists()
    # one is missing among others: its member may be new, or its ledger lost
    Path("trial/run/kiel.ledger").unlink()
    told = here(*second, "--ledgers", "trial/run", "--allow", "5").stderr
    assert "kiel has no ledger in 'trial/run', and a new one is made" in told
    ledger = json.loads(here("ledger", "trial/run/bonn.ledger", "--json").stdout)
    assert [run["messages"] for run in ledger["runs"]] == [5, 5]


def test_a_ledger_that_is_missing_among_others_is_told(here, capsys):
    here(*SMALL.split())
    output = Path("trial/run")
    output.mkdir()
    for name in ("bonn", "ulm"):
        (output / f"{name}.ledger").touch()
    check_ledgers(federation.Federation.read("trial/federation.toml"), output, None)
    assert "kiel has no ledger in 'trial/run', and a new one is made" in capsys.readouterr().err


def test_accuracies_stand_beside_that_of_always_the_same_guess(here):
    task = decor.tasks.breast_cancer(users=3)
    assert 0.5 < task.base_rate < 0.7
    here(*NEW.split())
    out = here("up", "trial/federation.toml").stdout
    assert f"test records; always the same guess, on {task.base_rate:.1%}." in out
    runs = [decor.Run.load(f"trial/run/{name}") for name in ("bonn", "ulm", "kiel")]
    assert {run.manifest["base_rate"] for run in runs} == {task.base_rate}
    words = "train --task breast-cancer --users 3 --epsilon 10 --steps 5 --learning-rate 0.1"
    out = here(*words.split(), "--output", "run").stdout
    assert re.search(rf"^  always the same guess +{task.base_rate:.6g}$", out, re.M)


def test_a_limit_is_given_to_new_ledgers_and_lasts(here):
    here(*SMALL.split())
    here("up", "trial/federation.toml", "--allow", "5")
    here(*RENEW.split())
    second = ["up", "trial/next.toml", "--output", "trial/run-2", "--ledgers", "trial/run"]
    refused = here(*second, "--allow", "50", check=2).stderr
    assert "was made with the limit 5, which nothing changes" in refused
    here(*second, "--allow", "5")
    assert not list(Path("trial/run-2").glob("*.ledger"))
    for user in ("bonn", "ulm", "kiel"):
        ledger = json.loads(here("ledger", f"trial/run/{user}.ledger", "--json").stdout)
        assert [run["messages"] for run in ledger["runs"]] == [5, 5]
        # more than each, less than their sum
        assert 2 < ledger["totals"][0]["epsilon"] < 3
    assert "--allow must be" in here(*second, "--allow", "0", check=2).stderr


def test_the_user_that_may_not_take_part_is_named_and_not_those_stopped_after_it(here):
    here(*SMALL.split())
    ledger, key = "trial/run/ulm.ledger", "trial/keys/ulm.key"
    Path("trial/run").mkdir()
    here("ledger", "new", ledger, "--identity", key, "--allow", "1")
    said = here("up", "trial/federation.toml", check=2).stderr
    (why,) = (line for line in said.splitlines() if not line.startswith("decor: note: "))
    assert why.startswith("decor: ulm stopped early: failed") and "above 1 " in why, said
