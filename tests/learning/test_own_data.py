"""A user's own data is read as it is, or refused, and never repeated in an error."""

import sys
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decor.errors import InputError
from decor.learning import own_data


@pytest.fixture
def write(tmp_path):
    def written(text, name="data.csv"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return written


def test_the_last_column_is_the_label(write):
    X, y = own_data.read(write("1,2.5,0\n3,-4e1,1\n"))
    assert X.dtype == np.float32 and y.dtype == np.int64
    assert X.tolist() == [[1, 2.5], [3, -40]] and y.tolist() == [0, 1]


@pytest.mark.parametrize("label", ["sick", " sick ", 2, "2"])
def test_the_label_may_be_any_column_by_name_or_number(write, label):
    X, y = own_data.read(write("age,sick,weight\n50,1,70.5\n60,0,80\n"), label=label)
    assert X.tolist() == [[50, 70.5], [60, 80]] and y.tolist() == [1, 0]


@pytest.mark.parametrize(
    "text",
    [
        "a;b;c\n1;2;3\n4;5;6\n",
        "1\t2\t3\n4\t5\t6\n",
        "\ufeffa,b,c\r\n1, 2, 3\r\n\r\n4,5,6",
        '"1","2","3"\n4,5,6\n\n',
    ],
)
def test_files_come_in_many_dialects(write, text):
    X, y = own_data.read(write(text))
    assert X.tolist() == [[1, 2], [4, 5]] and y.tolist() == [3, 6]


def test_a_named_label_says_that_the_first_line_is_a_header(write):
    X, y = own_data.read(write("2019,sick\n1,0\n2,1\n"), label="sick")
    assert X.tolist() == [[1], [2]] and y.tolist() == [0, 1]


def test_labels_that_are_not_whole_are_float32(write):
    _, y = own_data.read(write("1,0.5\n2,1\n"))
    assert y.dtype == np.float32 and y.tolist() == [0.5, 1]
    _, y = own_data.read(write("1,1.0\n2,-3\n"))
    assert y.dtype == np.int64 and y.tolist() == [1, -3]


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(width=32, allow_nan=False, allow_infinity=False), st.integers(0, 9)),
        min_size=1,
        max_size=20,
    )
)
def test_nothing_is_done_to_the_numbers(tmp_path_factory, records):
    path = tmp_path_factory.mktemp("data") / "own.csv"
    path.write_text("".join(f"{x!r},{y}\n" for x, y in records))
    X, y = own_data.read(path)
    assert X[:, 0].tolist() == [x for x, _ in records] and y.tolist() == [
        label for _, label in records
    ]


SECRET = "77123"
REFUSED = [
    (
        f"1,{SECRET},0\n1,x{SECRET},0\n",
        "line 2, column 2 of '.*' is no number; fill it in, or drop the record",
    ),
    (f"{SECRET},2,0\n1,,0\n", "line 2, column 2 of '.*' is empty"),
    (f"{SECRET},2,0\n1,nan,0\n", "line 2, column 2 of '.*' is not finite"),
    (f"{SECRET},2,0\n1,2,-inf\n", "line 2, column 3 of '.*' is not finite"),
    (f"{SECRET},2,0\n1,1e999,0\n", "line 2, column 2 of '.*' is not finite"),
    (f"{SECRET},2,0\n1,1e39,0\n", "the record 1 .* is not finite, or too large"),
    (f"{SECRET},2,0\n1,1_0,0\n", "line 2, column 2 of '.*' is no number"),
    (f"{SECRET},2,0\n1,٣,0\n", "line 2, column 2 of '.*' is no number"),
    (f"{SECRET},2,0\n1,2\n", "line 2 of '.*' has 2 columns, and the lines before have 3"),
    (f"a,b,c\n\n{SECRET},2,0\n1,b,0\n", "line 4, column 2 of '.*' is no number"),
    (
        f"{SECRET},NA,0\n1,2,3\n",
        "line 1 of '.*' is neither a header nor a record: column 2 is no number",
    ),
    (f"{SECRET}\n1\n", "has one column; a record has features and a label"),
    ("a,b\n", "holds no record"),
    ("", "holds no record"),
    (f'1,"{SECRET},0\n', "line 1 of '.*' is not CSV"),
    (f"{SECRET},\x00,1\n", "."),
    (b"\xff\xfe\x00\x01", "is not a text file"),
]


@pytest.mark.parametrize(("text", "said"), REFUSED, ids=[said[:40] for _, said in REFUSED])
def test_errors_say_where_and_never_what(write, text, said):
    with pytest.raises(InputError, match=said) as caught:
        own_data.read(write(text))
    assert SECRET not in str(caught.value)
    assert (
        caught.value.__cause__ is None
        and caught.value.__suppress_context__
        or caught.value.__context__ is None
    )


