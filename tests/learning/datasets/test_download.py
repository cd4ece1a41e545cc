"""Downloads: whole and right, or not at all."""

import hashlib
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from decor import progress
from decor.errors import InputError
from decor.learning.datasets import a9a, download, files

from .conftest import SMALL, put


class Server(ThreadingHTTPServer):
    """Serves SMALL; `ways` says what goes wrong with a file."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Answer)
        self.ways, self.asked, self.over = {}, [], threading.Event()

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
            self.server.over.wait(60)
            return
        self.send_response(404 if way == "absent" else 200)
        if way != "unreports":
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(
            content[:5]
            if way in ("cut", "unreports")
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
        running.over.set()
        running.shutdown()
        thread.join()


def test_files_come_whole_are_found_and_are_not_fetched_again(server, small):
    reports = []
    with progress.listening(lambda what, fraction: reports.append((what, fraction))):
        paths = download.download("a9a", base=server.base)
    assert [path.read_bytes() for path in paths] == list(SMALL.values())
    assert paths == (small / "home/.cache/decor/a9a/a9a", small / "home/.cache/decor/a9a/a9a.t")
    assert server.asked == ["/some/folder/a9a", "/some/folder/a9a.t"]
    assert reports[-1] == (f"fetching {server.base}/a9a.t", 1.0)
    assert a9a.load()[0][1].tolist() == [0, 1]
    assert download.download("a9a", base=server.base) == paths and len(server.asked) == 2


@pytest.mark.parametrize(
    ("way", "said"),
    [
        ("cut", f"ended after 5 of {len(SMALL['a9a.t'])} bytes"),
        ("unreports", "its md5 is"),
        ("changed", hashlib.md5(SMALL["a9a.t"]).hexdigest()),
        ("absent", "404"),
        ("nonsense", "cannot be fetched"),
        ("late", "cannot be fetched: .*timed out"),
    ],
)
def test_what_comes_broken_leaves_nothing_behind(server, small, monkeypatch, way, said):
    monkeypatch.setattr(download, "PATIENCE_S", 2 if way == "late" else 60)
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
    monkeypatch.setattr(download, "PATIENCE_S", 60)
    download.download("a9a", base=server.base)
    assert [path.rpartition("/")[2] for path in server.asked] == ["a9a", "a9a.t", "a9a.t"]


def test_a_broken_file_in_the_cache_is_replaced(server, small):
    path = put(small / "home/.cache/decor", a9a=b"old and broken")
    download.download("a9a", base=server.base + "/")
    assert path.read_bytes() == SMALL["a9a"] and server.asked == ["/some/folder/a9a"]


def test_a_disk_that_fails_leaves_no_part_of_a_file(server, small, monkeypatch):
    def refuse(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(InputError, match="cannot be written to .*No space left"):
        download.download("a9a", base=server.base)
    assert os.listdir(small / "home/.cache/decor/a9a") == []


def test_too_much_is_not_read_to_its_end(server, monkeypatch):
    monkeypatch.setattr(files, "MOST", 10)
    with pytest.raises(InputError, match="more than 10 bytes came"):
        download.download("a9a", base=server.base)


def test_a_closed_port_is_an_error(server):
    server.server_close()
    with pytest.raises(InputError, match="cannot be fetched"):
        download.download("a9a", base=server.base)


@pytest.mark.parametrize("base", ["file:///etc", "ftp://host", "", "a9a"])
def test_only_the_web_is_asked(small, base):
    with pytest.raises(InputError, match="http or https"):
        download.download("a9a", base=base)


def test_unknown_datasets_are_refused(small):
    with pytest.raises(InputError, match="there are a9a, mnist"):
        download.download("cifar")
