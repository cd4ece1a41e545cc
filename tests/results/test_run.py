"""A saved run: complete, whatever stops the writing, and nothing that was not there."""

import json
import math
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import decor
from decor.errors import InputError
from decor.learning import losses, models
from decor.results.run import Run
from decor.results.stop_reason import StopReason

torch.set_num_threads(1)
BUDGET = decor.Budget(3.0, 1e-5)


def plan(steps=6, epsilon=3.0, users=3):
    exposure = decor.Exposure(clip=1.0, steps=steps)
    return decor.calibrate(
        decor.ring(users), exposure, decor.Adversary.eavesdropper(), decor.Budget(epsilon, 1e-5)
    )


AT_ONCE = StopReason("at once", "callback")
INTERRUPTED = StopReason("interrupted after step 4; go on with --resume", "interrupted")
UNFINISHED = StopReason("stopped after step 4 of 6", "unfinished")


def made(steps_taken=4, seed=0, stopped=UNFINISHED, **more):
    """A run by hand, with momentum's state and a metric that is not finite."""
    generator = torch.Generator().manual_seed(seed)
    parts = {"0.weight": (3, 2, 4), "0.bias": (3, 2), "deep/name.with.dots": (3, 1)}
    tensors = [
        {name: torch.randn(shape, generator=generator) for name, shape in parts.items()}
        for _ in range(2)
    ]
    tensors[0]["double"] = torch.randn(3, 2, generator=generator, dtype=torch.float64)
    steps = list(range(0, steps_taken + 1, 2))
    history = {
        "step": steps,
        "loss": [1 / (1 + k + seed) for k in steps],
        "accuracy": [0.1 + k / 10 for k in steps],
    }
    return Run(
        plan(**more),
        history,
        tensors[0],
        steps_taken,
        stopped,
        {"seed": seed, "task": {"name": "é"}},
        tensors[1],
    )


def same(one, two):
    tensors = all(
        a.keys() == b.keys()
        and all(torch.equal(a[k], b[k]) and a[k].dtype == b[k].dtype for k in a)
        for a, b in ((one.models, two.models), (one.velocity, two.velocity))
    )
    return (
        tensors
        and json.dumps(one.history) == json.dumps(two.history)
        and one.plan.to_json() == two.plan.to_json()
        and (one.steps_taken, one.stopped, one.manifest)
        == (two.steps_taken, two.stopped, two.manifest)
    )


@pytest.mark.parametrize(
    "run", [made(), made(6, stopped=None), replace(made(), velocity={}), made(0, stopped=AT_ONCE)]
)
def test_a_saved_run_is_loaded_as_it_was(run, tmp_path):
    run.save(tmp_path / "deep" / "run")
    again = Run.load(tmp_path / "deep" / "run")
    assert same(run, again)
    assert sorted(os.listdir(tmp_path / "deep" / "run")) == [
        "manifest.json",
        "metrics.jsonl",
        f"models-{run.steps_taken}.safetensors",
        "plan.json",
    ]
    again.save(str(tmp_path / "copy"))
    assert same(run, Run.load(str(tmp_path / "copy")))


def test_a_run_that_was_trained_is_loaded_as_it_was(tmp_path):
    X, y = (
        torch.randn(5, 4, generator=torch.Generator().manual_seed(0)),
        torch.tensor([0, 1, 1, 0, 1]),
    )
    task = decor.Task(models.logistic(4), losses.logistic, [(X, y)] * 3, test=(X, y))
    run = decor.train(
        task, plan(), learning_rate=0.5, momentum=0.9, callbacks=[lambda moment: moment.step >= 3]
    )
    assert run.stopped and run.velocity and run.steps_taken == 3
    run.save(tmp_path)
    assert same(run, Run.load(tmp_path))
    assert Run.load(tmp_path).metrics == run.metrics and run.metrics["step"] == 3
    end = decor.train(task, plan(), learning_rate=0.5, momentum=0.9, resume=Run.load(tmp_path))
    whole = decor.train(task, plan(), learning_rate=0.5, momentum=0.9)
    assert all(torch.equal(end.models[name], whole.models[name]) for name in whole.models)
    assert end.history == whole.history


