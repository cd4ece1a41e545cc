"""Files of public datasets: where they are looked for, how they are checked, where they
come from.
"""

from __future__ import annotations

import bz2
import hashlib
import lzma
import os
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from decor.errors import InputError

MOST = 2**27
"""No file of these datasets is larger, packed or not; what is larger is not read to its end."""


@dataclass(frozen=True)
class File:
    """A file by its public name.

    `md5` is of the bytes as published; a copy packed once more may have one of `endings`.
    """

    name: str
    md5: str
    endings: tuple[str, ...] = ("",)


@dataclass(frozen=True)
class Source:
    """The files of a dataset, looked for in a folder of its name, and the address they can be had
    from.
    """

    name: str
    home: str
    files: tuple[File, ...]


_PACKED = ("", ".xz", ".bz2")

SOURCES = {
    source.name: source
    for source in (
        Source(
            "a9a",
            "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/",
            (
                File("a9a", "fb3596510d780aaf76a06dc721d49662", _PACKED),
                File("a9a.t", "f0bb16cf1ee3e80ff560e9d132ee647e", _PACKED),
            ),
        ),
        Source(
            "mnist",
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            (
                File("train-images-idx3-ubyte.gz", "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
                File("train-labels-idx1-ubyte.gz", "d53e105ee54ea40749a09fcbcd1e9432"),
                File("t10k-images-idx3-ubyte.gz", "9fb629c4189551a2d022fa330f9573f3"),
                File("t10k-labels-idx1-ubyte.gz", "ec29112dd5afa0611ce80d1b7f02629c"),
            ),
        ),
    )
}


def source(name: str) -> Source:
    if name not in SOURCES:
        raise InputError(
            f"there is no dataset in files named {name!r}; there are {', '.join(SOURCES)}"
        )
    return SOURCES[name]


def cache() -> Path:
    """Where downloads go, and the last place that is looked in."""
    return Path("~/.cache/decor").expanduser()


def folders() -> tuple[Path, ...]:
    """Where datasets are looked for: $DECOR_DATA where it is set, then ~/.cache/decor."""
    chosen = os.environ.get("DECOR_DATA", "")
    return (Path(chosen).expanduser(), cache()) if chosen else (cache(),)


def read(dataset: str, name: str) -> tuple[bytes, Path]:
    """The bytes of a file as published, with the right checksum, and the path they are from.

    The first copy found counts: a broken one is an error, never a reason to look further.
    """
    of = source(dataset)
    file = next(file for file in of.files if file.name == name)
    path = _find(of, file)
    try:
        content = _unpacked(path)
    except (OSError, EOFError, lzma.LZMAError) as problem:
        raise InputError(
            f"{str(path)!r} cannot be read: {problem}; put a good copy there, from {of.home}{name}"
        ) from None
    check(
        file,
        content,
        f"{str(path)!r}",
        f"delete it and run decor.tasks.download({dataset!r}), or put a good copy there",
    )
    return content, path


def check(file: File, content: bytes, what: str, way_out: str) -> None:
    """Refuses content that is not the published file.

    md5 is what is published: it finds accidents, not attackers.
    """
    found = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if found != file.md5:
        raise InputError(
            f"{what} is not the published {file.name}: its md5 is {found}, and "
            f"should be {file.md5}; {way_out}"
        )


def _find(of: Source, file: File) -> Path:
    for folder in folders():
        for ending in file.endings:
            path = folder / of.name / (file.name + ending)
            if path.is_file():
                return path
    names = ", ".join(file.name for file in of.files)
    places = " or ".join(str(folder / of.name) for folder in folders())
    raise InputError(
        f"the file {file.name} of {of.name} is missing: run decor.tasks.download({of.name!r}), or "
        f"fetch {names} from {of.home} "
        f"and put them into {places}; the environment variable DECOR_DATA chooses another folder "
        f"above {of.name}"
    )


def _unpacked(path: Path) -> bytes:
    """The bytes of a file, unpacked where its ending says that it was packed after publication."""
    stream: IO[bytes]
    if path.suffix == ".xz":
        stream = lzma.open(path)
    elif path.suffix == ".bz2":
        stream = bz2.open(path)
    else:
        stream = path.open("rb")
    with stream:
        content = stream.read(MOST + 1)
    if len(content) > MOST:
        raise OSError(f"it holds more than {MOST:,} bytes")
    return content
