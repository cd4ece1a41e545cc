"""`decor train --processes`: real processes and real signals.

However the command ends, none of its processes is left.
"""

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch

import decor

TRAIN = "train --task least-squares --users 8 --topology ring --epsilon 10".split()
TRAIN += ["--learning-rate", "0.001"]
GROUP = "--momentum 0.5 --engine process-group --processes 2".split()
STEPS = 150
RUN = [*TRAIN, *GROUP, "--steps", str(STEPS), "--evaluate-every", "2"]
ENDLESS = [*TRAIN, *GROUP, "--steps", "10000000", "--evaluate-every", "10000000"]
"""Measures and saves before its first step, and never again."""


def is_alive(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def holds_ctrl_c(process):
    """Whether SIGINT is blocked, as it is during the imports."""
    blocked = re.search(r"SigBlk:\s*(\w+)", Path(f"/proc/{process}/status").read_text())[1]
    return bool(int(blocked, 16) >> (signal.SIGINT - 1) & 1)


def has_connected(process):
    for file in Path(f"/proc/{process}/fd").iterdir():
        try:
            if os.readlink(file).startswith("socket:"):
                return True
        except OSError:  # closed meanwhile
            continue
    return False


def children(parent):
    """Its ranks; it also starts other processes, which soon end."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            is_child = int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == parent
            if is_child and b"\0RANK=" in b"\0" + (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:  # gone meanwhile
            continue
    return found


def soon(holds, what):
    until = time.monotonic() + 240
    while not (value := holds()):
        assert time.monotonic() < until, what
        time.sleep(0.01)
    return value


class Started:
    """A command in a process group of its own, as a shell starts it."""

    def __init__(self, folder, *arguments, ignored=None):
        self.folder, self.err = folder, folder.with_name(folder.name + "-err")
        with self.err.open("wb") as err:
            to = ["--output", folder, "--checkpoint-every", "0"]
            command = [sys.executable, "-m", "decor", *arguments, *to]
            before = ignored and signal.signal(ignored, signal.SIG_IGN)
            self.scratch = folder.with_name(folder.name + "-tmp")
            self.scratch.mkdir()
            own = {**os.environ, "TMPDIR": str(self.scratch)}
            self.process = subprocess.Popen(
                command, stdout=subprocess.DEVNULL, stderr=err, process_group=0, env=own
            )
            if ignored:
                signal.signal(ignored, before)
        self.ranks = soon(
            lambda: (
                (found := self.running(children(self.process.pid))) and len(found) == 2 and found
            ),
            "no processes",
        )

    def running(self, processes):
        assert self.process.poll() is None, self.said
        return processes

    @property
    def said(self):
        return self.err.read_text()

    def is_training(self):
        self.running(())
        return (self.folder / "manifest.json").exists()

    def wait_until_they_hold_ctrl_c(self, hold):
        soon(
            lambda: self.running(all(holds_ctrl_c(each) == hold for each in self.ranks)),
            "they do not begin",
        )

    def ended(self):
        """The exit code, when the last of its processes is gone."""
        code = self.process.wait(timeout=240)
        soon(lambda: not any(map(is_alive, self.ranks)), "processes are left")
        assert not [
            left for left in self.scratch.iterdir() if left.name.startswith("torchelastic")
        ], "folders are left"
        return code


@pytest.fixture
def start(tmp_path):
    begun = []

    def start(*arguments, **how):
        begun.append(Started(tmp_path / str(len(begun)), *arguments, **how))
        return begun[-1]

    yield start
    for each in begun:
        for process in (each.process.pid, *each.ranks):
            if is_alive(process):
                os.kill(process, signal.SIGKILL)
        each.process.wait()


def test_ctrl_c_at_the_terminal_leaves_a_run_that_resumes_to_the_end_of_an_uninterrupted_one(
    start, here, tmp_path
):
    handlers = [
        signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    ]
    begun = start(*RUN)
    soon(begun.is_training, "it does not train")
    os.killpg(begun.process.pid, signal.SIGINT)
    assert begun.ended() == 130
    asked, told = begun.said.strip().splitlines()
    assert "press Ctrl-C again" in asked and told == "decor: interrupted"
    stopped = decor.Run.load(begun.folder)
    assert stopped.stopped.startswith("interrupted") and 0 <= stopped.steps_taken < STEPS
    here(*RUN, "--output", begun.folder, "--resume")
    here(*RUN, "--processes", "1", "--output", tmp_path / "whole")
    resumed, whole = decor.Run.load(begun.folder), decor.Run.load(tmp_path / "whole")
    # of one process; to the last bit: test_process_group.py
    assert resumed.stopped is None and resumed.steps_taken == STEPS
    for name, models in whole.models.items():
        assert torch.allclose(resumed.models[name], models, rtol=1e-4, atol=1e-5)
    assert [
        signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    ] == handlers


def test_a_second_ctrl_c_ends_it_at_once_and_what_nohup_ignores_does_not(start):
    begun = start(*ENDLESS, ignored=signal.SIGHUP)
    soon(begun.is_training, "it does not train")
    os.killpg(begun.process.pid, signal.SIGHUP)
    begun.process.send_signal(signal.SIGINT)
    soon(lambda: begun.running("press Ctrl-C again" in begun.said), "it does not say that it waits")
    begun.process.send_signal(signal.SIGINT)
    assert begun.ended() == 130
    assert begun.said.strip().splitlines()[1:] == ["decor: interrupted"]
    assert decor.Run.load(begun.folder).steps_taken == 0


def test_ctrl_c_before_the_processes_have_met_ends_them_without_a_word_of_theirs(start):
    begun = start(*RUN)
    begun.wait_until_they_hold_ctrl_c(True)
    late, other = begun.ranks
    os.kill(late, signal.SIGSTOP)  # amid its imports; the other one comes to the meeting, and waits
    soon(lambda: begun.running(has_connected(other)), "it does not come")
    begun.process.send_signal(signal.SIGINT)
    os.kill(late, signal.SIGCONT)
    assert begun.ended() == 130 and begun.said == "decor: interrupted\n"


def test_a_run_that_finishes_or_fails_leaves_no_folder_in_tmp(start):
    finished, failed = start(*TRAIN, *GROUP, "--steps", "4"), start(*RUN)
    assert finished.ended() == 0 and list(finished.scratch.iterdir()) == []
    soon(failed.is_training, "it does not train")
    while failed.process.poll() is None:  # each time it begins again, up to three times
        for each in children(failed.process.pid):
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        time.sleep(0.05)
    assert failed.ended() == 2 and "one of the 2 processes failed (code -9)" in failed.said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_command_that_is_ended_or_killed_takes_its_processes_along(start, number):
    begun = start(*ENDLESS)
    begun.wait_until_they_hold_ctrl_c(True)
    begun.wait_until_they_hold_ctrl_c(False)
    begun.process.send_signal(number)
    assert begun.ended() == -number and begun.said == ""


def test_a_process_that_begins_after_its_starter_has_gone_ends(tmp_path):
    started = {**os.environ, "RANK": "0", "WORLD_SIZE": "2", "DECOR_STARTED_BY": "1"}
    started |= {"TORCHELASTIC_RUN_ID": "run", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    command = [sys.executable, "-m", "decor", *RUN, "--output", tmp_path / "run"]
    ended = subprocess.run(command, env=started, capture_output=True, text=True, timeout=240)
    assert ended.returncode == 2 and ended.stderr == (
        "decor: the process that has started this one is gone\n"
    )