def test_without_its_models_a_run_is_loaded_without_torch(tmp_path):
    saved = made()
    saved.save(tmp_path / "run")
    code = (
        "import sys; from decor.results.run import Run; run = Run.load(sys.argv[1], models=False); "
        "print(run.guarantee, run.steps_taken, run.models, 'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "run"], capture_output=True, text=True, timeout=240
    )
    assert done.stdout == f"{saved.guarantee} 4 {{}} False\n", done.stderr


def test_the_average_model_is_the_mean_over_users():
    run = made()
    assert all(
        torch.equal(value, run.models[name].mean(0)) for name, value in run.average_model.items()
    )


class Killed(BaseException):
    """What nothing may catch."""


def killed_at(monkeypatch, k):
    real, count = os.replace, 0

    def dying(source, target):
        nonlocal count
        count += 1
        if count > k:
            raise Killed
        real(source, target)

    monkeypatch.setattr(os, "replace", dying)


def killed_when_removing(monkeypatch):
    def dying(*_, **__):
        raise Killed

    monkeypatch.setattr(os, "unlink", dying)
    monkeypatch.setattr(os, "remove", dying)
    monkeypatch.setattr("pathlib.Path.unlink", dying)


FOLLOWING = {
    "the same run later": (made(2), made(4)),
    "the same run at its end": (made(4), made(6, stopped=None)),
    "the same step again": (
        made(4),
        replace(made(4), stopped=INTERRUPTED),
    ),
}

OTHERS = {
    "another run of as many steps": (made(4, seed=1), made(4, seed=2)),
    "another run that is longer": (made(2, seed=1), made(6, seed=2, stopped=None)),
    "another run that is shorter": (made(6, seed=1, stopped=None), made(2, seed=2)),
    "another plan": (made(4, epsilon=1.0), made(4, seed=3, epsilon=9.0)),
    "another plan, longer": (made(2, epsilon=1.0), made(4, epsilon=9.0)),
}


@pytest.mark.parametrize("name", FOLLOWING)
def test_a_folder_is_a_whole_run_wherever_saving_is_killed(name, tmp_path):
    """Either the run that was there or the new one, never parts of both."""
    old, new = FOLLOWING[name]
    done, k = False, -1
    while not done:
        k += 1
        folder = tmp_path / str(k)
        old.save(folder)
        with pytest.MonkeyPatch.context() as patch:
            killed_at(patch, k)
            try:
                new.save(folder)
                done = True
            except Killed:
                pass
        found = Run.load(folder)
        assert same(found, new) or (not done and same(found, old)), (
            f"killed at move {k}: a mixture of two runs"
        )
        new.save(folder)
        assert same(Run.load(folder), new), "and the next save mends everything"
        assert len(os.listdir(folder)) == 4, "what is old or half written is removed"
    assert k >= 3, "all moves were tried, and there were some"


