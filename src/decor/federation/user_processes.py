"""The process that starts users' processes: it loads everything once, and forks each user.

`ProcessStarter` begins it in a new interpreter. It has no threads of its own, and differentiates
nothing: with a GPU that would start threads, which forked processes have to do without.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import pickle
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import recv_handle
from typing import Any, NoReturn

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from decor import errors
from decor.choices import Dtype
from decor.errors import DecorError, InputError
from decor.learning.task import Task
from decor.net.identity import Identity
from decor.net.ledger import Ledger
from decor.noise.grid import Grid
from decor.results.run import Run

from .exit_codes import error_code, run_code
from .local_gradient import LocalGradient
from .node import Node
from .operator import EventLog, error_text, run_node
from .peers_engine import combine
from .process_starter import Work
from .recording import Recorder
from .terms import Terms
from .user_files import UserFiles
from .vector_kernels import descend, is_bounded, pull_towards

_KEY_BYTES = 32
_STOP_SECONDS = 10
"""How long users may take to stop when their starter or its caller has died."""


def main(descriptor: int) -> NoReturn:
    """Serves the caller until it closes the connection, or dies.

    Args:
        descriptor: This end of the connection.
    """
    # the mask kept Ctrl-C away until here: the caller stops users in good order
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    # what users would load one by one: TLS, keys of edges, and saving a model
    for name in ("cryptography.hazmat.backends.openssl.backend", "safetensors.torch"):
        import_module(name)
    # threads do not survive a fork, and users share the cores
    torch.set_num_threads(1)
    # any grid and the usual dtype: compiled before the caller has sent its own
    _compile_step(Grid.of(1.0, [1.0], [(0, 1)], 2, 1.0, 1, 1), "float32")
    # users share what is loaded: a collection in one of them must not touch, and so copy, it
    gc.freeze()
    gc.enable()
    server = _Server(Connection(descriptor))
    try:
        server.serve()
    finally:
        server.stop_users()
        sys.stderr.flush()
        os._exit(0)


class _Server:
    """Answers the caller's requests, and reports users that have ended."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._pids: dict[int, int] = {}
        # every user reads from this pipe, which only this process can write to: it ends with it
        self._alive, self._alive_end = os.pipe()
        # a signal handler may not do much: it wakes `serve`
        self._woken, wake = os.pipe()
        for end in (self._woken, wake):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._terms: Terms | None = None
        self._identities: list[Identity] = []
        self._tasks: Sequence[Task] = ()
        self._files: Sequence[UserFiles] = ()
        self._first: LocalGradient | None = None
        self._record = False

    def serve(self) -> None:
        """Works until the caller has closed its end of the connection."""
        while True:
            ready = wait([self._connection, self._woken])
            if self._woken in ready:
                with suppress(BlockingIOError):
                    os.read(self._woken, 1 << 10)
            try:
                for number, code in self._reap():
                    self._send("ended", number, code)
                if self._connection in ready:
                    verb, *arguments = json.loads(self._connection.recv_bytes())
                    self._send(*self._answer(verb, arguments))
            # the caller has closed the connection, or died
            except (EOFError, ConnectionError):
                return

    def stop_users(self) -> None:
        """Ends all users: in good order if they can, and soon in any case."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            for pid in self._pids.values():
                os.kill(pid, number)
            until = time.monotonic() + _STOP_SECONDS
            while self._pids and time.monotonic() < until:
                self._reap()
                time.sleep(0.02)

    def _answer(self, verb: str, arguments: list[Any]) -> tuple[object, ...]:
        requests: dict[str, Callable[..., object]] = {
            "prepare": self._prepare,
            "start": self._start,
            "signal": self._signal,
            "average_metrics": self._average_metrics,
        }
        try:
            return "done", requests[verb](*arguments)
        except DecorError as problem:
            # of a class elsewhere the caller gets its nearest base among ours
            kinds = (each.__name__ for each in type(problem).__mro__)
            return "failed", next(kind for kind in kinds if hasattr(errors, kind)), str(problem)
        except (EOFError, ConnectionError):
            raise
        except Exception as problem:
            # a bug: its traceback goes to stderr
            traceback.print_exc()
            sys.stderr.flush()
            what = f"the users' processes could not be started: {error_text(problem)}"
            return "failed", "DecorError", what

    def _prepare(self) -> None:
        """Receives keys, terms and tasks; loads and compiles what every user needs."""
        keys = self._connection.recv_bytes()
        descriptor = recv_handle(self._connection)
        try:
            work = _read(descriptor)
            if work.dtype is not None:
                torch.set_default_dtype(work.dtype)
            self._tasks = work.tasks()
        except DecorError:
            raise
        except Exception as problem:  # whatever the objects of a task raise
            raise InputError(
                "the task cannot be made anew in the users' processes: "
                f"{type(problem).__name__}: {problem}"
            ) from None
        finally:
            os.close(descriptor)
        self._terms, self._files, self._record = work.terms, work.files, work.record
        self._identities = [
            Identity(Ed25519PrivateKey.from_private_bytes(keys[k : k + _KEY_BYTES]))
            for k in range(0, len(keys), _KEY_BYTES)
        ]
        # what fails here fails once, and not per user
        terms = work.terms
        _compile_step(terms.grid, terms.dtype)
        terms.guarantee_after(1)
        # kept: frozen parameters that it has converted serve the processes of all users
        self._first = LocalGradient(
            self._tasks[0],
            terms.plan.exposure,
            terms.recipe,
            terms.dtype,
            os.urandom,
            len(terms.members),
        )

    def _start(self, *numbers: int) -> list[int]:
        return [self._fork(number) for number in numbers]

    def _fork(self, number: int) -> int:
        # what is buffered would be written by both processes
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            # Python warns of forks beside threads; NumPy's threads survive one
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if not pid:
            self._run_user(number)
        self._pids[number] = pid
        return pid

    def _signal(self, number: int, signal_number: int) -> None:
        # not yet reaped, so the id is still this user's
        if number in self._pids:
            os.kill(self._pids[number], signal_number)

    def _reap(self) -> list[tuple[int, int]]:
        """(user, exit code) of processes that have ended."""
        ended = []
        for number, pid in list(self._pids.items()):
            done, result = os.waitpid(pid, os.WNOHANG)
            if done:
                del self._pids[number]
                ended.append((number, os.waitstatus_to_exitcode(result)))
        return ended

    def _average_metrics(self) -> dict[str, float]:
        assert self._terms is not None
        runs = [Run.load(each.run_folder) for each in self._files]
        # tasks differ in their shards alone: model and test data are the federation's
        task = replace(self._tasks[0], shards=[task.shards[0] for task in self._tasks])
        try:
            return dict(combine(task, self._terms.plan, runs, runs[0].manifest).metrics)
        except (RuntimeError, MemoryError) as problem:
            raise DecorError(str(problem)) from None

    def _send(self, *message: object) -> None:
        self._connection.send_bytes(json.dumps(message).encode())

    def _run_user(self, number: int) -> NoReturn:
        """Runs one user in the forked process, and exits without the starter's exit handlers."""
        code = 2
        try:
            signal.set_wakeup_fd(-1)
            for each in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
                # the starter's handlers are not this process's
                signal.signal(each, signal.SIG_DFL)
            # the connection stays open: it ends when the starter and all users have ended
            os.close(self._alive_end)
            threading.Thread(target=_stop_after, args=(self._alive,), daemon=True).start()
            assert self._terms is not None
            code = _train(
                self._terms,
                self._files[number],
                self._identities[number],
                self._tasks[number],
                self._record,
            )
        except Exception:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)


