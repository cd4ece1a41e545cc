"""Downloads the files of a dataset from its public site. Runs only if the user asks for it."""

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
"""Bytes read at a time."""


def download(name: str, base: str | None = None) -> tuple[Path, ...]:
    """Downloads the files of a dataset into ~/.cache/decor.

    A file appears there whole and with the right checksum, or not at all. A file that is already
    there with the right checksum is not fetched again.

    Args:
        name: "a9a" or "mnist".
        base: The address of another folder with the same files; None is the public site.

    Returns:
        The paths of the files.

    Raises:
        InputError: If a file cannot be fetched or written, or is not the published one.
    """
    source = files.source(name)
    home = (base if base is not None else source.home).rstrip("/") + "/"
    if not home.startswith(("https://", "http://")):
        raise InputError(f"base must be an http or https address, not {base!r}")
    folder = files.cache() / source.name
    return tuple(_fetch(file, home + file.name, folder / file.name) for file in source.files)


def _fetch(file: files.File, url: str, path: Path) -> Path:
    if path.is_file() and _is_right(file, path):
        return path
    way_out = f"try again, or put the file at {str(path)!r} by hand"
    try:
        content = _get(url)
    except (OSError, HTTPException, ValueError) as problem:  # urllib's own errors are OSErrors
        if isinstance(problem, HTTPError):
            problem.close()  # it is also the server's response, and holds the connection
        raise InputError(
            f"{url} cannot be fetched: {problem or type(problem).__name__}; {way_out}"
        ) from None
    files.check(file, content, f"what came from {url}", way_out)
    try:
        _write(path, content)
    except OSError as problem:
        raise InputError(
            f"{file.name} cannot be written to {str(path.parent)!r}: {problem.strerror}; free "
            "some space there"
        ) from None
    return path


def _is_right(file: files.File, path: Path) -> bool:
    try:
        files.check(file, path.read_bytes(), str(path), "")
    except (InputError, OSError):
        return False
    return True


def _get(url: str) -> bytes:
    """The content at this address, or an OSError."""
    with urlopen(Request(url, headers={"User-Agent": "decor"}), timeout=PATIENCE_S) as response:
        length = response.headers.get("Content-Length")
        total = int(length) if length and length.isdigit() else None
        content = bytearray()
        while piece := response.read(PIECE):
            content += piece
            report(f"fetching {url}", len(content), total)
            if len(content) > files.MOST:
                raise OSError(f"more than {files.MOST:,} bytes came")
    # urllib takes a connection that closes early for the end of the file
    if total is not None and len(content) != total:
        raise OSError(f"the connection ended after {len(content):,} of {total:,} bytes")
    return bytes(content)


def _write(path: Path, content: bytes) -> None:
    """Writes all or nothing, also if two processes download at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # each process writes a file of its own, and renaming is atomic
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
