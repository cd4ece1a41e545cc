"""A small copy of a9a, in folders that no other test reads."""

import bz2
import hashlib
import lzma

import pytest

from decor.learning.datasets import files

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
    """A small a9a and an empty home, so that no test reads or writes the real files."""
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
