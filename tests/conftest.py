import fcntl
import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

# tests/oracles.py, tests/net/proxy.py and the oracle of gradients serve several folders
_HERE = Path(__file__).parent
sys.path[:0] = [str(_HERE), str(_HERE / "net"), str(_HERE / "learning" / "gradients")]

os.environ.setdefault("MPLBACKEND", "Agg")
# many small products: threads of BLAS that wait for each other on a busy machine cost more than
# they bring
for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

# who starts the tests in the background may have them ignore what tests send, and what they start
# would inherit that
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import pytest  # noqa: E402
from command_server import warm_starter  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402

from decor.cli.main import main  # noqa: E402
from decor.cpu_cores import cores  # noqa: E402
from decor.federation import process_starter  # noqa: E402

settings.register_profile(
    "decor",
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=True,
)
settings.load_profile("decor")


NEW_INTERPRETER = process_starter._start_interpreter
if hasattr(os, "pidfd_open"):
    process_starter._start_interpreter = warm_starter


@pytest.fixture(scope="module")
def new_interpreter():
    """Users' processes start as they do outside tests: from an interpreter that loads everything."""
    before = process_starter._start_interpreter
    process_starter._start_interpreter = NEW_INTERPRETER
    yield
    process_starter._start_interpreter = before


@pytest.fixture(scope="session")
def reproduced(tmp_path_factory):
    """Runs `decor reproduce STUDY OPTIONS`, however many tests, pages and workers ask for it once;
    gives its folder.
    """
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent  # which all workers have

    def run(*words):
        folder = shared / f"reproduced {' '.join(words)}"
        with (shared / f"{folder.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.exists():
                command = [
                    sys.executable,
                    "-m",
                    "decor",
                    "reproduce",
                    *words,
                    "--output",
                    str(folder),
                ]
                done = subprocess.run(command, capture_output=True, text=True, timeout=600)
                assert done.returncode == 0, done.stderr
        return folder

    return run


class Done(NamedTuple):
    stdout: str
    stderr: str


@pytest.fixture
def here(monkeypatch, capsys, tmp_path):
    """The command within this process, which has everything loaded already; every command also runs
    in its own somewhere.
    """
    monkeypatch.chdir(tmp_path)

    def run_here(*arguments, check=0):
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as stopped:
            code = stopped.code
        done = Done(*capsys.readouterr())
        assert (code or 0) == check, done.stderr
        if check == 2:
            # beside notes on what was read, an error is one sentence
            lines = done.stderr.strip().splitlines()
            said = [line for line in lines if not line.startswith("decor: note: ")]
            assert len(said) == 1, done.stderr
            assert done.stdout == ""
        return done

    return run_here


LONGEST = (
    *(
        "test_docs.py",
        "test_collection.py",
        "test_faults.py",
        "test_chaos.py",
        "test_process_group.py",
        "test_processes.py",
        "test_containers.py",
    ),
    *("test_audit.py", "test_figure_one.py", "test_local_federation.py"),
    *("test_site_node.py", "test_lease.py", "test_nvflare.py", "test_flower.py"),
)
"""Files of half a minute and more: where several are run at a time, none of these may come last."""


def pytest_collection_modifyitems(items):
    order = {name: k for k, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path.name, len(order)))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    """Skips files of tests that import torch where it is not installed (`make test-python`)."""
    report = yield
    if report.failed and find_spec("torch") is None:
        if "No module named 'torch'" in str(report.longrepr):
            report.outcome = "skipped"
            report.longrepr = (str(collector.path), 0, "Skipped: torch is not installed")
    return report


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers():
    """One more than cores: some tests wait for processes and clocks most of their time."""
    return cores() + 1