@pytest.mark.parametrize("name", FOLLOWING)
def test_a_save_killed_while_it_removes_what_is_old_is_done(name, tmp_path):
    old, new = FOLLOWING[name]
    old.save(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        killed_when_removing(patch)
        try:
            new.save(tmp_path)
        except Killed:
            pass
    assert same(Run.load(tmp_path), new)


@pytest.mark.parametrize("name", OTHERS)
def test_another_run_is_only_replaced_on_request_and_never_mixed_with(name, tmp_path):
    old, new = OTHERS[name]
    done, k = False, -1
    while not done:
        k += 1
        folder = tmp_path / str(k)
        old.save(folder)
        with pytest.raises(InputError, match="holds another run.*overwrite=True"):
            new.save(folder)
        assert same(Run.load(folder), old)
        with pytest.MonkeyPatch.context() as patch:
            killed_at(patch, k)
            try:
                new.save(folder, overwrite=True)
                done = True
            except Killed:
                # no run, rather than parts of two
                with pytest.raises(InputError, match="manifest.json is missing"):
                    Run.load(folder)
        new.save(folder, overwrite=True)
        assert same(Run.load(folder), new) and len(os.listdir(folder)) == 4
    assert k >= 3


def test_a_first_save_that_is_killed_leaves_no_run(tmp_path):
    for k in range(4):
        with pytest.MonkeyPatch.context() as patch:
            killed_at(patch, k)
            with pytest.raises(Killed):
                made().save(tmp_path / str(k))
        with pytest.raises(InputError, match=r"manifest.json is missing"):
            Run.load(tmp_path / str(k))


GARBAGE = {
    "empty": lambda good: b"",
    "cut": lambda good: good[: len(good) // 2],
    "not text": lambda good: b"\xff\xfe\x00" + good,
    "another value": lambda good: b"[1, 2]\n",
    "null": lambda good: b"null\n",
    "empty object": lambda good: b"{}\n",
    "deep": lambda good: b"[" * 200_000,
    "zeros": lambda good: bytes(len(good)),
}


@pytest.mark.parametrize(
    "file", ["manifest.json", "plan.json", "metrics.jsonl", "models-4.safetensors"]
)
@pytest.mark.parametrize("garbage", GARBAGE)
def test_a_broken_file_is_named(file, garbage, tmp_path):
    if (garbage, file) == ("empty", "metrics.jsonl"):
        return  # a run without measurements
    made().save(tmp_path)
    path = tmp_path / file
    path.write_bytes(GARBAGE[garbage](path.read_bytes()))
    with pytest.raises(InputError) as problem:
        Run.load(tmp_path)
    assert str(tmp_path) in str(problem.value) and (
        file if file != "manifest.json" else "manifest"
    ) in str(problem.value)


@pytest.mark.parametrize(
    "file", ["manifest.json", "plan.json", "metrics.jsonl", "models-4.safetensors"]
)
def test_a_missing_file_is_named(file, tmp_path):
    made().save(tmp_path)
    (tmp_path / file).unlink()
    with pytest.raises(InputError, match=file):
        Run.load(tmp_path)


ROWS = {
    "a metric that is missing later": [{"step": 0, "loss": 1.0}, {"step": 2}],
    "text": [{"step": 0, "loss": "low"}],
    "a list": [{"step": 0, "loss": [1.0]}],
    "no step": [{"loss": 1.0}],
    "step of text": [{"step": "0", "loss": 1.0}],
}


@pytest.mark.parametrize("name", ROWS)
def test_rows_of_metrics_that_cannot_be_are_refused(name, tmp_path):
    made().save(tmp_path)
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS[name]))
    with pytest.raises(InputError, match="metrics.jsonl"):
        Run.load(tmp_path)


