import bz2
import gzip
import hashlib
import io
import lzma
import os
import struct
import threading
import time
import tracemalloc
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_svmlight_file

from decor import progress
from decor.errors import InputError
from decor.learning.datasets import a9a, download, embedded, files, mnist

PACK = {"": bytes, ".xz": lzma.compress, ".bz2": bz2.compress}
SMALL = {"a9a": b"-1 3:1 123:1 \n+1 1:1 \n", "a9a.t": b"+1 2:1 122:1 \n"}


def needs(name):
    there = all(
        any(
            (folder / name / (file.name + ending)).is_file()
            for folder in files.folders()
            for ending in file.endings
        )
        for file in files.SOURCES[name].files
    )
    return pytest.mark.skipif(
        not there, reason=f"the files of {name} are not in DECOR_DATA or ~/.cache/decor"
    )


@pytest.fixture
def small(monkeypatch, tmp_path):
    """A dataset of the shape of a9a with few rows, and an empty home: no test reads or writes the
    real one.
    """
    of = files.SOURCES["a9a"]
    shrunk = tuple(
        files.File(f.name, hashlib.md5(SMALL[f.name]).hexdigest(), f.endings) for f in of.files
    )
    monkeypatch.setitem(files.SOURCES, "a9a", files.Source("a9a", of.home, shrunk))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DECOR_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("no_proxy", "*")
    return tmp_path


def put(folder, ending="", **changed):
    for name, content in SMALL.items():
        path = folder / "a9a" / (name + ending)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(changed.get(name, PACK[ending](content)))
    return folder / "a9a" / ("a9a" + ending)


