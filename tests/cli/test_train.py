"""`decor train`: runs, signals, checkpoints and bad input."""

import json
import signal
import time

import pytest
import torch

import decor

from .commands import TRAIN, run, start, wait_for


def test_train_answers_as_the_library_does(tmp_path):
    answer = json.loads(run(*TRAIN, "--output", tmp_path / "run", "--json").stdout)
    task = decor.tasks.breast_cancer(users=16, seed=0)
    exposure = decor.Exposure(clip=1.0, steps=40)
    plan = decor.calibrate(
        decor.ring(16), exposure, decor.Adversary.eavesdropper(), decor.Budget(10.0, 1e-5)
    )
    own = decor.train(task, plan, learning_rate=0.1, engine=decor.Vectorised(seed=0))
    assert answer["metrics"] == own.metrics and answer["steps_taken"] == 40
    assert answer["epsilon"] == own.guarantee.epsilon
    saved = decor.Run.load(tmp_path / "run")
    assert all(torch.equal(saved.models[name], own.models[name]) for name in own.models)
    assert saved.guarantee.epsilon == own.guarantee.epsilon <= 10
    assert (tmp_path / "run" / "report.html").stat().st_size > 10_000


def test_a_saved_plan_is_trained_as_it_is(here, ask, tmp_path):
    here(*"plan --users 16 --epsilon 3 --steps 20 --save".split(), tmp_path / "plan.json")
    line = "train --task breast-cancer --learning-rate 0.1 --plan"
    answer = ask(line, tmp_path / "plan.json", "--output", tmp_path / "run")
    plan = decor.NoisePlan.load(tmp_path / "plan.json")
    assert (answer["sigma_cdp"], answer["steps_taken"]) == (plan.sigma_cdp, 20)
    assert answer["epsilon"] == plan.guarantee(0.999e-5).epsilon and answer["simulated"] is True
    assert answer["statement"].startswith("Simulation") and "(3" in answer["statement"]


def test_an_interrupted_run_is_valid_and_resumes_to_the_same_end(here, tmp_path):
    line = "--steps 10000 --learning-rate 0.01 --evaluate-every 50 --momentum 0.5"
    long = [*TRAIN[:11], *line.split()]
    process = start(*long, "--output", tmp_path / "run", "--checkpoint-every", 0.02)
    wait_for(tmp_path / "run" / "manifest.json", process)
    while not json.loads((tmp_path / "run" / "manifest.json").read_text())["steps_taken"]:
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 130 and "Traceback" not in err
    stopped = decor.Run.load(tmp_path / "run")
    assert 0 < stopped.steps_taken < 10_000 and stopped.stopped.cause == "interrupted"
    assert "--resume" in stopped.stopped
    assert stopped.guarantee.epsilon == pytest.approx(10, rel=1e-3)
    assert stopped.guarantee.steps == 10_000
    assert f"stopped after {stopped.steps_taken:,} of 10,000 steps" in out
    here(*long, "--output", tmp_path / "run", "--resume")
    here(*long, "--output", tmp_path / "whole")
    resumed, whole = decor.Run.load(tmp_path / "run"), decor.Run.load(tmp_path / "whole")
    assert resumed.stopped is None and resumed.steps_taken == 10_000
    assert all(torch.equal(resumed.models[name], whole.models[name]) for name in whole.models)
    assert resumed.history == whole.history


def test_a_killed_run_leaves_its_last_checkpoint(tmp_path):
    line = "--steps 200000 --learning-rate 0.01 --evaluate-every 20"
    long = [*TRAIN[:11], *line.split()]
    process = start(*long, "--output", tmp_path / "run", "--checkpoint-every", 0)
    wait_for(tmp_path / "run" / "manifest.json", process)
    time.sleep(0.3)
    process.kill()
    process.communicate()
    left = decor.Run.load(tmp_path / "run")
    assert left.stopped is not None and left.steps_taken % 20 == 0 and left.guarantee.epsilon < 10


def test_tensorboard_gets_every_metric(here, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    here(*TRAIN, "--output", tmp_path / "run", "--tensorboard", tmp_path / "board")
    events = EventAccumulator(str(tmp_path / "board"))
    events.Reload()
    saved = decor.Run.load(tmp_path / "run")
    for name in ("loss", "accuracy", "consensus"):
        logged = [(e.step, e.value) for e in events.Scalars(name)]
        expected = list(zip(saved.history["step"], saved.history[name], strict=True))
        assert len(logged) == len(expected)
        for (step, value), (own_step, own_value) in zip(logged, expected, strict=True):
            assert step == own_step and value == pytest.approx(own_value, rel=1e-6)


@pytest.mark.filterwarnings("default::decor.errors.DivergenceWarning")
def test_divergence_is_reported_with_the_way_out(here, tmp_path):
    arguments = [*TRAIN[:-1], "1e30", "--output", tmp_path / "run"]
    done = here(*arguments)
    assert "diverged" in done.stdout and "lower the learning rate" in done.stdout


BAD = [
    ("--task nonsense --epsilon 1 --learning-rate 1", "breast-cancer"),
    ("--learning-rate 1", "--epsilon"),
    ("--epsilon 1", "--learning-rate"),
    ("--epsilon 1 --learning-rate -1", "learning_rate must be"),
    ("--epsilon 1 --learning-rate 1 --users 500", "500"),
    ("--epsilon 1 --learning-rate 1 --batch-size 64", "user 0"),
    ("--epsilon 1 --learning-rate 1 --unit example", "--batch-size"),
    ("--epsilon 1 --learning-rate 1 --records 3", "--records"),
    ("--epsilon 1 --learning-rate 1 --engine magic", "magic"),
    ("--epsilon 1 --learning-rate 1 --processes 2", "--engine process-group"),
    ("--epsilon 1 --learning-rate 1 --device cuda", "cpu"),
    ("--epsilon 1 --learning-rate 1 --schedule sometimes", "cosine"),
    ("--epsilon 1 --learning-rate 1 --momentum 1", "momentum"),
    ("--plan no-such-file --learning-rate 1", "no-such-file"),
    ("--plan x --epsilon 1 --learning-rate 1", "--epsilon"),
]


@pytest.mark.parametrize(("line", "words"), BAD, ids=[line for line, _ in BAD])
def test_bad_input_is_one_sentence_and_exit_code_2(here, line, words, tmp_path):
    train = "train --task breast-cancer --output".split()
    assert words in here(*train, tmp_path / "out", *line.split(), check=2).stderr


def test_a_disconnected_graph_is_refused_unless_it_is_allowed(here, tmp_path):
    (tmp_path / "parts.txt").write_text("0 1\n2 3\n")
    line = "train --task breast-cancer --epsilon 10 --steps 5 --adversary eavesdropper"
    train = [*line.split(), "--learning-rate", 0.1, "--output", tmp_path / "run"]
    train += ["--graph", tmp_path / "parts.txt"]
    assert "allow_disconnected" in here(*train, check=2).stderr
    here(*train, "--allow-disconnected")


def test_a_run_is_neither_overwritten_nor_resumed_by_accident(here, tmp_path):
    train = [*TRAIN, "--output", tmp_path / "run"]
    assert "nothing to resume" in here(*train, "--resume", check=2).stderr
    here(*train)
    assert "--overwrite" in here(*train, check=2).stderr
    here(*train, "--overwrite")
