"""Several processes of one command on this machine: torchrun's agent starts them from here, and
they end with it.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from decor.errors import DecorError

from .world import World

_STARTER = "DECOR_STARTED_BY"
"""The process that has started this one, in whose name it speaks."""
_PATIENCE = 24 * 3600
"""Seconds that a run has to reach its next measurement after Ctrl-C; who cannot wait presses it
again.
"""
_WORKER = """import signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
from decor.cli.main import main
raise SystemExit(main())"""
"""`python -m decor`, which hears of Ctrl-C when it can answer, and not amid its imports."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_PR_SET_PDEATHSIG = 1


def start(count: int, words: Sequence[str]) -> None:
    """`decor WORDS` in so many processes. When one dies all begin again, three times at most.

    Ctrl-C goes on to them, and then is raised here; a second one ends them at once. Another signal
    ends them, and then this process.
    """
    from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=count,
        # by default a folder of logs is made in /tmp, stays empty, and is never removed
        logs_specs=DefaultLogsSpecs(log_dir=os.devnull),
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=3,
        # what nohup has this process ignore it goes on to ignore
        signals_to_handle=",".join(
            number.name for number in _SIGNALS if signal.getsignal(number) != signal.SIG_IGN
        ),
        shutdown_timeout=_PATIENCE,
    )
    try:
        with _as_before():
            os.environ.setdefault("OMP_NUM_THREADS", "1")
            os.environ[_STARTER] = str(os.getpid())
            logging.disable(logging.WARNING)  # what the agent says about signals
            elastic_launch(config, sys.executable)("-c", _WORKER, *words)
    except SignalException as received:
        if received.sigval != signal.SIGINT:
            signal.signal(received.sigval, signal.SIG_DFL)
            signal.raise_signal(received.sigval)
        raise KeyboardInterrupt from None
    except ChildFailedError as failed:
        _, first = failed.get_first_failure()
        raise DecorError(
            f"one of the {count} processes failed (code {first.exitcode}); what it said is above"
        ) from None


@contextmanager
def _as_before() -> Iterator[None]:
    """After this block environment, logging and signals are what they were."""
    environment, level = dict(os.environ), logging.root.manager.disable
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        logging.disable(level)
        os.environ.clear()
        os.environ.update(environment)


def is_started() -> bool:
    """Whether `start` has started this process, and says for it how the command ended."""
    return os.environ.get(_STARTER) == str(os.getppid())


def enlist() -> None:
    """What one of several processes does first: from now on it hears of Ctrl-C, and ends when the
    agent that started it does.

    That is the system's work, even if the agent is killed: who computes hears of nobody's death,
    and would go on to the end.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ or World.announced() is None:
        return
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.environ.get(_STARTER, str(os.getppid())) != str(os.getppid()):
        raise DecorError("the process that has started this one is gone")
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
