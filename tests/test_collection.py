"""The suite is the same in every process: workers that collect different tests cannot share them
out.
"""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def collected(hash_seed):
    """The names of all tests as a fresh process collects them."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-p", "no:cacheprovider", "tests"]
    environment = os.environ | {"PYTHONHASHSEED": hash_seed}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return [line for line in done.stdout.splitlines() if "::" in line]


def test_another_process_collects_the_same_tests_in_the_same_order(request):
    """With another hash seed, other addresses of objects, another process number and at another
    second.

    Of the whole suite both have all, of a part of it this process has some.
    """
    own = [item.nodeid for item in request.session.items]
    theirs = collected("1")
    assert len(theirs) > 4000
    shared = set(own)
    assert [name for name in theirs if name in shared] == own
