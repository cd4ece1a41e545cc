"""idx files are read, or refused."""

import gzip
import hashlib
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from decor.errors import InputError
from decor.learning.datasets import files, mnist

from .conftest import needs


def images(count=2, side=28, magic=2051, pixels=None):
    body = bytes(range(256)) * 8
    return struct.pack(">IIII", magic, count, side, side) + (
        body[: count * side * side] if pixels is None else pixels
    )


def test_pixels_are_flat_and_normalised():
    X = mnist.parse_images(images(), "file", *mnist.SCALES["mnist"])
    assert X.shape == (2, 784) and X.dtype == np.float32
    expected = (np.arange(2 * 784) % 256 / 255 - 0.1307) / 0.3081
    assert np.allclose(X.ravel(), expected, atol=1e-6)


def test_labels_are_whole_numbers():
    y = mnist.parse_labels(struct.pack(">II", 2049, 3) + bytes([0, 9, 4]), "file")
    assert y.tolist() == [0, 9, 4] and y.dtype == np.int64


@pytest.mark.parametrize(
    ("parse", "content", "said"),
    [
        (mnist.parse_images, images()[:-1], "1,567 bytes of data where its header tells 1,568"),
        (mnist.parse_images, images() + b"x", "1,569 bytes"),
        (mnist.parse_images, images()[:15], "within its header, after 15 bytes"),
        (mnist.parse_images, b"", "within its header"),
        (mnist.parse_images, images(magic=2049), "starts with 2049, not with the 2051"),
        (mnist.parse_images, images(side=27), "27x27 pixels"),
        (mnist.parse_images, images(count=0), "holds 0 bytes"),
        (
            mnist.parse_images,
            images(count=2**32 - 1, pixels=b"abc"),
            "header tells 3,367,254,359,280",
        ),
        (mnist.parse_labels, struct.pack(">II", 2051, 1) + b"\1", "starts with 2051"),
        (
            mnist.parse_labels,
            struct.pack(">II", 2049, 2) + b"\1",
            "1 bytes of data where its header tells 2",
        ),
        (mnist.parse_labels, struct.pack(">II", 2049, 1) + b"\x0a", "label 10"),
    ],
)
def test_what_is_not_idx_is_refused(parse, content, said):
    with pytest.raises(InputError, match=said) as problem:
        parse(content, "file")
    assert "'file'" in str(problem.value)


@given(st.binary(max_size=40))
def test_garbage_is_refused(content):
    for parse in (mnist.parse_images, mnist.parse_labels):
        with pytest.raises(InputError):
            parse(content, "file")


@pytest.mark.parametrize(
    "kept", [None, -9, 20, 0], ids=["other text", "cut at the end", "cut early", "empty"]
)
def test_files_that_are_no_gzip_are_refused_also_with_the_right_checksum(small, monkeypatch, kept):
    """Behind the checksum there is still a reader that does not trust its input."""
    content = b"no gzip" if kept is None else gzip.compress(images(), mtime=0)[:kept]
    of = files.SOURCES["mnist"]
    copies = tuple(files.File(file.name, hashlib.md5(content).hexdigest()) for file in of.files)
    monkeypatch.setitem(files.SOURCES, "mnist", files.Source("mnist", of.home, copies))
    (small / "data/mnist").mkdir(parents=True)
    for file in of.files:
        (small / "data/mnist" / file.name).write_bytes(content)
    with pytest.raises(InputError, match="gzip|header"):
        mnist.load()


def test_missing_files_say_how_to_get_them(small):
    with pytest.raises(
        InputError,
        match=r"train-images-idx3-ubyte.gz of mnist is missing: run "
        r"decor.tasks.download\('mnist'\)",
    ):
        mnist.load()


def put_fashion(folder, monkeypatch, **other):
    """Small files in the place of Fashion-MNIST's, of the published split but for those named."""
    contents = {
        "train-images": images(2),
        "train-labels": struct.pack(">II", 2049, 2) + bytes([1, 2]),
        "t10k-images": images(1),
        "t10k-labels": struct.pack(">II", 2049, 1) + bytes([4]),
    }
    of, copies = files.SOURCES["fashion-mnist"], []
    (folder / "data/fashion-mnist").mkdir(parents=True, exist_ok=True)
    for file in of.files:
        name = "-".join(file.name.split("-")[:2])
        sums = []
        for split in ("published", "other"):
            packed = gzip.compress(contents[name], mtime=len(split))
            sums.append(hashlib.md5(packed).hexdigest())
            if other.get(name.replace("-", "_"), "published") == split:
                (folder / "data/fashion-mnist" / file.name).write_bytes(packed)
        copies.append(files.File(file.name, sums[0], other_md5=sums[1]))
    made = files.Source("fashion-mnist", of.home, tuple(copies))
    monkeypatch.setitem(files.SOURCES, "fashion-mnist", made)


ALL = ("train_images", "train_labels", "t10k_images", "t10k_labels")


def test_both_splits_are_read_and_told_apart(small, monkeypatch):
    put_fashion(small, monkeypatch)
    (X, y), (test_X, test_y) = mnist.load("fashion-mnist", normalised=False)
    assert mnist.is_published_split("fashion-mnist")
    assert (y.tolist(), test_y.tolist()) == ([1, 2], [4])
    assert np.array_equal(X[0], (np.arange(784) % 256 / 255).astype(np.float32))
    scaled = (test_X - np.float32(0.2860)) / np.float32(0.3530)
    assert np.allclose(mnist.load("fashion-mnist")[1][0], scaled)
    put_fashion(small, monkeypatch, **dict.fromkeys(ALL, "other"))
    assert mnist.load("fashion-mnist")[0][1].tolist() == [1, 2]
    assert not mnist.is_published_split("fashion-mnist")


@pytest.mark.parametrize("one", ALL)
def test_files_of_two_splits_are_refused(small, monkeypatch, one):
    """An image could be in the training data of one and in the test data of the other."""
    put_fashion(small, monkeypatch, **{one: "other"})
    with pytest.raises(InputError, match="files of fashion-mnist are of two different splits"):
        mnist.load("fashion-mnist")


def counts(text):
    return [int(word) for word in text.split()]


@needs("mnist")
def test_the_published_files_hold_what_they_are_known_to_hold():
    (X, y), (test_X, test_y) = mnist.load()
    assert X.shape == (60_000, 784) and test_X.shape == (10_000, 784)
    assert np.bincount(y).tolist() == counts("5923 6742 5958 6131 5842 5421 5918 6265 5851 5949")
    assert np.bincount(test_y).tolist() == counts("980 1135 1032 1010 982 892 958 1028 974 1009")
    assert abs(X.mean(dtype=np.float64)) < 2e-4 and abs(X.std(dtype=np.float64) - 1) < 2e-4, (
        "normalised by its own pixels"
    )
    assert y[:5].tolist() == [5, 0, 4, 1, 9] and test_y[:3].tolist() == [7, 2, 1]


@needs("fashion-mnist")
def test_the_files_of_fashion_mnist_hold_what_they_are_known_to_hold():
    (X, y), (test_X, test_y) = mnist.load("fashion-mnist")
    assert X.shape == (60_000, 784) and test_X.shape == (10_000, 784)
    each = np.bincount(test_y)
    assert each.tolist() == [1000] * 10 and np.bincount(y).max() <= 6002
    # of either split: the constants are of all 70,000 images
    assert abs(X.mean(dtype=np.float64)) < 5e-3 and abs(X.std(dtype=np.float64) - 1) < 5e-3
