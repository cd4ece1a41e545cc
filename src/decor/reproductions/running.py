"""Running a study in its folder: cells on several processes, each saved when it is finished."""

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
from decor.cpu_cores import cores
from decor.errors import DecorError, InputError, write_errors
from decor.results.safe_files import replace_text

from .study import Cell, Row, Study

# in study.json: `remove` deletes nothing in a folder without it
FORMAT = "decor-study-1"


def run(study: Study, folder: Path, *, jobs: int | None = None, resume: bool = False) -> list[Row]:
    """Computes all cells that are not finished, and returns all rows in the order of the cells.

    Args:
        study: What to compute.
        folder: Where finished cells are saved.
        jobs: Number of processes; None takes one for each core.
        resume: Continues the study in the folder.
    """
    _open(study, folder, resume)
    # finished cells are kept: a study of days can be interrupted
    waiting = [cell for cell in study.cells if not _path(folder, cell).exists()]
    done = len(study.cells) - len(waiting)
    jobs = min(jobs or cores(), max(1, len(waiting)))
    with progress.share(done / len(study.cells), 1.0):
        if jobs == 1:
            for k, cell in enumerate(waiting):
                with progress.share(k / len(waiting), (k + 1) / len(waiting)):
                    _save(folder, cell, *_compute(cell))
        else:
            _run_parallel(waiting, folder, jobs)
    return rows(study, folder)


def rows(study: Study, folder: Path) -> list[Row]:
    """Rows of the cells that are finished."""
    return [r for saved in _read_cells(study, folder) for r in saved["rows"]]


def seconds(study: Study, folder: Path) -> float:
    """CPU time that the finished cells took, over all processes."""
    return sum(float(saved["seconds"]) for saved in _read_cells(study, folder))


def is_whole(study: Study, folder: Path) -> bool:
    """Whether the folder holds this study, finished, by any version of decor."""
    path = folder / "study.json"
    same = path.exists() and _is_same(_read(path), _identity(study))
    return same and all(_path(folder, cell).exists() for cell in study.cells)


def remove(folder: Path, files: Sequence[str]) -> None:
    """Removes what a study wrote, and nothing else."""
    if not folder.is_dir() or not any(folder.iterdir()):
        return  # `run` accepts an empty folder, and refuses a file
    mark = folder / "study.json"
    identity = _read(mark) if mark.exists() else None
    if not isinstance(identity, dict) or identity.get("format") != FORMAT:
        raise InputError(
            f"{str(folder)!r} is no study that could be overwritten; name another folder by "
            "--output"
        )
    for path in [*(folder / "cells").glob("*.json"), *(folder / name for name in files), mark]:
        path.unlink(missing_ok=True)
    # files of the user beside the cells are left alone
    if (folder / "cells").exists() and not any((folder / "cells").iterdir()):
        (folder / "cells").rmdir()


def _run_parallel(cells: list[Cell], folder: Path, jobs: int) -> None:
    """Gives cells to processes as these become free; an error in one ends all."""
    shares = dict.fromkeys((cell.name for cell in cells), 0.0)
    left = list(cells)
    with _workers(jobs) as workers:
        busy: dict[Connection, Cell] = {}
        for pipe in workers:
            _start_next(pipe, left, busy)
        while busy:
            for ready in wait(list(busy)):
                assert isinstance(ready, Connection)
                cell = busy[ready]
                try:
                    kind, value = ready.recv()
                except (EOFError, OSError):
                    raise _death(cell) from None
                # the overall progress is the sum over cells, of which several run at once
                if kind == "progress":
                    shares[cell.name] = value
                elif kind == "error":
                    raise value
                else:
                    _save(folder, cell, *value)
                    shares[cell.name] = 1.0
                    del busy[ready]
                    _start_next(ready, left, busy)
                names = " and ".join(cell.name for cell in busy.values())
                progress.report(names, sum(shares.values()), len(cells))


def _start_next(pipe: Connection, left: list[Cell], busy: dict[Connection, Cell]) -> None:
    if left:
        busy[pipe] = left.pop(0)
        try:
            pipe.send(busy[pipe])
        except OSError:
            raise _death(busy[pipe]) from None


def _death(cell: Cell) -> DecorError:
    return DecorError(
        f"the process of {cell.name!r} died; is there enough memory? Continue with --resume"
    )


@contextmanager
def _workers(jobs: int) -> Iterator[list[Connection]]:
    """Pipes to new processes, which end with the block."""
    # spawn, not fork: locks of torch's and numba's threads must not be copied
    context = multiprocessing.get_context("spawn")
    processes, pipes = [], []
    try:
        for _ in range(jobs):
            here, there = context.Pipe()
            process = context.Process(target=_work, args=(there,), daemon=True)
            process.start()
            there.close()  # so that the pipe ends when the process dies
            processes.append(process)
            pipes.append(here)
        yield pipes
    finally:
        # cells that are not finished are computed again: nothing else is lost
        for process in processes:
            process.terminate()
        for process in processes:
            process.join()


