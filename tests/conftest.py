import os
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path

# tests/oracles.py and tests/net/proxy.py serve several folders
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent / "net")]

os.environ.setdefault("MPLBACKEND", "Agg")
# many small products: threads of BLAS that wait for each other on a busy machine cost more than they bring
for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

# who starts the tests in the background may have them ignore what tests send, and what they start would inherit that
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import pytest  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402

settings.register_profile("decor", deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
settings.load_profile("decor")


@pytest.fixture(scope="session")
def reproduced(tmp_path_factory):
    """Runs `decor reproduce STUDY OPTIONS`, however many tests and pages ask for it once; gives its folder."""

    @cache
    def run(*words):
        folder = tmp_path_factory.mktemp("reproduced") / "out"
        command = [sys.executable, "-m", "decor", "reproduce", *words, "--output", str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stderr
        return folder

    return run


LONGEST = ("test_docs.py", "test_faults.py", "test_process_group.py", "test_figure_one.py", "test_processes.py", "test_audit.py")
"""Files of a minute and more: where several are run at a time, none of these may come last."""


def pytest_collection_modifyitems(items):
    order = {name: k for k, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path.name, len(order)))
