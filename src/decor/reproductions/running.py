"""Running a study in its folder: cells on as many processes as there are cores, each kept when it
is finished.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import re
import signal
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from decor import progress
from decor.errors import DecorError, InputError
from decor.machine import cores

from .study import Cell, Row, Study

FORMAT = "decor-study-1"


def run(study: Study, folder: Path, *, jobs: int | None = None, resume: bool = False) -> list[Row]:
    """All rows, in the order of the cells; those of cells that an earlier run has finished are
    read.
    """
    _open(study, folder, resume)
    waiting = [cell for cell in study.cells if not _path(folder, cell).exists()]
    done = len(study.cells) - len(waiting)
    jobs = min(jobs or cores(), max(1, len(waiting)))
    with progress.share(done / len(study.cells), 1.0):
        if jobs == 1:
            for k, cell in enumerate(waiting):
                with progress.share(k / len(waiting), (k + 1) / len(waiting)):
                    _keep(folder, cell, *_timed(cell))
        else:
            _together(waiting, folder, jobs)
    return rows(study, folder)


def rows(study: Study, folder: Path) -> list[Row]:
    """Rows of the cells that are finished."""
    return [r for found in _finished(study, folder) for r in found["rows"]]


def is_whole(study: Study, folder: Path) -> bool:
    """Whether the folder holds this very study, finished; which version of decor computed it does
    not count.
    """
    path = folder / "study.json"
    held = _read(path) if path.exists() else None
    same = isinstance(held, dict) and {**held, "code": None} == {**_identity(study), "code": None}
    return same and all(_path(folder, cell).exists() for cell in study.cells)


def seconds(study: Study, folder: Path) -> float:
    """Processor time that the finished cells took, over all processes."""
    return sum(float(found["seconds"]) for found in _finished(study, folder))


def remove(folder: Path, files: Sequence[str]) -> None:
    """What a study wrote, and nothing else; a folder of something else is left alone."""
    if not folder.is_dir() or not any(folder.iterdir()):
        return  # nothing there, or nothing that `run` would not refuse
    mark = folder / "study.json"
    described = _read(mark) if mark.exists() else None
    if not isinstance(described, dict) or described.get("format") != FORMAT:
        raise InputError(
            f"{str(folder)!r} is no study that could be overwritten; name another "
            "folder by --output"
        )
    for path in [*(folder / "cells").glob("*.json"), *(folder / name for name in files), mark]:
        path.unlink(missing_ok=True)
    if (folder / "cells").exists() and not any((folder / "cells").iterdir()):
        (folder / "cells").rmdir()


def _together(cells: list[Cell], folder: Path, jobs: int) -> None:
    """Cells dealt to processes as these become free.

    A process that dies, or an error in it, ends the whole.
    """
    shares = dict.fromkeys((cell.name for cell in cells), 0.0)
    left = list(cells)
    with _workers(jobs) as workers:
        busy: dict[Connection, Cell] = {}
        for pipe in workers:
            _next(pipe, left, busy)
        while busy:
            for ready in wait(list(busy)):
                assert isinstance(ready, Connection)
                cell = busy[ready]
                try:
                    kind, value = ready.recv()
                except (EOFError, OSError):
                    raise _died(cell) from None
                if kind == "progress":
                    shares[cell.name] = value
                elif kind == "error":
                    raise value
                else:
                    _keep(folder, cell, *value)
                    shares[cell.name] = 1.0
                    del busy[ready]
                    _next(ready, left, busy)
                progress.report(_names(busy), sum(shares.values()), len(cells))


def _names(busy: dict[Connection, Cell]) -> str:
    return " and ".join(cell.name for cell in busy.values())


def _next(pipe: Connection, left: list[Cell], busy: dict[Connection, Cell]) -> None:
    if left:
        busy[pipe] = left.pop(0)
        try:
            pipe.send(busy[pipe])
        except OSError:
            raise _died(busy[pipe]) from None


def _died(cell: Cell) -> DecorError:
    return DecorError(
        f"the process of {cell.name!r} died; is there enough memory? Go on with --resume"
    )


@contextmanager
def _workers(jobs: int) -> Iterator[list[Connection]]:
    """Pipes to fresh processes, which end with the block; the pipe of one that died ends before."""
    context = multiprocessing.get_context("spawn")
    processes, pipes = [], []
    try:
        for _ in range(jobs):
            here, there = context.Pipe()
            process = context.Process(target=_work, args=(there,), daemon=True)
            process.start()
            there.close()
            processes.append(process)
            pipes.append(here)
        yield pipes
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.join()


def _work(pipe: Connection) -> None:
    """In a process of its own: cells come in, progress and rows go out, until the pipe ends."""
    # Ctrl-C is for the one who asked; it ends this process itself
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    said = 0.0

    def tell(_: str, share: float | None) -> None:
        nonlocal said
        if share is not None and time.monotonic() > said + 0.3:
            said = time.monotonic()
            pipe.send(("progress", share))

    while True:
        try:
            cell = pipe.recv()
        except EOFError:
            return
        try:
            with progress.listening(tell):
                found = _timed(cell)
        except DecorError as problem:
            pipe.send(("error", problem))
        # a bug: told with where it was, which an exception sent through a pipe has lost
        except Exception:
            pipe.send(("error", RuntimeError(f"in {cell.name!r}:\n{traceback.format_exc()}")))
        else:
            pipe.send(("rows", found))


def _timed(cell: Cell) -> tuple[list[Row], float]:
    began = time.process_time()
    found = cell.work(**cell.arguments)
    return found, time.process_time() - began


def _open(study: Study, folder: Path, resume: bool) -> None:
    """A folder belongs to one study with one set of cells; nobody's files are overwritten
    unasked.
    """
    path, identity = folder / "study.json", _identity(study)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{str(folder)!r} is a file; name a folder by --output")
    if path.exists():
        if not resume:
            raise InputError(
                f"{str(folder)!r} holds a study already; go on with it by --resume, replace it by "
                "--overwrite, or name another "
                "folder by --output"
            )
        old = _read(path)
        if not isinstance(old, dict) or {**old, "code": None} != {**identity, "code": None}:
            raise InputError(
                f"{str(folder)!r} holds another study; name another folder by --output"
            )
        if old["code"] != identity["code"]:
            raise InputError(
                f"the study in {str(folder)!r} was begun with other code of decor, and would be "
                "of two kinds; begin again by "
                "--overwrite, or name another folder by --output"
            )
        return
    if resume:
        raise InputError(f"there is nothing to resume in {str(folder)!r}; drop --resume")
    if folder.exists() and any(folder.iterdir()):
        raise InputError(
            f"{str(folder)!r} holds files of something else; name an empty or new "
            "folder by --output"
        )
    _write(path, identity)


def _identity(study: Study) -> dict[str, Any]:
    """What is computed, and by which code: cells of different versions are not to be mixed."""
    code = hashlib.sha256()
    package = Path(__file__).parent.parent
    for path in sorted(package.rglob("*.py")):
        code.update(str(path.relative_to(package)).encode() + b"\0" + path.read_bytes() + b"\0")
    described = {
        "format": FORMAT,
        "study": study.name,
        "cells": [_described(c) for c in study.cells],
        "code": code.hexdigest(),
    }
    return json.loads(json.dumps(described))  # type: ignore[no-any-return]


def _finished(study: Study, folder: Path) -> Iterator[dict[str, Any]]:
    for path in (_path(folder, cell) for cell in study.cells):
        if path.exists():
            found = _read(path)
            if not isinstance(found, dict) or not isinstance(found.get("rows"), list):
                raise InputError(
                    f"{str(path)!r} is no finished cell; delete it and go on with --resume"
                )
            yield found


def _described(cell: Cell) -> dict[str, Any]:
    return {
        "name": cell.name,
        "work": f"{cell.work.__module__}.{cell.work.__name__}",
        "arguments": cell.arguments,
    }


def _path(folder: Path, cell: Cell) -> Path:
    return folder / "cells" / f"{re.sub(r'[^a-z0-9.]+', '-', cell.name.lower()).strip('-')}.json"


def _keep(folder: Path, cell: Cell, found: list[Row], took: float) -> None:
    _write(_path(folder, cell), {"cell": cell.name, "seconds": round(took, 2), "rows": found})


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        way = (
            "delete it and go on with --resume"
            if path.name != "study.json"
            else "name another folder by --output"
        )
        raise InputError(f"{str(path)!r} cannot be read ({problem}); {way}") from None


def _write(path: Path, value: Any) -> None:
    from decor.results.files import replace_text

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_text(path, json.dumps(value, indent=1, allow_nan=False) + "\n")
    except OSError as problem:
        raise InputError(
            f"{str(path)!r} cannot be written: {problem.strerror}; name another folder by --output"
        ) from None