class TestFiles:
    @pytest.mark.parametrize("ending", PACK)
    @pytest.mark.parametrize("place", ["data", "home/.cache/decor"])
    def test_files_are_found_in_either_place_packed_or_not(self, small, ending, place):
        put(small / place, ending)
        (X, y), (_, test_y) = a9a.load()
        assert X.shape == (2, 123) and y.tolist() == [0, 1] and test_y.tolist() == [1]

    def test_decor_data_comes_first_and_may_be_unset(self, small, monkeypatch):
        put(small / "home/.cache/decor")
        chosen = put(small / "data")
        assert files.read("a9a", "a9a") == (SMALL["a9a"], chosen)
        monkeypatch.delenv("DECOR_DATA")
        assert files.read("a9a", "a9a")[1] == small / "home/.cache/decor/a9a/a9a"
        monkeypatch.setenv("DECOR_DATA", "")
        assert files.folders() == (small / "home/.cache/decor",), (
            "an empty variable is not the current folder"
        )

    def test_a_missing_file_says_which_one_and_how_to_get_it(self, small):
        with pytest.raises(InputError) as problem:
            a9a.load()
        said = str(problem.value)
        for part in (
            "the file a9a of a9a",
            "decor.tasks.download('a9a')",
            "https://www.csie.ntu.edu.tw",
            "a9a, a9a.t",
        ):
            assert part in said
        assert str(small / "data" / "a9a") in said and str(small / "home/.cache/decor/a9a") in said
        put(small / "data").unlink()
        with pytest.raises(InputError, match="the file a9a of a9a"):
            a9a.load()

    def test_a_folder_where_a_file_should_be_counts_as_missing(self, small):
        (small / "data/a9a/a9a").mkdir(parents=True)
        with pytest.raises(InputError, match="missing"):
            a9a.load()

    def test_a_changed_file_is_named_with_both_checksums(self, small):
        other = SMALL["a9a"].replace(b"3:1", b"4:1")
        path = put(small / "data", a9a=other)
        with pytest.raises(InputError) as problem:
            a9a.load()
        for part in (
            str(path),
            hashlib.md5(other).hexdigest(),
            hashlib.md5(SMALL["a9a"]).hexdigest(),
            "download",
        ):
            assert part in str(problem.value)

    def test_a_broken_copy_is_never_passed_over_for_a_good_one(self, small):
        put(small / "home/.cache/decor")
        path = put(small / "data", a9a=SMALL["a9a"][:-3])
        with pytest.raises(InputError, match=str(path)):
            a9a.load()

    @pytest.mark.parametrize("ending", [".xz", ".bz2"])
    @pytest.mark.parametrize(
        "damage",
        [lambda c: c[:-9], lambda c: c[: len(c) // 2], lambda c: b"", lambda c: b"garbage" * 9],
    )
    def test_damaged_packing_is_an_error_that_names_the_file(self, small, ending, damage):
        path = put(small / "data", ending, a9a=damage(PACK[ending](SMALL["a9a"])))
        with pytest.raises(InputError, match=f"{path}"):
            a9a.load()

    def test_a_small_file_that_unpacks_to_a_huge_one_is_refused(self, small, monkeypatch):
        monkeypatch.setattr(files, "MOST", 1000)
        put(small / "data", ".xz", a9a=lzma.compress(bytes(2 * 10**7), preset=0))
        tracemalloc.start()
        with pytest.raises(InputError, match="more than 1,000 bytes"):
            a9a.load()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 5 * 10**6, "it is not even unpacked"

    def test_unknown_datasets_are_refused(self):
        with pytest.raises(InputError, match="named 'adult'; there are a9a, mnist"):
            files.read("adult", "a9a")

    def test_a_file_that_cannot_be_opened_is_named(self, small, monkeypatch):
        path = put(small / "data")

        def refuse(*_, **__):
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(type(path), "open", refuse)
        with pytest.raises(InputError, match=f"{path}.*cannot be read.*Permission denied"):
            a9a.load()


class Server(ThreadingHTTPServer):
    """Serves SMALL; `ways` says what goes wrong with a file."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Answer)
        self.ways, self.asked = {}, []

    @property
    def base(self):
        return f"http://127.0.0.1:{self.server_address[1]}/some/folder"


class Answer(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        name = self.path.rpartition("/")[2]
        self.server.asked.append(self.path)
        way, content = self.server.ways.get(name, "right"), SMALL[name]
        if way == "nonsense":
            self.wfile.write(b"this is not http\r\n\r\n")
            return
        if way == "late":
            time.sleep(1)
            return
        self.send_response(404 if way == "absent" else 200)
        if way != "untold":
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(
            content[:5]
            if way in ("cut", "untold")
            else content.replace(b"2:", b"3:")
            if way == "changed"
            else content
        )


@pytest.fixture
def server(small):
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


class TestDownload:
    def test_files_come_whole_are_found_and_are_not_fetched_again(self, server, small):
        told = []
        with progress.listening(lambda what, fraction: told.append((what, fraction))):
            paths = download.download("a9a", base=server.base)
        assert [path.read_bytes() for path in paths] == list(SMALL.values())
        assert paths == (small / "home/.cache/decor/a9a/a9a", small / "home/.cache/decor/a9a/a9a.t")
        assert server.asked == ["/some/folder/a9a", "/some/folder/a9a.t"]
        assert told[-1] == (f"fetching {server.base}/a9a.t", 1.0)
        assert a9a.load()[0][1].tolist() == [0, 1]
        assert download.download("a9a", base=server.base) == paths and len(server.asked) == 2

    @pytest.mark.parametrize(
        ("way", "said"),
        [
            ("cut", f"ended after 5 of {len(SMALL['a9a.t'])} bytes"),
            ("untold", "its md5 is"),
            ("changed", hashlib.md5(SMALL["a9a.t"]).hexdigest()),
            ("absent", "404"),
            ("nonsense", "cannot be fetched"),
            ("late", "cannot be fetched: .*timed out"),
        ],
    )
    def test_what_comes_broken_leaves_nothing_behind(self, server, small, monkeypatch, way, said):
        monkeypatch.setattr(download, "PATIENCE_S", 0.2 if way == "late" else 5)
        server.ways["a9a.t"] = way
        with pytest.raises(InputError, match=said) as problem:
            download.download("a9a", base=server.base)
        assert f"{server.base}/a9a.t" in str(problem.value) and str(
            small / "home/.cache/decor/a9a/a9a.t"
        ) in str(problem.value)
        assert os.listdir(small / "home/.cache/decor/a9a") == ["a9a"], (
            "the good file stays, of the other not even a part"
        )
        server.ways.clear()
        monkeypatch.setattr(download, "PATIENCE_S", 5)
        download.download("a9a", base=server.base)
        assert [path.rpartition("/")[2] for path in server.asked] == ["a9a", "a9a.t", "a9a.t"]

    def test_a_broken_file_in_the_cache_is_replaced(self, server, small):
        path = put(small / "home/.cache/decor", a9a=b"old and broken")
        download.download("a9a", base=server.base + "/")
        assert path.read_bytes() == SMALL["a9a"] and server.asked == ["/some/folder/a9a"]

    def test_a_disk_that_fails_leaves_no_part_of_a_file(self, server, small, monkeypatch):
        def refuse(*_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "replace", refuse)
        with pytest.raises(InputError, match="cannot be written to .*No space left"):
            download.download("a9a", base=server.base)
        assert os.listdir(small / "home/.cache/decor/a9a") == []

    def test_too_much_is_not_read_to_its_end(self, server, monkeypatch):
        monkeypatch.setattr(files, "MOST", 10)
        with pytest.raises(InputError, match="more than 10 bytes came"):
            download.download("a9a", base=server.base)

    def test_nobody_listening_is_said(self, server):
        server.server_close()
        with pytest.raises(InputError, match="cannot be fetched"):
            download.download("a9a", base=server.base)

    @pytest.mark.parametrize("base", ["file:///etc", "ftp://host", "", "a9a"])
    def test_only_the_web_is_asked(self, small, base):
        with pytest.raises(InputError, match="http or https"):
            download.download("a9a", base=base)

    def test_unknown_datasets_are_refused(self, small):
        with pytest.raises(InputError, match="there are a9a, mnist"):
            download.download("cifar")


rows = st.lists(
    st.tuples(
        st.sampled_from(["-1", "+1", "1"]),
        st.dictionaries(
            st.integers(1, 123),
            st.floats(-1e6, 1e6, width=32).map(lambda v: f"{v:.9g}"),
            max_size=8,
        ),
    ),
    min_size=1,
    max_size=12,
)


class TestA9a:
    @given(rows, st.sampled_from(["\n", " \n", "\r\n", "\n\n", "\t\n"]))
    def test_rows_are_read_as_scikit_learn_reads_them(self, table, end):
        text = "".join(
            label + "".join(f" {i}:{v}" for i, v in sorted(row.items())) + end
            for label, row in table
        ).encode()
        X, y = a9a.parse(text, "file")
        expected, labels = load_svmlight_file(
            io.BytesIO(text), n_features=123, dtype=np.float64, zero_based=False
        )
        assert X.dtype == np.float32 and np.array_equal(X, expected.toarray().astype(np.float32))
        assert y.dtype == np.int64 and np.array_equal(y, labels > 0)

    def test_the_end_of_the_last_line_may_be_missing(self):
        X, y = a9a.parse(b"\n+1 1:1\n-1 2:0.5", "file")
        assert (
            np.argwhere(X).tolist() == [[0, 0], [1, 1]] and X[1, 1] == 0.5 and y.tolist() == [1, 0]
        )

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            (b"", "no rows"),
            (b" \n\n", "no rows"),
            (b"+1 1:1\n3:1 4:1\n", "line 2 of 'file'"),
            (b"+1 1:1\n-1 4\n", "line 2 of 'file'"),
            (b"+1 1:1\n-1 4:\n", "line 2 of 'file'"),
            (b"-1 4:\n1:1\n", "line 1 of 'file'"),
            (b"+1 1:1 2\n-1 4:1\n", "line 1 of 'file'"),
            (b"+1 1 :1\n", "line 1 of 'file'"),
            (b"+1 1::1\n", "LIBSVM"),
            (b"+1 1:1 :\n", "LIBSVM"),
            (b"\n+1 124:1\n", "line 2 .*from 1 to 123, not 124"),
            (b"+1 0:1\n", "from 1 to 123, not 0"),
            (b"+1 1.5:1\n", "whole number from 1 to 123, not 1.5"),
            (b"+1 nan:1\n", "whole number"),
            (b"2 1:1\n", "label is -1 or \\+1, not 2"),
            (b"+1 1:inf\n", "finite number, not inf"),
            (b"+1 1:one\n", "no number"),
            (b"<html>not found</html>", "line 1 of 'file'"),
            (b"\xff\xfe", "no number"),
        ],
    )
    def test_what_is_not_libsvm_is_refused_with_its_line(self, text, said):
        with pytest.raises(InputError, match=said):
            a9a.parse(text, "file")

    @given(st.text("-+1 2:.\n", max_size=40) | st.binary(max_size=30))
    def test_garbage_is_read_or_refused_and_nothing_else(self, text):
        try:
            X, y = a9a.parse(text if isinstance(text, bytes) else text.encode(), "file")
        except InputError:
            return
        assert len(X) == len(y) > 0 and np.isfinite(X).all() and set(y) <= {0, 1}

    @needs("a9a")
    def test_the_published_files_are_read_as_scikit_learn_reads_them(self):
        loaded = a9a.load()
        for (X, y), name, count in zip(loaded, ("a9a", "a9a.t"), (32_561, 16_281), strict=True):
            expected, labels = load_svmlight_file(
                io.BytesIO(files.read("a9a", name)[0]), n_features=123
            )
            assert X.shape == (count, 123) and X.dtype == np.float32
            assert np.array_equal(X, expected.toarray()) and np.array_equal(y, labels > 0)
        (X, y), (test_X, test_y) = loaded
        assert X[:, -1].any() and not test_X[:, -1].any() and test_X[:, -2].any(), (
            "the test rows lack the last feature"
        )
        assert (y.sum(), test_y.sum()) == (7_841, 3_846)


def images(count=2, side=28, magic=2051, pixels=None):
    body = bytes(range(256)) * 8
    return struct.pack(">IIII", magic, count, side, side) + (
        body[: count * side * side] if pixels is None else pixels
    )


class TestMnist:
    def test_pixels_are_flat_and_normalised(self):
        X = mnist.parse_images(images(), "file")
        assert X.shape == (2, 784) and X.dtype == np.float32
        expected = (np.arange(2 * 784) % 256 / 255 - 0.1307) / 0.3081
        assert np.allclose(X.ravel(), expected, atol=1e-6)

    def test_labels_are_whole_numbers(self):
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
    def test_what_is_not_idx_is_refused(self, parse, content, said):
        with pytest.raises(InputError, match=said) as problem:
            parse(content, "file")
        assert "'file'" in str(problem.value)

    @given(st.binary(max_size=40))
    def test_garbage_is_refused(self, content):
        for parse in (mnist.parse_images, mnist.parse_labels):
            with pytest.raises(InputError):
                parse(content, "file")

    @pytest.mark.parametrize(
        "kept", [None, -9, 20, 0], ids=["other text", "cut at the end", "cut early", "empty"]
    )
    def test_files_that_are_no_gzip_are_refused_also_with_the_right_checksum(
        self, small, monkeypatch, kept
    ):
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

    def test_missing_files_say_how_to_get_them(self, small):
        with pytest.raises(
            InputError,
            match=r"train-images-idx3-ubyte.gz of mnist is missing: run "
            r"decor.tasks.download\('mnist'\)",
        ):
            mnist.load()

    @needs("mnist")
    def test_the_published_files_hold_what_they_are_known_to_hold(self):
        (X, y), (test_X, test_y) = mnist.load()
        assert X.shape == (60_000, 784) and test_X.shape == (10_000, 784)
        assert np.bincount(y).tolist() == [
            5923,
            6742,
            5958,
            6131,
            5842,
            5421,
            5918,
            6265,
            5851,
            5949,
        ]
        assert np.bincount(test_y).tolist() == [
            980,
            1135,
            1032,
            1010,
            982,
            892,
            958,
            1028,
            974,
            1009,
        ]
        assert abs(X.mean(dtype=np.float64)) < 2e-4 and abs(X.std(dtype=np.float64) - 1) < 2e-4, (
            "normalised by its own pixels"
        )
        assert y[:5].tolist() == [5, 0, 4, 1, 9] and test_y[:3].tolist() == [7, 2, 1]


class TestEmbedded:
    def test_they_hold_what_they_are_known_to_hold(self):
        X, y = embedded.breast_cancer()
        assert X.shape == (569, 30) and np.bincount(y).tolist() == [212, 357], (
            "212 malignant, 357 benign"
        )
        X, y = embedded.digits()
        assert X.shape == (1797, 64) and X.min() == 0 and X.max() == 1 and set(y) == set(range(10))

    def test_without_scikit_learn_the_error_says_what_to_install(self, monkeypatch):
        monkeypatch.setitem(__import__("sys").modules, "sklearn", None)
        with pytest.raises(InputError, match="pip install scikit-learn"):
            embedded.digits()
