"""MNIST and Fashion-MNIST: 70,000 images of 28x28 pixels each, digits or pieces of clothing."""

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
SCALES = {"mnist": (0.1307, 0.3081), "fashion-mnist": (0.2860, 0.3530)}
"""Mean and deviation of the training pixels between 0 and 1: well-known public constants."""

Arrays = tuple[NDArray[np.float32], Ints]


def load(dataset: str = "mnist", normalised: bool = True) -> tuple[Arrays, Arrays]:
    """(60,000 training images, 10,000 test images), each (X, y) with flat images.

    Args:
        dataset: "mnist" or "fashion-mnist".
        normalised: Subtracts the mean of pixels and divides by their deviation, as `SCALES` has
            them; else pixels are between 0 and 1.
    """
    mean, deviation = SCALES[dataset] if normalised else (0.0, 1.0)
    parts, published = [], set()
    for prefix in ("train", "t10k"):
        images, labels = (f"{prefix}-{kind}-ubyte.gz" for kind in ("images-idx3", "labels-idx1"))
        contents = [_read(dataset, name) for name in (images, labels)]
        published |= {is_published for _, _, is_published in contents}
        (pixels, where, _), (classes, there, _) = contents
        parts.append((parse_images(pixels, where, mean, deviation), parse_labels(classes, there)))
    # images of one split's training data may be in the other one's test data
    if len(published) > 1:
        raise InputError(
            f"the files of {dataset} are of two different splits; put all four of one split there"
        )
    return parts[0], parts[1]


def is_published_split(dataset: str) -> bool:
    """Whether the files have the split that was published; after `load`, which compares them."""
    return _read(dataset, "t10k-labels-idx1-ubyte.gz")[2]


def parse_images(
    content: bytes, where: str, mean: float = 0.0, deviation: float = 1.0
) -> NDArray[np.float32]:
    """Images in the idx format, one flat row each, (pixel / 255 - mean) / deviation."""
    count, rows, columns = _header(content, 2051, 3, where)
    if (rows, columns) != (SIDE, SIDE):
        raise _problem(where, f"holds images of {rows}x{columns} pixels, not of {SIDE}x{SIDE}")
    pixels = _body(content, 16, count * SIDE * SIDE, where).reshape(count, SIDE * SIDE)
    # in place: a second floating point copy of all images would dominate memory
    X = pixels.astype(np.float32)
    X /= np.float32(255)
    X -= np.float32(mean)
    X /= np.float32(deviation)
    return X


def parse_labels(content: bytes, where: str) -> Ints:
    """Labels in the idx format, 0 to 9."""
    (count,) = _header(content, 2049, 1, where)
    y = _body(content, 8, count, where).astype(np.int64)
    if (y >= CLASSES).any():
        raise _problem(where, f"holds the label {y.max()}, and classes end at {CLASSES - 1}")
    return y


def _read(dataset: str, name: str) -> tuple[bytes, str, bool]:
    """The unpacked file, its path, and whether it is of the published split."""
    content, path = files.read(dataset, name)
    try:
        unpacked = gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as problem:
        # behind the checksum, the reader still does not trust its input
        raise _problem(str(path), f"is not a whole gzip file: {problem}") from None
    return unpacked, str(path), files.is_published(dataset, name, content)


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
