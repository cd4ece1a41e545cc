"""`decor ui` as it is typed: starts at once, prints where it is, and ends when it is told to."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request

import pytest


def started(*words, **more):
    command = [sys.executable, "-m", "decor", "ui", *words]
    environment = {k: v for k, v in os.environ.items() if k not in ("DISPLAY", "WAYLAND_DISPLAY")}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, **more
    )


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_it_prints_its_address_answers_and_ends_cleanly(how):
    with started("--json", "--no-browser") as process:
        try:
            said = json.loads(process.stdout.readline())
            address, _, token = said["url"].partition("#")
            assert address == f"http://127.0.0.1:{said['port']}/" and len(token) >= 43
            assert b"DECOR planner" in urllib.request.urlopen(address).read()
        finally:
            process.send_signal(how)
        rest, complaints = process.communicate(timeout=10)
    assert process.returncode == 0 and rest == "" and complaints.strip() == ""


def test_in_words_it_says_how_to_end_it(tmp_path):
    with started("--watch", tmp_path / "later") as process:
        try:
            assert process.stdout.readline().startswith("The planner is at http://127.0.0.1:")
            assert "Ctrl-C" in process.stdout.readline()
        finally:
            process.send_signal(signal.SIGINT)
        process.communicate(timeout=10)
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--port", "70000"], "65535"),
        (["--port", "x"], "whole number"),
        (["--watch", __file__], "is a file"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(words, sentence):
    with started(*words) as process:
        said, complaint = process.communicate(timeout=20)
    assert (
        process.returncode == 2
        and said == ""
        and sentence in complaint
        and len(complaint.strip().splitlines()) == 1
    )


def test_a_training_is_watched_while_it_runs(tmp_path):
    """From the command that trains to the state that a page would get."""
    from decor.net import status
    from decor.ui.watch import Watch

    watch, seen = Watch(tmp_path / "run", status.asked), []
    command = [
        sys.executable,
        "-m",
        "decor",
        "train",
        "--task",
        "least-squares",
        "--users",
        "4",
        "--epsilon",
        "1e6",
        "--steps",
        "400000",
    ]
    command += [
        "--learning-rate",
        "1e-4",
        "--evaluate-every",
        "500",
        "--output",
        str(tmp_path / "run"),
    ]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as training:
        try:
            for _ in range(300):
                state = watch.since(None)
                seen.append((state["kind"], state.get("step", 0)))
                if len({step for kind, step in seen if kind == "training" and step}) > 1:
                    break
                time.sleep(0.1)
        finally:
            training.send_signal(signal.SIGINT)
        training.wait(60)
    kinds = [kind for kind, _ in seen]
    assert kinds[0] == "nothing" and kinds[-1] == "training" and 0 < seen[-1][1] < 400_000
    time.sleep(0.35)
    state = watch.since(None)
    assert (
        state["over"]
        and "interrupted" in state["said"]
        and not (tmp_path / "run" / "live.json").exists()
    )
