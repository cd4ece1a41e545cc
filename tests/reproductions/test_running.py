"""Cells in processes of their own: kept when finished, never lost, never done twice."""

import contextlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time

import pytest

from decor.errors import DecorError, InputError
from decor.reproductions import running
from decor.reproductions.study import OURS, Cell, Study, one_panel, row


def point(x, log):
    with open(log, "a") as file:
        file.write(f"{x} {os.getpid()}\n")
    return [row(OURS, "decor", "DECOR", None, [x, x + 2], x=x)]


def fails(log):
    raise InputError("this cell cannot be")


def dies(log):
    os.kill(os.getpid(), signal.SIGKILL)


def study(tmp_path, *more, points=3):
    cells = [
        Cell(f"point {x}", point, {"x": float(x), "log": str(tmp_path / "log")})
        for x in range(points)
    ]
    return Study("s", "S", "?", (*cells, *more), "x", "x", "value", one_panel("all"))


def calls(tmp_path):
    return [line.split() for line in (tmp_path / "log").read_text().splitlines()]


@pytest.mark.parametrize("jobs", [1, 2])
def test_rows_come_in_the_order_of_the_cells_and_are_kept(tmp_path, jobs):
    s, folder = study(tmp_path, points=5), tmp_path / "out"
    rows = running.run(s, folder, jobs=jobs)
    assert [r["x"] for r in rows] == [0, 1, 2, 3, 4]
    assert (
        rows[3]["value"] == 4.0
        and rows[3]["error"] == pytest.approx(1.0)
        and rows[3]["values"] == [3.0, 5.0]
    )
    assert rows == running.rows(s, folder)
    processes = {process for _, process in calls(tmp_path)}
    assert (str(os.getpid()) in processes) == (jobs == 1) and len(processes) <= jobs


def test_a_resumed_study_does_only_what_is_missing(tmp_path):
    s, folder = study(tmp_path), tmp_path / "out"
    running.run(s, folder, jobs=1)
    (folder / "cells" / "point-1.json").unlink()
    assert [r["x"] for r in running.run(s, folder, jobs=1, resume=True)] == [0, 1, 2]
    assert [x for x, _ in calls(tmp_path)] == ["0.0", "1.0", "2.0", "1.0"]


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_error_in_a_cell_is_the_errors_own_and_what_was_finished_stays(tmp_path, jobs):
    s, folder = study(tmp_path, Cell("bad", fails, {"log": ""}), points=2), tmp_path / "out"
    with pytest.raises(InputError, match="this cell cannot be"):
        running.run(s, folder, jobs=jobs)
    kept = [r["x"] for r in running.rows(s, folder)]
    # with two processes the error may come first
    assert kept == [0, 1] if jobs == 1 else set(kept) <= {0, 1}


def test_a_process_that_is_killed_is_reported_and_does_not_hang(tmp_path):
    s, folder = study(tmp_path, Cell("bad", dies, {"log": ""}), points=1), tmp_path / "out"
    with pytest.raises(DecorError, match="'bad' died.*--resume"):
        running.run(s, folder, jobs=2)


def breaks(log):
    class Unknown(Exception):
        pass

    raise Unknown("somewhere deep")


def test_a_bug_in_a_cell_is_reported_with_its_place_even_if_it_cannot_be_sent(tmp_path):
    s = study(tmp_path, Cell("bad", breaks, {"log": ""}), points=1)
    with pytest.raises(
        RuntimeError, match="(?s)in 'bad'.*test_running.py.*Unknown: somewhere deep"
    ):
        running.run(s, tmp_path / "out", jobs=2)


def test_a_process_that_dies_before_its_first_cell_is_reported_too(tmp_path, monkeypatch):
    s = study(tmp_path, points=4)
    begin = running._workers

    @contextlib.contextmanager
    def killed(jobs):
        with begin(jobs) as pipes:
            for process in multiprocessing.active_children():
                process.kill()
                process.join()
            yield pipes

    monkeypatch.setattr(running, "_workers", killed)
    with pytest.raises(DecorError, match="died.*--resume"):
        running.run(s, tmp_path / "out", jobs=2)


