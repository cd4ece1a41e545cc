"""`decor ui` as a process: it prints its address, answers, and ends cleanly."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request

import pytest
from command_server import decor_command


def start_ui(*words, **more):
    command = [*decor_command(), "ui", *words]
    environment = {k: v for k, v in os.environ.items() if k not in ("DISPLAY", "WAYLAND_DISPLAY")}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, **more
    )


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_it_prints_its_address_answers_and_ends_cleanly(how):
    with start_ui("--json", "--no-browser") as process:
        try:
            answer = json.loads(process.stdout.readline())
            address, _, token = answer["url"].partition("#")
            assert address == f"http://127.0.0.1:{answer['port']}/" and len(token) >= 43
            assert b"DECOR planner" in urllib.request.urlopen(address).read()
        finally:
            process.send_signal(how)
        rest, errors = process.communicate(timeout=240)
    assert process.returncode == 0 and rest == "" and errors.strip() == ""


def test_without_json_it_prints_how_to_end_it(tmp_path):
    with start_ui("--watch", tmp_path / "later") as process:
        try:
            assert process.stdout.readline().startswith("The planner is at http://127.0.0.1:")
            assert "Ctrl-C" in process.stdout.readline()
        finally:
            process.send_signal(signal.SIGINT)
        process.communicate(timeout=240)
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--port", "70000"], "65535"),
        (["--port", "x"], "whole number"),
        (["--watch", __file__], "is a file"),
        (["--metrics", "9464"], "'9464' is not an address; give host:port"),
        (["--metrics", ","], "1 to 256 addresses, not 0"),
        (["--metrics", ",".join(f"a:{k}" for k in range(1, 300))], "not 299"),
        (["--metrics", "a:1", "--watch", "run"], "not allowed with argument"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(words, sentence):
    with start_ui(*words) as process:
        out, error = process.communicate(timeout=240)
    assert process.returncode == 2 and out == ""
    assert sentence in error and len(error.strip().splitlines()) == 1


def test_a_training_is_watched_while_it_runs(tmp_path):
    """From the command that trains to the state that a page gets."""
    from decor.net import status
    from decor.ui.watch import FolderWatch

    watch, seen = FolderWatch(tmp_path / "run", status.query), []
    line = (
        "decor train --task least-squares --users 4 --epsilon 1e6 --steps 400000 "
        "--learning-rate 1e-4 --evaluate-every 500 --output"
    )
    command = [sys.executable, "-m", *line.split(), str(tmp_path / "run")]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, **quiet) as training:
        try:
            # a busy machine may take a minute to begin
            end = time.monotonic() + 300
            while time.monotonic() < end:
                state = watch.changes_since(None)
                seen.append((state["kind"], state.get("step", 0)))
                if len({step for kind, step in seen if kind == "training" and step}) > 1:
                    break
                time.sleep(0.1)
        finally:
            training.send_signal(signal.SIGINT)
        training.wait(240)
    kinds = [kind for kind, _ in seen]
    assert kinds[0] == "nothing" and kinds[-1] == "training" and 0 < seen[-1][1] < 400_000
    time.sleep(0.35)
    state = watch.changes_since(None)
    assert state["over"] and "interrupted" in state["said"]
    assert not (tmp_path / "run" / "live.json").exists()