@pytest.mark.parametrize("value", [-1, 2.5, True, None, "4", 10**30, [4]])
def test_a_number_of_steps_that_cannot_be_is_refused(value, tmp_path):
    """Steps below zero would be counted as one, and half a step as an error elsewhere."""
    made().save(tmp_path)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    (tmp_path / "manifest.json").write_text(json.dumps(manifest | {"steps_taken": value}))
    with pytest.raises(InputError, match="manifest|steps"):
        Run.load(tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        "../secret.safetensors",
        "{folder}/secret.safetensors",
        "..",
        ".",
        "",
        "sub/../../secret.safetensors",
    ],
)
def test_a_models_file_outside_the_folder_is_not_followed(name, tmp_path):
    save_file({"models/0.weight": torch.ones(3, 1)}, tmp_path / "secret.safetensors")
    folder = tmp_path / "run"
    made().save(folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(
        json.dumps(manifest | {"models": name.format(folder=tmp_path)})
    )
    with pytest.raises(InputError, match="run"):
        Run.load(folder)


def test_nothing_is_unpickled(tmp_path):
    made().save(tmp_path)
    torch.save({"models/0.weight": torch.ones(3, 1)}, tmp_path / "models-4.safetensors")
    with pytest.raises(InputError):
        Run.load(tmp_path)


def test_what_a_manifest_says_of_its_own_does_not_replace_what_the_run_says(tmp_path):
    run = replace(
        made(),
        manifest={"models": "elsewhere", "steps_taken": 1, "stopped": None, "format": "other"},
    )
    run.save(tmp_path)
    found = Run.load(tmp_path)
    assert (
        found.steps_taken == 4
        and found.stopped == run.stopped
        and found.models.keys() == run.models.keys()
    )


def test_a_path_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("in the way")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(InputError, match="cannot be written to .*file"):
            made().save(path)
    for blocked in (
        "models-4.safetensors.new",
        "plan.json.new",
        "metrics.jsonl.new",
        "manifest.json.new",
        "manifest.json",
    ):
        folder = tmp_path / ("in the way of " + blocked)
        (folder / blocked / "full").mkdir(parents=True)
        with pytest.raises(InputError, match="cannot be written to .*in the way"):
            made().save(folder)
    with pytest.raises(InputError, match="is not a whole run folder|cannot be read"):
        Run.load(tmp_path / "file")
    with pytest.raises(InputError, match=r"nowhere' is not a run folder: manifest.json is missing"):
        Run.load(tmp_path / "nowhere")


def test_a_full_disk_is_said_in_a_sentence(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(InputError, match="No space left on device"):
        made().save(tmp_path)


def test_metrics_that_are_not_finite_are_null_and_come_back_as_nan(tmp_path):
    run = replace(
        made(),
        history={
            "step": [0, 2, 4],
            "loss": [1.0, math.inf, math.nan],
            "accuracy": [0.5, 0.25, -math.inf],
        },
    )
    run.save(tmp_path)
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[1]) == {"step": 2, "loss": None, "accuracy": 0.25}
    assert "NaN" not in "".join(lines) and "Infinity" not in "".join(lines)
    found = Run.load(tmp_path).history
    assert found["step"] == [0, 2, 4] and found["loss"][0] == 1.0
    assert all(math.isnan(value) for value in (*found["loss"][1:], found["accuracy"][2])) and found[
        "accuracy"
    ][:2] == [0.5, 0.25]


def test_a_run_promises_what_the_whole_plan_does_and_says_what_fewer_steps_would_cost():
    whole = plan(steps=50)
    run = replace(made(10), plan=whole)
    curve = [run.guarantee_at(steps=steps).epsilon for steps in (0, 1, 2, 10, 49, 50)]
    assert curve[0] == 0 and (np.diff(curve) > 0).all()
    assert curve[5] == run.guarantee.epsilon == pytest.approx(3.0, rel=1e-3)
    by_hand = replace(whole, exposure=replace(whole.exposure, steps=10)).guarantee(0.999e-5)
    found = run.guarantee_at(steps=10)
    assert (found.epsilon, found.delta, found.steps, found.in_advance) == (
        by_hand.epsilon,
        1e-5,
        10,
        True,
    )
    assert run.guarantee.steps == 50 and not run.guarantee.in_advance
    for steps in (-1, 51):
        with pytest.raises(InputError, match="steps must be from 0 to the plan's 50"):
            run.guarantee_at(steps=steps)


def test_no_steps_cost_nothing_for_anybody():
    for users in (3, 5):
        found = replace(made(0), plan=plan(users=users)).guarantee_at(steps=0)
        assert (found.epsilon, found.steps, found.exact) == (0.0, 0, True)
        assert found.per_user.tolist() == [0.0] * users
    free = replace(made(0), plan=replace(plan(), sigma_cdp=0.0, sigma_cor=0.0))
    assert free.guarantee_at(steps=0).epsilon == 0 and math.isinf(
        free.guarantee_at(steps=1).epsilon
    )


def test_a_run_promises_at_any_delta_and_against_any_adversary():
    run = made()
    everyone = decor.Adversary.everyone()
    assert (
        run.guarantee_at(1e-7).epsilon
        == run.plan.guarantee(0.999e-7).epsilon
        > run.guarantee.epsilon
    )
    against = run.guarantee_at(1e-5, everyone)
    assert against.epsilon == run.plan.guarantee(0.999e-5, everyone).epsilon > run.guarantee.epsilon
    assert str(against.adversary) == "everyone" and str(run.guarantee.adversary) == "eavesdropper"


def test_a_run_without_a_budget_asks_for_delta():
    run = replace(made(), plan=replace(plan(), budget=None))
    with pytest.raises(InputError, match="delta"):
        _ = run.guarantee
    assert run.guarantee_at(1e-5).epsilon > 0
