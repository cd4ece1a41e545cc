"""MNIST: 70,000 written digits of 28x28 pixels."""

from __future__ import annotations

import gzip
import zlib

import numpy as np
from numpy.typing import NDArray

from decor.arrays import Ints
from decor.errors import InputError

from . import files

SIDE = 28
CLASSES = 10
MEAN, DEVIATION = 0.1307, 0.3081
"""Of the pixels of the training images between 0 and 1: public numbers, which everybody uses."""

Arrays = tuple[NDArray[np.float32], Ints]


def load() -> tuple[Arrays, Arrays]:
    """(60,000 training images, 10,000 test images), each (X, y): X flat and normalised, y the
    digit.
    """
    return _part("train"), _part("t10k")


def parse_images(content: bytes, where: str) -> NDArray[np.float32]:
    """Images in the idx format, one flat row each, (pixel / 255 - mean) / deviation."""
    count, rows, columns = _header(content, 2051, 3, where)
    if (rows, columns) != (SIDE, SIDE):
        raise InputError(
            f"{where!r} holds images of {rows}x{columns} pixels, not of "
            f"{SIDE}x{SIDE}; fetch the file again"
        )
    pixels = _body(content, 16, count * SIDE * SIDE, where).reshape(count, SIDE * SIDE)
    # in place: a second copy of all images in floating point would be the largest thing in memory
    X = pixels.astype(np.float32)
    X /= np.float32(255)
    X -= np.float32(MEAN)
    X /= np.float32(DEVIATION)
    return X


def parse_labels(content: bytes, where: str) -> Ints:
    """Labels in the idx format, 0 to 9."""
    (count,) = _header(content, 2049, 1, where)
    y = _body(content, 8, count, where).astype(np.int64)
    if (y >= CLASSES).any():
        raise InputError(
            f"{where!r} holds the label {y.max()}, and digits end at {CLASSES - 1}; "
            "fetch the file again"
        )
    return y


def _part(prefix: str) -> Arrays:
    images, where = files.read("mnist", f"{prefix}-images-idx3-ubyte.gz")
    labels, there = files.read("mnist", f"{prefix}-labels-idx1-ubyte.gz")
    return parse_images(_unpacked(images, str(where)), str(where)), parse_labels(
        _unpacked(labels, str(there)), str(there)
    )


def _unpacked(content: bytes, where: str) -> bytes:
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as problem:
        raise InputError(
            f"{where!r} is not a whole gzip file: {problem}; fetch the file again"
        ) from None


def _header(content: bytes, magic: int, dimensions: int, where: str) -> tuple[int, ...]:
    if len(content) < 4 * (1 + dimensions):
        raise InputError(
            f"{where!r} ends within its header, after {len(content)} bytes; fetch the file again"
        )
    found, *sizes = (
        int(number) for number in np.frombuffer(content, dtype=">u4", count=1 + dimensions)
    )
    if found != magic:
        raise InputError(
            f"{where!r} starts with {found}, not with the {magic} of its kind of idx "
            "file; fetch the file again"
        )
    return tuple(sizes)


def _body(content: bytes, start: int, size: int, where: str) -> NDArray[np.uint8]:
    if size == 0 or len(content) != start + size:
        raise InputError(
            f"{where!r} holds {len(content) - start:,} bytes of data where its header tells "
            f"{size:,}; fetch the file again"
        )
    return np.frombuffer(content, dtype=np.uint8, offset=start)
