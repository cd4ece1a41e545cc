"""Files of public datasets: where they are searched, their checksums, and their addresses."""

from __future__ import annotations

import bz2
import hashlib
import lzma
import os
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from decor.errors import InputError

# a file that unpacks to terabytes must not fill the memory
MOST = 2**27
"""No file of these datasets is larger, packed or not; reading stops there."""


@dataclass(frozen=True)
class File:
    """A file of a dataset.

    Attributes:
        name: As published.
        md5: Of the bytes as published.
        endings: Of copies that were packed once more, to search for too.
        other_md5: Of the same file in another split of the dataset, which is read as well.
    """

    name: str
    md5: str
    endings: tuple[str, ...] = ("",)
    other_md5: str | None = None


@dataclass(frozen=True)
class Source:
    """The files of a dataset.

    Attributes:
        name: The dataset, and the folder to search for its files.
        home: The address to download them from.
        files: The files.
    """

    name: str
    home: str
    files: tuple[File, ...]


# copies that were packed again to save space
_PACKED = ("", ".xz", ".bz2")

_A9A = Source(
    "a9a",
    "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/",
    (
        File("a9a", "fb3596510d780aaf76a06dc721d49662", _PACKED),
        File("a9a.t", "f0bb16cf1ee3e80ff560e9d132ee647e", _PACKED),
    ),
)
_MNIST = Source(
    "mnist",
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    (
        File("train-images-idx3-ubyte.gz", "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
        File("train-labels-idx1-ubyte.gz", "d53e105ee54ea40749a09fcbcd1e9432"),
        File("t10k-images-idx3-ubyte.gz", "9fb629c4189551a2d022fa330f9573f3"),
        File("t10k-labels-idx1-ubyte.gz", "ec29112dd5afa0611ce80d1b7f02629c"),
    ),
)
# the other split is of the same images: 1,000 of each class for testing (docs/reproduction.md)
_FASHION_MNIST = Source(
    "fashion-mnist",
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    (
        File(
            "train-images-idx3-ubyte.gz",
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            other_md5="ec4bafacbf36d3014b2255cc64180bf1",
        ),
        File(
            "train-labels-idx1-ubyte.gz",
            "25c81989df183df01b3e8a0aad5dffbe",
            other_md5="0d1398e6a7c873740e874d8958554d63",
        ),
        File(
            "t10k-images-idx3-ubyte.gz",
            "bef4ecab320f06d8554ea6380940ec79",
            other_md5="fe3dbb038aa0b180da66a889d55379a8",
        ),
        File(
            "t10k-labels-idx1-ubyte.gz",
            "bb300cfdad3c16e7a12a480ee83cd310",
            other_md5="7e26b45489f3fcda0d943921bfe9f0ec",
        ),
    ),
)
SOURCES = {"a9a": _A9A, "mnist": _MNIST, "fashion-mnist": _FASHION_MNIST}


def source(name: str) -> Source:
    if name not in SOURCES:
        raise InputError(
            f"there is no dataset in files named {name!r}; there are {', '.join(SOURCES)}"
        )
    return SOURCES[name]


def cache() -> Path:
    """Where downloads go, and the last folder that is searched."""
    return Path("~/.cache/decor").expanduser()


def folders() -> tuple[Path, ...]:
    """Where datasets are searched: $DECOR_DATA if it is set, then ~/.cache/decor."""
    chosen = os.environ.get("DECOR_DATA", "")
    return (Path(chosen).expanduser(), cache()) if chosen else (cache(),)


def read(dataset: str, name: str) -> tuple[bytes, Path]:
    """The bytes of a file as published, with the right checksum, and the path they are from.

    The first copy counts: a broken one is an error, never a reason to search further.
    """
    origin = source(dataset)
    # the caller is one of the loaders here, so the name exists
    file = next(file for file in origin.files if file.name == name)
    path = _find(origin, file)
    try:
        content = _unpack(path)
    except (OSError, EOFError, lzma.LZMAError) as problem:
        raise InputError(
            f"{str(path)!r} cannot be read: {problem}; put a good copy there, from "
            f"{origin.home}{name}"
        ) from None
    way_out = f"delete it and run decor.tasks.download({dataset!r}), or put a good copy there"
    check(file, content, f"{str(path)!r}", way_out)
    return content, path


def is_published(dataset: str, name: str, content: bytes) -> bool:
    """Whether a file that was read is of the published split, and not of another one.

    Args:
        dataset: The dataset.
        name: The file.
        content: As `read` gives it.
    """
    file = next(file for file in source(dataset).files if file.name == name)
    return _md5(content) == file.md5


def check(file: File, content: bytes, what: str, way_out: str) -> None:
    """Refuses content that is neither the published file nor that of the other split.

    Args:
        file: The published file.
        content: The bytes to check.
        what: What the error message calls them.
        way_out: What the error message advises.
    """
    md5 = _md5(content)
    if md5 not in (file.md5, file.other_md5):
        raise InputError(
            f"{what} is not the published {file.name}: its md5 is {md5}, and should be {file.md5}; "
            f"{way_out}"
        )


def _md5(content: bytes) -> str:
    # md5 is what the sites publish: it detects accidents, not attackers
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def _find(origin: Source, file: File) -> Path:
    name = origin.name
    for folder in folders():
        for ending in file.endings:
            path = folder / name / (file.name + ending)
            if path.is_file():
                return path
    names = ", ".join(file.name for file in origin.files)
    places = " or ".join(str(folder / name) for folder in folders())
    raise InputError(
        f"the file {file.name} of {name} is missing: run decor.tasks.download({name!r}), or fetch "
        f"{names} from {origin.home} and put them into {places}; the environment variable "
        f"DECOR_DATA selects another folder above {name}"
    )


def _unpack(path: Path) -> bytes:
    """The bytes of a file; .xz and .bz2 were packed after publication, .gz was published so."""
    stream: IO[bytes]
    if path.suffix == ".xz":
        stream = lzma.open(path)
    elif path.suffix == ".bz2":
        stream = bz2.open(path)
    else:
        stream = path.open("rb")
    with stream:
        # one byte more than allowed, to notice that there is more
        content = stream.read(MOST + 1)
    if len(content) > MOST:
        raise OSError(f"it holds more than {MOST:,} bytes")
    return content