def test_a_label_that_is_not_there_is_refused_without_naming_what_is(write):
    for label in ("sick", 4, 0, -1, True, "77123x"):
        with pytest.raises(InputError, match="names no column") as caught:
            own_data.read(write("77123,2,0\n"), label=label)
        assert "77123," not in str(caught.value) and "from 1 to 3" in str(caught.value)
    with pytest.raises(InputError, match="several columns called 'a'"):
        own_data.read(write("a,a,b\n1,2,3\n"), label="a")


def test_another_number_of_features_is_refused(write):
    path = write("1,2,0\n")
    assert own_data.read(path, features=2)[0].shape == (1, 2)
    with pytest.raises(InputError, match="has 2 features beside the label, and the model takes 30"):
        own_data.read(path, features=30)


def test_a_file_that_is_not_there_is_named(tmp_path):
    for name in ("nowhere.csv", "nowhere.npz"):
        with pytest.raises(InputError, match="cannot be read: No such file"):
            own_data.read(tmp_path / name)
    with pytest.raises(InputError, match="cannot be read: Is a directory"):
        own_data.read(tmp_path)


def test_numpy_files_hold_x_and_y(tmp_path):
    path = tmp_path / "own.npz"
    np.savez(path, X=np.arange(6.0).reshape(3, 2), y=np.array([True, False, True]))
    X, y = own_data.read(path, features=2)
    assert (
        X.dtype == np.float32
        and y.dtype == np.int64
        and X.shape == (3, 2)
        and y.tolist() == [1, 0, 1]
    )
    with pytest.raises(InputError, match="holds its labels as y; drop it"):
        own_data.read(path, label="y")


BROKEN = [
    ({"X": np.ones((2, 2))}, "has no array y"),
    ({"X": np.ones((2, 2)), "y": np.ones(3)}, r"X has shape \(2, 2\) and y \(3,\)"),
    ({"X": np.ones(2), "y": np.ones(2)}, "give X as .records, features."),
    ({"X": np.ones((0, 2)), "y": np.ones(0)}, "give X as"),
    (
        {"X": np.array([[1.0, np.nan]]), "y": np.ones(1)},
        r"the record 0 \(counted from 0\) .* is "
        r"not finite",
    ),
    (
        {"X": np.ones((2, 1)), "y": np.array([1.0, np.inf])},
        "the label of record 1 .* is not finite",
    ),
    ({"X": np.array([["a"], ["b"]]), "y": np.ones(2)}, "other things than"),
    ({"X": np.ones((2, 1)) * 1j, "y": np.ones(2)}, "other things than"),
    (
        {"X": np.array([[{}]], dtype=object), "y": np.ones(1)},
        "is damaged, or holds other things than numbers",
    ),
    ({"X": np.ones((1, 2)), "y": np.array([1.5e300])}, "too large"),
]


@pytest.mark.parametrize(("arrays", "said"), BROKEN, ids=[said[:30] for _, said in BROKEN])
def test_broken_numpy_files_are_refused(tmp_path, arrays, said):
    np.savez(tmp_path / "own.npz", **arrays)
    with pytest.raises(InputError, match=said):
        own_data.read(tmp_path / "own.npz")


def test_a_damaged_numpy_file_is_refused(tmp_path, write):
    np.savez(tmp_path / "own.npz", X=np.ones((50, 2)), y=np.ones(50))
    whole = (tmp_path / "own.npz").read_bytes()
    with pytest.raises(InputError, match="is damaged"):
        own_data.read(write(whole.replace(b"\x00\x00\xf0?", b"\x01\x00\xf0?", 3), "bad.npz"))
    with pytest.raises(InputError, match="is no .npz file"):
        own_data.read(write(whole[:200], "short.npz"))


def test_a_function_may_give_the_data(monkeypatch):
    own = ModuleType("own_records")
    own.load = lambda: ([[1, 2], [3, 4]], [0, 1])
    own.wrong = lambda: 77123
    own.number = 3

    def broken():
        raise KeyError("77123")

    own.broken = broken
    monkeypatch.setitem(sys.modules, "own_records", own)
    X, y = own_data.read("own_records:load", features=2)
    assert X.tolist() == [[1, 2], [3, 4]] and X.dtype == np.float32 and y.dtype == np.int64
    for name, said in (
        ("own_records:wrong", "must give a pair"),
        ("own_records:broken", "raised KeyError; call the function alone to see why"),
        ("own_records:number", "has no function 'number'"),
        ("no_such_module:load", "cannot be imported"),
    ):
        with pytest.raises(InputError, match=said) as caught:
            own_data.read(name)
        assert "77123" not in str(caught.value)
