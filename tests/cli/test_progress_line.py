"""The line of progress."""

import os
import subprocess
import sys

import pytest


def test_progress_goes_to_a_terminal_on_standard_error_only():
    """In a real pseudo-terminal: a line that is drawn over, and cleared at the end."""
    pty = pytest.importorskip("pty")
    code = (
        "import time\nfrom decor import progress\nfrom decor.cli.progress_line import show_progress\n"
        "with show_progress():\n"
        " for k in range(14): progress.report('searching coalitions', k, 14); time.sleep(0.1)\n"
        "print('done')"
    )
    command = [sys.executable, "-c", code]
    main, worker = pty.openpty()
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=worker, text=True)
    os.close(worker)
    drawn = os.read(main, 10_000).decode()
    assert done.stdout == "done\n" and "searching coalitions" in drawn and "%" in drawn
    assert drawn.endswith("\x1b[K")
    assert subprocess.run(command, capture_output=True, text=True).stderr == ""
