"""Files of datasets: where they are searched, and that broken copies are refused."""

import hashlib
import lzma
import tracemalloc

import pytest

from decor.errors import InputError
from decor.learning.datasets import a9a, files

from .conftest import PACK, SMALL, put


@pytest.mark.parametrize("ending", PACK)
@pytest.mark.parametrize("place", ["data", "home/.cache/decor"])
def test_files_are_found_in_either_place_packed_or_not(small, ending, place):
    put(small / place, ending)
    (X, y), (_, test_y) = a9a.load()
    assert X.shape == (2, 123) and y.tolist() == [0, 1] and test_y.tolist() == [1]


def test_decor_data_comes_first_and_may_be_unset(small, monkeypatch):
    put(small / "home/.cache/decor")
    chosen = put(small / "data")
    assert files.read("a9a", "a9a") == (SMALL["a9a"], chosen)
    monkeypatch.delenv("DECOR_DATA")
    assert files.read("a9a", "a9a")[1] == small / "home/.cache/decor/a9a/a9a"
    monkeypatch.setenv("DECOR_DATA", "")
    assert files.folders() == (small / "home/.cache/decor",), (
        "an empty variable is not the current folder"
    )


def test_a_missing_file_says_which_one_and_how_to_get_it(small):
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


def test_a_folder_where_a_file_should_be_counts_as_missing(small):
    (small / "data/a9a/a9a").mkdir(parents=True)
    with pytest.raises(InputError, match="missing"):
        a9a.load()


def test_a_changed_file_is_named_with_both_checksums(small):
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


def test_a_broken_copy_is_never_passed_over_for_a_good_one(small):
    put(small / "home/.cache/decor")
    path = put(small / "data", a9a=SMALL["a9a"][:-3])
    with pytest.raises(InputError, match=str(path)):
        a9a.load()


@pytest.mark.parametrize("ending", [".xz", ".bz2"])
@pytest.mark.parametrize(
    "damage",
    [lambda c: c[:-9], lambda c: c[: len(c) // 2], lambda c: b"", lambda c: b"garbage" * 9],
)
def test_damaged_packing_is_an_error_that_names_the_file(small, ending, damage):
    path = put(small / "data", ending, a9a=damage(PACK[ending](SMALL["a9a"])))
    with pytest.raises(InputError, match=f"{path}"):
        a9a.load()


def test_a_small_file_that_unpacks_to_a_huge_one_is_refused(small, monkeypatch):
    monkeypatch.setattr(files, "MOST", 1000)
    put(small / "data", ".xz", a9a=lzma.compress(bytes(2 * 10**7), preset=0))
    tracemalloc.start()
    with pytest.raises(InputError, match="more than 1,000 bytes"):
        a9a.load()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5 * 10**6, "it is not even unpacked"


def test_unknown_datasets_are_refused():
    with pytest.raises(InputError, match="named 'adult'; there are a9a, mnist"):
        files.read("adult", "a9a")


def test_a_file_that_cannot_be_opened_is_named(small, monkeypatch):
    path = put(small / "data")

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(type(path), "open", refuse)
    with pytest.raises(InputError, match=f"{path}.*cannot be read.*Permission denied"):
        a9a.load()
