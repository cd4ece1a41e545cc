"""A folder while it is written: missing, incomplete, complete, and of another program."""

import json
import os
import time

import pytest

import decor
from decor.errors import InputError
from decor.results.live_status import FILE, LiveStatus
from decor.text import rounded_up
from decor.ui.watch import FolderWatch

from .client import post, running
from .statuses import status

PLAN = decor.calibrate(
    decor.ring(6), decor.Exposure(1.0, 40), decor.Adversary.curious(), decor.Budget(4.0, 1e-5)
)


def no_node(path):
    raise InputError(f"no node is running behind {path}")


def look(folder, ask=no_node):
    return FolderWatch(folder, ask).changes_since(None)


def row(step, accuracy=0.5):
    return {"step": step, "loss": 0.7, "accuracy": accuracy}


def save_run(folder, steps, stopped=None, rows=None, **manifest):
    """A run's folder without its models."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "plan.json").write_text(PLAN.to_json())
    (folder / "metrics.jsonl").write_text(
        "".join(json.dumps(r) + "\n" for r in rows or [row(0), row(steps)])
    )
    value = {
        "format": "decor-run-1",
        "steps_taken": steps,
        "stopped": stopped,
        "task": {"name": "digits"},
        **manifest,
    }
    (folder / "manifest.json").write_text(json.dumps(value))


def test_a_missing_or_empty_folder_is_reported(tmp_path):
    assert (
        look(tmp_path / "later")["kind"] == "nothing"
        and "no such folder yet" in look(tmp_path / "later")["said"]
    )
    assert "No run is here yet" in look(tmp_path)["said"]
    (tmp_path / "holiday.jpg").write_bytes(b"\xff\xd8")
    (tmp_path / "manifest.json").write_text('{"format": "another program\'s"}')
    assert look(tmp_path)["kind"] == "nothing"


def test_a_run_in_progress_shows_its_steps_its_epsilon_and_its_curve(tmp_path):
    live = LiveStatus(tmp_path / "run", PLAN)
    for step in (0, 10, 20):
        live._written = -1e9
        live.record(step, row(step, 0.5 + step / 100))
    state = look(tmp_path / "run")
    assert state["kind"] == "training" and not state["over"] and state["said"] == "In progress."
    assert (state["step"], state["steps"]) == (20, 40) and state["history"]["step"] == [0, 10, 20]
    assert state["history"]["accuracy"] == [0.5, 0.6, 0.7] and [
        m["name"] for m in state["metrics"]
    ] == ["accuracy", "loss"]
    assert (
        state["epsilon"] == rounded_up(PLAN.guarantee_on_grid(0.0, steps=20).epsilon)
        and state["budget"] == "4"
    )
    assert state["simulated"] and state["statement"].startswith(
        "Simulation with a known seed. With secret noise this plan is (4"
    )
    live.remove()
    private = LiveStatus(tmp_path / "private", PLAN, simulated=False)
    private.record(0, row(0))
    state = look(tmp_path / "private")
    assert not state["simulated"] and state["statement"].startswith(
        "(4, 1e-05)-SecLDP over 40 steps"
    ), "the whole plan's promise"
    assert os.listdir(tmp_path / "run") == []


def test_a_fast_run_is_not_written_at_every_measurement(tmp_path):
    live = LiveStatus(tmp_path, PLAN)
    for step in range(40):
        live.record(step, row(step))
    assert len(json.loads((tmp_path / FILE).read_text())["rows"]) == 1
    assert not list(tmp_path.glob("*.new"))


def test_a_resumed_run_shows_what_was_measured_before(tmp_path):
    live = LiveStatus(tmp_path, PLAN, {"step": [0, 5], "accuracy": [0.1, float("nan")]})
    live.record(10, {"step": 10, "accuracy": 0.3})
    assert look(tmp_path)["history"] == {"step": [0, 5, 10], "accuracy": [0.1, None, 0.3]}


def test_a_disk_error_does_not_stop_a_run(tmp_path):
    (tmp_path / "file").write_text("")
    live = LiveStatus(tmp_path / "file" / "run", PLAN)
    live.record(0, row(0))
    live.remove()


def test_a_finished_run_shows_how_it_ended(tmp_path):
    save_run(tmp_path / "whole", 40)
    assert look(tmp_path / "whole")["said"] == "Finished." and look(tmp_path / "whole")["over"]
    assert look(tmp_path / "whole")["epsilon"] == rounded_up(PLAN.guarantee_on_grid(0.0).epsilon)
    save_run(tmp_path / "early", 20, "diverged after step 20")
    state = look(tmp_path / "early")
    assert (
        state["over"]
        and state["said"] == "Stopped early: diverged after step 20."
        and state["step"] == 20
    )
    save_run(tmp_path / "kept", 20)
    assert not look(tmp_path / "kept")["over"]


def test_half_written_files_are_no_error(tmp_path):
    save_run(tmp_path, 20)
    whole = {
        name: (tmp_path / name).read_text()
        for name in ("manifest.json", "plan.json", "metrics.jsonl")
    }
    for name, text in whole.items():
        for cut in (0, 1, len(text) // 2, len(text) - 2):
            (tmp_path / name).write_text(text[:cut])
            assert look(tmp_path)["kind"] in ("nothing", "training")
        (tmp_path / name).unlink()
        assert look(tmp_path)["kind"] in ("nothing", "training")
        (tmp_path / name).write_text(text)
    for bad in (
        "[]",
        '{"format": "decor-live-1"}',
        '{"format": "decor-live-1", "plan": 3, "rows": 4}',
        "\0",
        "{",
    ):
        (tmp_path / FILE).write_text(bad)
        assert look(tmp_path)["step"] == 20
    (tmp_path / FILE).unlink()
    (tmp_path / "manifest.json").write_text(whole["manifest.json"].replace("20", '"many"'))
    assert look(tmp_path)["step"] == 0


def test_a_long_history_is_thinned_and_keeps_its_end(tmp_path):
    save_run(tmp_path, 40, rows=[row(min(40, k // 100)) for k in range(4001)])
    steps = look(tmp_path)["history"]["step"]
    assert len(steps) <= 1001 and steps[0] == 0 and steps[-1] == 40


def test_a_comparison_shows_the_methods_that_are_finished(tmp_path):
    (tmp_path / "outcomes").mkdir()
    manifest = {
        "format": "decor-comparison-1",
        "complete": False,
        "finished": ["central DP"],
        "task": {"name": "digits"},
    }
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    entries = [{"method": "central DP", "epsilon": 3.0, "final": {"accuracy": [0.5, 0.7, None]}}]
    (tmp_path / "outcomes" / "central-dp.json").write_text(json.dumps(entries))
    (tmp_path / "outcomes" / "half.json").write_text("[{")
    state = look(tmp_path)
    assert state["kind"] == "comparison" and state["said"] == "In progress: 1 methods are finished."
    assert [(r["method"], r["epsilon"], r["accuracy"]) for r in state["rows"]] == [
        ("central DP", "3", pytest.approx(0.6))
    ]
    (tmp_path / "manifest.json").write_text(json.dumps(manifest | {"complete": True}))
    assert look(tmp_path)["said"] == "Finished."


def test_a_folder_of_ledgers_is_a_federation(tmp_path):
    asked = []

    def read(ledger):
        asked.append(ledger)
        if ledger.stem == "ulm":
            no_node(ledger)
        return status(ledger.stem, "ulm")

    for folder in (tmp_path / "trial" / "run", tmp_path / "nodes"):
        folder.mkdir(parents=True)
        for name in ("bonn", "ulm"):
            (folder / f"{name}.ledger").write_bytes(b"")
        # decor up writes its ledgers below the folder of the trial
        for named in {folder, tmp_path / folder.relative_to(tmp_path).parts[0]}:
            state = look(named, read)
            assert (state["kind"], state["title"]) == ("federation", "heart")
            assert [(n["name"], n["state"]) for n in state["nodes"]] == [
                ("bonn", "working"),
                ("ulm", "unreachable"),
            ]
            assert state["source"] == str(named) and state["quiet"] is None
            assert {path.parent for path in asked} == {folder}
            asked.clear()


def test_quiet_is_how_long_ago_something_was_written(tmp_path):
    watch = FolderWatch(tmp_path, no_node)
    first = watch.changes_since(None)
    assert first["quiet"] is None
    save_run(tmp_path, 10)
    time.sleep(0.35)
    assert watch.changes_since(first["seen"])["step"] == 10
    again = watch.changes_since(None)
    assert 0 <= again["quiet"] < 60
    assert watch.changes_since(again["seen"])["unchanged"]


def test_no_page_can_name_a_folder(tmp_path):
    """The folder is named on the command line; a request cannot choose another one."""
    save_run(tmp_path / "secret", 10)
    with running(FolderWatch(tmp_path / "own", no_node)) as server:
        _, state = post(
            server, "watch", {"seen": None, "folder": str(tmp_path / "secret"), "path": "../secret"}
        )
        assert state["kind"] == "nothing" and state["source"] == str(tmp_path / "own")
    with running() as server:
        assert post(server, "watch", {"folder": str(tmp_path / "secret")})[1] == {"source": None}
