"""MNIST: 70,000 handwritten digits of 28x28 pixels."""

from __future__ import annotations

import gzip
import zlib

import numpy as np
from numpy.typing import NDArray

from decor.array_types import Ints
from decor.errors import InputError

from . import files

SIDE = 28
CLASSES = 10
MEAN, DEVIATION = 0.1307, 0.3081
"""Of the training pixels between 0 and 1: well-known public constants."""

Arrays = tuple[NDArray[np.float32], Ints]


def load() -> tuple[Arrays, Arrays]:
    """(60,000 training images, 10,000 test images), each (X, y): X flat and normalised."""
    return _part("train"), _part("t10k")


def parse_images(content: bytes, where: str) -> NDArray[np.float32]:
    """Images in the idx format, one flat row each, (pixel / 255 - mean) / deviation."""
    count, rows, columns = _header(content, 2051, 3, where)
    if (rows, columns) != (SIDE, SIDE):
        raise _problem(where, f"holds images of {rows}x{columns} pixels, not of {SIDE}x{SIDE}")
    pixels = _body(content, 16, count * SIDE * SIDE, where).reshape(count, SIDE * SIDE)
    # in place: a second floating point copy of all images would dominate memory
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
        raise _problem(where, f"holds the label {y.max()}, and digits end at {CLASSES - 1}")
    return y


def _part(prefix: str) -> Arrays:
    images, where = _read(f"{prefix}-images-idx3-ubyte.gz")
    labels, there = _read(f"{prefix}-labels-idx1-ubyte.gz")
    return parse_images(images, where), parse_labels(labels, there)


def _read(name: str) -> tuple[bytes, str]:
    content, path = files.read("mnist", name)
    try:
        return gzip.decompress(content), str(path)
    except (OSError, EOFError, zlib.error) as problem:
        # behind the checksum, the reader still does not trust its input
        raise _problem(str(path), f"is not a whole gzip file: {problem}") from None


def _header(content: bytes, magic: int, dimensions: int, where: str) -> tuple[int, ...]:
    """The sizes in the header of an idx file: a magic number, then one size per dimension."""
    if len(content) < 4 * (1 + dimensions):
        raise _problem(where, f"ends within its header, after {len(content)} bytes")
    # Python integers: the product of three sizes may exceed 32 bits
    start, *sizes = np.frombuffer(content, dtype=">u4", count=1 + dimensions).tolist()
    if start != magic:
        raise _problem(where, f"starts with {start}, not with the {magic} of its kind of idx file")
    return tuple(sizes)


def _body(content: bytes, start: int, size: int, where: str) -> NDArray[np.uint8]:
    length = len(content) - start
    # checked before the reshape, so that a wrong header cannot allocate memory
    if size == 0 or length != size:
        raise _problem(where, f"holds {length:,} bytes of data where its header tells {size:,}")
    return np.frombuffer(content, dtype=np.uint8, offset=start)


def _problem(where: str, what: str) -> InputError:
    return InputError(f"{where!r} {what}; fetch the file again")
