"""Several processes of one command on this machine, started by torchrun's agent in this process."""

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

_PARENT = "DECOR_STARTED_BY"
"""Environment variable: id of the process that has started this one and prints for it."""
_PATIENCE = 24 * 3600
"""Seconds that a run has to reach its next measurement after Ctrl-C; a second Ctrl-C ends it."""
_WORKER = """import signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
from decor.cli.main import main
raise SystemExit(main())"""
"""`python -m decor` with Ctrl-C held back until it can be handled, not amid the imports."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_PR_SET_PDEATHSIG = 1


def start(count: int, arguments: Sequence[str]) -> None:
    """Runs `decor ARGUMENTS` in `count` processes. If one dies, all restart, three times at most.

    Ctrl-C is passed on to them, and raised here when they have ended; a second one ends them at
    once. Any other signal ends them, and then this process.
    """
    from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    # a signal that this process ignores (nohup) stays ignored
    handled = [number.name for number in _SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=count,
        # the default makes a folder of logs in /tmp that stays empty and is never removed
        logs_specs=DefaultLogsSpecs(log_dir=os.devnull),
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=3,
        signals_to_handle=",".join(handled),
        shutdown_timeout=_PATIENCE,
    )
    try:
        with _restore_process_state():
            os.environ.setdefault("OMP_NUM_THREADS", "1")
            os.environ[_PARENT] = str(os.getpid())
            logging.disable(logging.WARNING)  # the agent logs each signal
            elastic_launch(config, sys.executable)("-c", _WORKER, *arguments)
    except SignalException as received:
        if received.sigval != signal.SIGINT:
            # die of the same signal, so that the caller sees it in the exit status
            signal.signal(received.sigval, signal.SIG_DFL)
            signal.raise_signal(received.sigval)
        raise KeyboardInterrupt from None
    except ChildFailedError as failed:
        _, first = failed.get_first_failure()
        raise DecorError(
            f"one of the {count} processes failed (code {first.exitcode}); its message is above"
        ) from None


@contextmanager
def _restore_process_state() -> Iterator[None]:
    """Restores environment, logging and signal handlers after this block."""
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


def is_worker() -> bool:
    """Whether `start` has started this process and reports how the command ended."""
    return os.environ.get(_PARENT) == str(os.getppid())


def prepare_worker() -> None:
    """In a process that torchrun started: from now on it handles Ctrl-C and dies with its agent.

    The kernel ends it even if the agent is killed. A rank that computes does not notice that the
    others have died, and would go on to the end.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ or World.from_environment() is None:
        return
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # the agent may have died before the call above took effect
    if os.environ.get(_PARENT, str(os.getppid())) != str(os.getppid()):
        raise DecorError("the process that has started this one is gone")
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
