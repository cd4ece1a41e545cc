"""The trackers of docs/training.md: its code is run with the real package, where there is one."""

import re
from pathlib import Path

import pytest

import decor

PAGE = Path(__file__).parent.parent.parent / "docs" / "training.md"


def run_block(library, tmp_path, monkeypatch):
    """Runs the page's code for a library; gives the names that it has made."""
    (code,) = re.findall(rf"^```py\n(import {library}\n.*?)^```", PAGE.read_text(), re.M | re.S)
    monkeypatch.chdir(tmp_path)
    task = decor.tasks.breast_cancer(users=4)
    plan = decor.calibrate(
        decor.ring(4),
        decor.Exposure(clip=1.0, steps=6),
        decor.Adversary.curious(),
        decor.Budget(10.0, 1e-5),
    )
    names = {"decor": decor, "task": task, "plan": plan}
    exec(compile(code, PAGE.name, "exec"), names)
    return names


@pytest.mark.filterwarnings("ignore")  # of the tracker's own
def test_mlflow_gets_every_public_metric(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri(f"file:{tmp_path / 'tracked'}")
    run = run_block("mlflow", tmp_path, monkeypatch)["run"]
    client = mlflow.MlflowClient()
    (tracked,) = client.search_runs(["0"])
    for name, values in run.history.items():
        logged = client.get_metric_history(tracked.info.run_id, name)
        assert [each.value for each in logged] == pytest.approx(values)
        assert [each.step for each in logged] == run.history["step"]
    assert tracked.data.params["guarantee"].startswith("Simulation with a known seed.")


@pytest.mark.filterwarnings("ignore")
def test_weights_and_biases_takes_the_metrics(tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="wandb is not installed")
    names = run_block("wandb", tmp_path, monkeypatch)
    assert names["tracker"].summary["loss"] > 0


def test_a_tracker_is_given_nothing_private():
    task = decor.tasks.breast_cancer(users=4)
    plan = decor.calibrate(
        decor.ring(4),
        decor.Exposure(clip=1.0, steps=6),
        decor.Adversary.curious(),
        decor.Budget(10.0, 1e-5),
    )
    seen = []
    engine = decor.Vectorised(seed=None, private_metrics=True)
    decor.train(
        task,
        plan,
        learning_rate=0.05,
        engine=engine,
        callbacks=lambda moment: seen.append((set(moment.public), set(moment.metrics))),
    )
    # the test examples of this task are public, the training loss is not
    allowed = {"step", "consensus", "test_loss", "accuracy"}
    assert all(public == allowed for public, _ in seen)
    assert all("loss" in every for _, every in seen)