def _compile_step(grid: Grid, dtype: Dtype) -> None:
    """Compiles what a node's step calls, for a model of one parameter; differentiates nothing."""
    own, edge = bytes(_KEY_BYTES), bytes([1]) * _KEY_BYTES
    model = np.zeros(1, dtype)
    grid.add_noise(model, own, [(edge, 1)], over=True)
    descend(model, model, 0.0, 1.0)
    # a received model is read-only or not, which are two types to a compiler
    for other in (model, np.frombuffer(bytes(model.nbytes), dtype)):
        is_bounded(other)
        pull_towards(np.zeros(1, dtype), model, other, 0.0)


def _read(descriptor: int) -> Work:
    """What `ProcessStarter` wrote, from a descriptor that only it can have sent."""
    path = f"/dev/fd/{descriptor}"
    with open(path, "rb") as file:
        archive = file.read(2) == b"PK"
        file.seek(0)
        if not archive:  # the caller had not loaded torch
            work: Work = pickle.load(file)
            return work
    # mapped: all users share the pages. On the CPU, whatever device the caller's tensors are on
    loaded: Work = torch.load(path, map_location="cpu", weights_only=False, mmap=True)
    return loaded


def _train(terms: Terms, files: UserFiles, identity: Identity, task: Task, record: bool) -> int:
    """Trains one user's model; returns the exit code of its process."""
    with files.log.open("a", encoding="utf-8") as stream:
        log = EventLog(files.name, stream)
        try:
            # a federation on one machine makes its users' ledgers with their keys
            if not files.ledger.exists():
                Ledger.create(files.ledger, identity.public, terms.name)
            with Ledger(files.ledger, identity.public) as ledger:
                node = Node(
                    terms,
                    files.number,
                    identity,
                    task,
                    ledger,
                    log,
                    save=lambda run: run.save(files.run_folder, overwrite=True),
                    recorder=Recorder(files.recording) if record else None,
                )
                run = asyncio.run(run_node(node, files.socket, None))
            return run_code(run)
        except Exception as problem:
            log("failed", why=error_text(problem))
            # a bug: its traceback goes to stderr
            if not isinstance(problem, DecorError):
                traceback.print_exc()
            return error_code(problem)


def _stop_after(alive: int) -> None:
    """Stops this process when the starter has ended: nobody would know of it any more.

    Args:
        alive: A pipe that ends with the starter.
    """
    os.read(alive, 1)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_STOP_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)
