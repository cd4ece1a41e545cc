"""The suite is the same in every process, since workers that collect different tests cannot share
them out; and no test takes a busy machine for a failure.
"""

import ast
import os
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

sys.path.append(str(Path(__file__).parent / "mutations"))

from faults import FAULTS  # noqa: E402

ROOT = Path(__file__).parent.parent


@cache
def collected(hash_seed):
    """The names of all tests as a fresh process collects them."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-p", "no:cacheprovider", "tests"]
    environment = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTEST_ADDOPTS": ""}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600
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


def test_every_test_that_is_to_notice_a_fault_is_there():
    """A name that has changed ends `make mutations` before its first fault."""
    names = set(collected("1"))
    # a file, a test with all of its cases, or one case
    names |= {part for name in names for part in (name.partition("::")[0], name.partition("[")[0])}
    wanted = {f"tests/{test}" for fault in FAULTS for test in fault.tests}
    if find_spec("opacus") is None:
        wanted = {test for test in wanted if not test.startswith("tests/doors/test_opacus")}
    assert sorted(wanted - names) == []


LEAST_SECONDS = {"run": 240, "communicate": 240, "timeout": 60}
"""Of a process that is to end, and of `asyncio.timeout`: beside ten other processes a command that
starts in three seconds takes a minute.
"""


def short_waits(path):
    """Calls that give up sooner than a busy machine may need."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        least = LEAST_SECONDS.get(node.func.attr, 0)
        limits = [word.value for word in node.keywords if word.arg == "timeout"]
        for limit in limits or (node.args if node.func.attr == "timeout" else []):
            if isinstance(limit, ast.Constant) and limit.value < least:
                yield f"{path.relative_to(ROOT)}:{node.lineno} waits {limit.value} s"


def test_no_test_gives_up_a_process_that_a_busy_machine_runs_slowly():
    assert [each for path in (ROOT / "tests").rglob("*.py") for each in short_waits(path)] == []
