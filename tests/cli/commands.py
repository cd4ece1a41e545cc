"""The command in a process of its own."""

import subprocess
import sys
import time
from pathlib import Path

from command_server import decor_command

COMMAND = [str(Path(sys.executable).parent / "decor")]
"""As it is installed."""


def run(*arguments, check=0, command=None, **kwargs):
    """Runs the command to its end, which has the exit status `check`."""
    done = subprocess.run(
        [*(command or decor_command()), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=240,
        **kwargs,
    )
    assert done.returncode == check, done.stderr
    assert "Traceback" not in done.stderr
    if check == 2:
        # beside notes on what was read, an error is one sentence
        lines = done.stderr.strip().splitlines()
        said = [line for line in lines if not line.startswith("decor: note: ")]
        assert done.stdout == "" and len(said) == 1, done.stderr
    return done


def start(*arguments):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([*decor_command(), *map(str, arguments)], **pipes)


def wait_for(path, process, seconds=240):
    end = time.monotonic() + seconds
    while not path.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, f"{path} did not appear"
        time.sleep(0.02)


TRAIN = (
    "train --task breast-cancer --topology ring --users 16 --epsilon 10 --delta 1e-5 --steps 40 "
    "--clip 1 --adversary eavesdropper --learning-rate 0.1"
).split()
