"""A site's node for launchers: `decor node` as the site has set it up, its log, its end.

What a launcher's job may choose is the name of a federation. The site's own file says what that
means there, and nothing else: which federation file, key, ledger and data.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from decor.errors import InputError
from decor.federation.exit_codes import (
    DONE,
    INCOMPLETE,
    INTERRUPTED,
    NEEDS_A_PERSON,
    PRIVACY,
    TRANSIENT,
)

MEANINGS = {
    DONE: "done as planned",
    TRANSIENT: "a cause outside that may pass; start it again",
    NEEDS_A_PERSON: "a person must look at the site's log",
    PRIVACY: "stopped for privacy; do not start it again",
    INCOMPLETE: "done, with fewer steps than planned or with noise left",
    INTERRUPTED: "stopped; start it again to go on",
}
"""What a server is told of an exit code: the node's own sentence may speak of its data."""
STARTS, PAUSE = 3, 10.0
"""How often a node is started where the cause may pass, and the seconds between."""
_PUBLIC = ("user", "steps", "missed", "noise_left", "epsilon", "delta")
_POLL = 0.1
_STOP_SECONDS = 20.0
"""Seconds that a node has to end in good order. Its ledger is right also if it is killed."""
_MAIN = """
import ctypes, os, signal, sys
# on Linux: when the runtime's process is killed, the node must not go on alone
getattr(ctypes.CDLL(None), "prctl", lambda *_: 0)(1, signal.SIGTERM)
if os.getppid() != int(sys.argv.pop(1)):
    sys.exit(130)
from decor.cli.main import main
sys.exit(main())
"""


@dataclass(frozen=True)
class Outcome:
    """How a node has ended.

    Attributes:
        code: Its exit code.
        public: What a server may know: the code and its meaning, and of a run with messages the
            user, steps, guarantee, metrics on public data, and hashes of federation and model.
    """

    code: int
    public: dict[str, Any]

    @property
    def is_done(self) -> bool:
        """Whether the node has the final model."""
        return self.code in (DONE, INCOMPLETE)


def run_site_node(
    site: Path,
    federation: str,
    log: Callable[[str], object],
    is_aborted: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Runs the node of a federation until it ends, or until the runtime aborts its job.

    Args:
        site: The site's own file: a table for each federation, with `file`, options of `decor node`
            and perhaps `folder`, where the node runs and relative paths begin (default: the one of
            the site's file).
        federation: The name of a table.
        log: Receives each line of the node's log, in a thread.
        is_aborted: Whether the job is aborted; asked several times a second.

    Returns:
        How it has ended. A cause that may pass is waited for twice; a node that has stopped for
        privacy, or that a person must look at, is never started again.

    Guarantee: nothing of the site's data, key or ledger is in `Outcome.public`.
    """
    try:
        folder, words = node_command(site, federation)
    except InputError as problem:
        log(f"decor: {problem}")
        return Outcome(NEEDS_A_PERSON, public_facts(NEEDS_A_PERSON))
    for left in reversed(range(STARTS)):
        code, answer = _run(words, folder, log, is_aborted)
        if code != TRANSIENT or not left:
            break
        again = time.monotonic() + PAUSE
        while time.monotonic() < again and not is_aborted():
            time.sleep(_POLL)
        if is_aborted():
            code = INTERRUPTED
            break
    return Outcome(code, public_facts(code, folder, answer))


def node_command(site: Path, federation: str) -> tuple[Path, list[str]]:
    """Where a site's node runs, and the arguments of `decor node`.

    Args:
        site: The site's own file.
        federation: The name of a table.

    Raises:
        InputError: If the file has no such table, or cannot be read.
    """
    try:
        tables = tomllib.loads(site.read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise InputError(f"the site's file {str(site)!r} cannot be read: {problem}") from None
    table = tables.get(federation)
    if not isinstance(table, dict) or not isinstance(table.get("file"), str):
        raise InputError(
            f"{str(site)!r} has no table [{federation}] with the file of that federation: this "
            "site has not agreed to it"
        )
    words = [table["file"], "--json"]
    for name, value in table.items():
        for each in value if isinstance(value, list) else [value]:
            if name not in ("file", "folder"):
                words.append(f"--{name}" if each is True else f"--{name}={each}")
    folder = site.parent / str(table.get("folder", ""))
    if not folder.is_dir():
        raise InputError(f"{str(site)!r}: the folder {str(folder)!r} of [{federation}] is missing")
    return folder, words


def _run(
    words: list[str], folder: Path, log: Callable[[str], object], is_aborted: Callable[[], bool]
) -> tuple[int, str]:
    """Exit code and output of one process."""
    command = [sys.executable, "-c", _MAIN, str(os.getpid()), "node", *words]
    with tempfile.TemporaryFile("w+", encoding="utf-8") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
        )
        reader = threading.Thread(target=_read_log, args=(process.stderr, log), daemon=True)
        reader.start()
        try:
            while process.poll() is None and not is_aborted():
                time.sleep(_POLL)
        finally:
            # also where an exception of the runtime ends this
            is_stopped = process.poll() is None
            code = _end(process)
        reader.join()
        output.seek(0)
        answer = output.read()
    if code < 0:
        # by a signal before the node could handle it, or from outside: a crash, which may pass
        code = INTERRUPTED if is_stopped else TRANSIENT
    return code, answer


def _end(process: subprocess.Popen[str]) -> int:
    """The exit code of a process, which is asked to end if it has not."""
    process.terminate()
    try:
        return process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _read_log(lines: IO[str], log: Callable[[str], object]) -> None:
    with lines:
        for line in lines:
            log(line.rstrip("\n"))


def public_facts(code: int, folder: Path | None = None, answer: str = "") -> dict[str, Any]:
    """What a server may know of a node that has ended.

    Args:
        code: Its exit code.
        folder: Where it ran.
        answer: What `decor node --json` has printed.
    """
    public: dict[str, Any] = {"code": code, "meaning": MEANINGS.get(code, MEANINGS[NEEDS_A_PERSON])}
    # own code of a model may print too: the node's answer is one line, and none if it has failed
    answers = [line for line in answer.splitlines() if line.startswith('{"')]
    if folder is not None and answers:
        printed = json.loads(answers[-1])
        public |= {name: printed[name] for name in _PUBLIC}
        metrics = printed["metrics"].items()
        public |= {f"test_{name}": value for name, value in metrics if name != "step"}
        run = folder / printed["output"]
        manifest = json.loads((run / "manifest.json").read_text(encoding="utf-8"))
        public["digest"] = manifest["federation"]
        if code in (DONE, INCOMPLETE):
            model = (run / manifest["models"]).read_bytes()
            public["model_sha256"] = hashlib.sha256(model).hexdigest()
    return public