def _work(pipe: Connection) -> None:
    """A worker: receives cells, and sends progress and rows, until the pipe ends."""
    # Ctrl-C goes to all processes of the terminal; the parent ends this one itself
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    reported = 0.0

    def report(_: str, share: float | None) -> None:
        nonlocal reported
        # three messages per second are enough for a progress bar
        if share is not None and time.monotonic() > reported + 0.3:
            reported = time.monotonic()
            pipe.send(("progress", share))

    while True:
        try:
            cell = pipe.recv()
        except EOFError:
            return
        try:
            with progress.listening(report):
                result = _compute(cell)
        except DecorError as problem:
            pipe.send(("error", problem))
        # a bug: as text, because an exception loses its traceback in a pipe
        except Exception:
            pipe.send(("error", RuntimeError(f"in {cell.name!r}:\n{traceback.format_exc()}")))
        else:
            pipe.send(("rows", result))


def _compute(cell: Cell) -> tuple[list[Row], float]:
    """(rows, CPU seconds)."""
    began = time.process_time()
    rows = cell.work(**cell.arguments)
    return rows, time.process_time() - began


def _open(study: Study, folder: Path, resume: bool) -> None:
    """Checks that the folder is new, or holds the study to be resumed; nothing is overwritten."""
    path, identity = folder / "study.json", _identity(study)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{str(folder)!r} is a file; name a folder by --output")
    if path.exists():
        if not resume:
            raise InputError(
                f"{str(folder)!r} holds a study already; continue it by --resume, replace it by "
                "--overwrite, or name another folder by --output"
            )
        old = _read(path)
        if not _is_same(old, identity):
            raise InputError(
                f"{str(folder)!r} holds another study; name another folder by --output"
            )
        # cells of other code are valid results, but not to be continued with this code
        if old["code"] != identity["code"]:
            raise InputError(
                f"the study in {str(folder)!r} was begun with other code of decor, and results "
                "must not be mixed; begin again by --overwrite, or name another folder by --output"
            )
        return
    if resume:
        raise InputError(f"there is nothing to resume in {str(folder)!r}; drop --resume")
    if folder.exists() and any(folder.iterdir()):
        raise InputError(
            f"{str(folder)!r} holds files of something else; name an empty or new folder by "
            "--output"
        )
    _write(path, identity)


def _identity(study: Study) -> dict[str, Any]:
    """What is computed, and by which code: cells of different versions must not be mixed."""
    code = hashlib.sha256()
    package = Path(__file__).parent.parent
    # all code of decor counts, because any of it may change a result
    for path in sorted(package.rglob("*.py")):
        code.update(str(path.relative_to(package)).encode() + b"\0" + path.read_bytes() + b"\0")
    cells = [
        {
            "name": cell.name,
            "work": f"{cell.work.__module__}.{cell.work.__name__}",
            "arguments": cell.arguments,
        }
        for cell in study.cells
    ]
    identity = {"format": FORMAT, "study": study.name, "cells": cells, "code": code.hexdigest()}
    # as it comes back from a file: tuples are lists there
    return json.loads(json.dumps(identity))  # type: ignore[no-any-return]


def _is_same(saved: Any, identity: dict[str, Any]) -> bool:
    """Whether a saved identity is of the same study, by any code."""
    return isinstance(saved, dict) and {**saved, "code": None} == {**identity, "code": None}


def _read_cells(study: Study, folder: Path) -> Iterator[dict[str, Any]]:
    for path in (_path(folder, cell) for cell in study.cells):
        if path.exists():
            saved = _read(path)
            if not isinstance(saved, dict) or not isinstance(saved.get("rows"), list):
                raise InputError(
                    f"{str(path)!r} is no finished cell; delete it and continue with --resume"
                )
            yield saved


def _path(folder: Path, cell: Cell) -> Path:
    # file names without spaces, commas and colons
    return folder / "cells" / f"{re.sub(r'[^a-z0-9.]+', '-', cell.name.lower()).strip('-')}.json"


def _save(folder: Path, cell: Cell, rows: list[Row], took: float) -> None:
    _write(_path(folder, cell), {"cell": cell.name, "seconds": round(took, 2), "rows": rows})


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        is_study = path.name == "study.json"
        hint = "name another folder by --output" if is_study else "delete it, then use --resume"
        raise InputError(f"{str(path)!r} cannot be read ({problem}); {hint}") from None


def _write(path: Path, value: Any) -> None:
    with write_errors(path, after="; name another folder by --output"):
        path.parent.mkdir(parents=True, exist_ok=True)
        # atomic: an interrupted run leaves no half-written cell
        replace_text(path, json.dumps(value, indent=1, allow_nan=False) + "\n")
