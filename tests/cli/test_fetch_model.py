"""`decor fetch`: the final model from a neighbour that serves it."""

import json
import signal
import subprocess
from pathlib import Path

import pytest
from command_server import decor_command

from decor.net import status
from decor.net.identity import Identity
from decor.results.run import Run


@pytest.fixture
def serving(trained):
    """ulm's node, which has finished and serves its model."""
    paths = {
        "--identity": "keys/ulm.key",
        "--data": "data/ulm.npz",
        "--ledger": "run/ulm.ledger",
        "--output": "run/ulm",
        "--log": "serving.log",
    }
    words = [word for pair in paths.items() for word in pair]
    command = [*decor_command(), "node", "federation.toml", *words, "--serve"]
    with subprocess.Popen(
        command, cwd=trained, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        yield process
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            assert process.wait(240) == 0, process.stderr.read()


def fetch(*more):
    return "fetch", "federation.toml", "--identity", "keys/bonn.key", "--output", "got", *more


def test_a_served_model_is_fetched_without_data_or_budget(here, trained, serving, monkeypatch):
    monkeypatch.chdir(trained)
    ledger = (trained / "run" / "bonn.ledger").read_bytes()
    said = json.loads(here(*fetch("--test", "test.npz", "--json")).stdout)
    assert (said["user"], said["from"], said["output"]) == ("bonn", "ulm", "got")
    got, theirs = Run.load("got"), Run.load("run/ulm")
    assert got.models.keys() == theirs.models.keys()
    assert all(bool((got.models[k] == theirs.models[k]).all()) for k in theirs.models)
    # the whole plan's promise, whatever this user has sent
    assert said["epsilon"] == theirs.guarantee.epsilon and 0 < got.metrics["accuracy"] <= 1
    assert (trained / "run" / "bonn.ledger").read_bytes() == ledger
    # it goes on serving, to the next one too
    assert serving.poll() is None
    assert "from ulm" in here(*fetch()).stdout
    assert status.query(trained / "run" / "ulm.ledger.socket")["user"] == "ulm"


def test_where_nobody_serves_a_later_try_may_do(here, trained, monkeypatch):
    monkeypatch.chdir(trained)
    said = here(*fetch("--patience", "0.5"), check=1)
    assert "no neighbour has sent the final model in 0.5 s" in said.stderr
    assert "Ask one to start its node with --serve" in said.stderr
    assert "Traceback" not in said.stderr


def test_the_folder_of_another_run_is_not_replaced(here, trained, monkeypatch):
    monkeypatch.chdir(trained)
    Path("other").mkdir()
    Path("other/manifest.json").write_text('{"federation": "00"}')
    said = here("fetch", *fetch()[1:5], "other", "--patience", "0.5", check=2)
    assert "holds another run" in said.stderr


def test_only_a_user_of_the_federation_can_fetch(here, trained, monkeypatch, tmp_path):
    monkeypatch.chdir(trained)
    Identity.new().save(tmp_path / "rome.key")
    key = str(tmp_path / "rome.key")
    said = here("fetch", "federation.toml", "--identity", key, "--output", "rome", check=2)
    assert "key" in said.stderr and not Path("rome").exists()
