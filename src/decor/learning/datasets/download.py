"""Fetching the files of a dataset from its public home.

Nothing here runs unless a person asks for it.
"""

from __future__ import annotations

import os
import tempfile
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from decor.errors import InputError
from decor.progress import report

from . import files

PATIENCE_S = 30.0
PIECE = 2**16


def download(name: str, base: str | None = None) -> tuple[Path, ...]:
    """Fetches the files of "a9a" or "mnist" into ~/.cache/decor and says where they are.

    A file appears there whole and with the right checksum, or not at all; one that is there and
    right is not fetched again. `base` is the address of another folder with the same files.
    """
    of = files.source(name)
    home = (base if base is not None else of.home).rstrip("/") + "/"
    if not home.startswith(("https://", "http://")):
        raise InputError(f"base must be an http or https address, not {base!r}")
    folder = files.cache() / of.name
    return tuple(_fetch(file, home + file.name, folder / file.name) for file in of.files)


def _fetch(file: files.File, url: str, path: Path) -> Path:
    if path.is_file() and _is_right(file, path):
        return path
    way_out = f"try again, or put the file at {str(path)!r} by hand"
    try:
        content = _get(url)
    except (OSError, HTTPException, ValueError) as problem:  # urllib's own errors are OSErrors
        if isinstance(problem, HTTPError):
            problem.close()  # it is the server's answer as well, and holds the connection
        raise InputError(
            f"{url} cannot be fetched: {problem or type(problem).__name__}; {way_out}"
        ) from None
    files.check(file, content, f"what came from {url}", way_out)
    try:
        _write(path, content)
    except OSError as problem:
        raise InputError(
            f"{file.name} cannot be written to {str(path.parent)!r}: "
            f"{problem.strerror}; make room there"
        ) from None
    return path


def _is_right(file: files.File, path: Path) -> bool:
    try:
        files.check(file, path.read_bytes(), str(path), "")
    except (InputError, OSError):
        return False
    return True


def _get(url: str) -> bytes:
    """Everything at this address, or an OSError: a connection that closes early must not pass for
    the end of the file.
    """
    with urlopen(Request(url, headers={"User-Agent": "decor"}), timeout=PATIENCE_S) as answer:
        told = answer.headers.get("Content-Length")
        total = int(told) if told and told.isdigit() else None
        content = bytearray()
        while piece := answer.read(PIECE):
            content += piece
            report(f"fetching {url}", len(content), total)
            if len(content) > files.MOST:
                raise OSError(f"more than {files.MOST:,} bytes came")
    if total is not None and len(content) != total:
        raise OSError(f"the connection ended after {len(content):,} of {total:,} bytes")
    return bytes(content)


def _write(path: Path, content: bytes) -> None:
    """All or nothing, also when two processes fetch at once: each writes a file of its own and
    renames it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