def test_cells_of_other_code_are_not_mixed_in(tmp_path):
    s, folder = study(tmp_path), tmp_path / "out"
    running.run(s, folder, jobs=1)
    assert running.is_whole(s, folder) and not running.is_whole(study(tmp_path, points=2), folder)
    described = json.loads((folder / "study.json").read_text())
    (folder / "study.json").write_text(json.dumps(described | {"code": "older"}))
    with pytest.raises(InputError, match="other code.*--overwrite"):
        running.run(s, folder, jobs=1, resume=True)
    assert running.is_whole(s, folder)  # by whichever code it was computed
    (folder / "cells" / "point-1.json").unlink()
    assert not running.is_whole(s, folder)


@pytest.mark.parametrize("held", ["", "[]", "{}", "not json"])
def test_a_damaged_cell_is_named_with_the_way_out(tmp_path, held):
    s, folder = study(tmp_path), tmp_path / "out"
    running.run(s, folder, jobs=1)
    (folder / "cells" / "point-1.json").write_text(held)
    with pytest.raises(InputError, match="point-1.json.*delete it.*--resume"):
        running.run(s, folder, jobs=1, resume=True)


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "out").write_text("mine")
    running.remove(tmp_path / "out", ())
    with pytest.raises(InputError, match="is a file"):
        running.run(study(tmp_path), tmp_path / "out", jobs=1)
    assert (tmp_path / "out").read_text() == "mine"


def test_folders_of_others_are_left_alone(tmp_path):
    s, folder = study(tmp_path), tmp_path / "out"
    with pytest.raises(InputError, match="nothing to resume"):
        running.run(s, folder, jobs=1, resume=True)
    running.run(s, folder, jobs=1)
    with pytest.raises(InputError, match="--resume.*--overwrite"):
        running.run(s, folder, jobs=1)
    with pytest.raises(InputError, match="holds another study"):
        running.run(study(tmp_path, points=4), folder, jobs=1, resume=True)
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.txt").write_text("years of work")
    for wrong in (
        lambda: running.run(s, other, jobs=1),
        lambda: running.remove(other, ("thesis.txt",)),
    ):
        with pytest.raises(InputError, match="something else|no study"):
            wrong()
    assert (other / "thesis.txt").exists()
    (folder / "notes.txt").write_text("mine")
    running.remove(folder, ("results.csv",))
    assert [p.name for p in folder.iterdir()] == ["notes.txt"]


def test_ctrl_c_keeps_finished_cells_ends_the_processes_and_says_how_to_continue(tmp_path):
    folder = tmp_path / "out"
    command = [
        sys.executable,
        "-m",
        "decor",
        "reproduce",
        "least-squares",
        "--quick",
        "--output",
        str(folder),
        "--jobs",
        "2",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    waited = time.monotonic()
    while not list(folder.glob("cells/*.json")):
        assert process.poll() is None and time.monotonic() < waited + 240
        time.sleep(0.1)
    listed = subprocess.run(
        ["ps", "-ww", "-o", "pid=,args=", "--ppid", str(process.pid)],
        capture_output=True,
        text=True,
    ).stdout
    workers = [int(line.split()[0]) for line in listed.splitlines() if "spawn_main" in line]
    assert len(workers) == 2
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=240)
    assert process.returncode == 130 and "--resume" in said and "Traceback" not in said
    assert (folder / "report.html").exists() and (folder / "results.csv").exists()
    for worker in workers:
        with pytest.raises(ProcessLookupError):
            os.kill(worker, 0)
    finished = {path.name: path.stat().st_mtime_ns for path in folder.glob("cells/*.json")}
    assert all(json.loads((folder / "cells" / name).read_text())["rows"] for name in finished)
