"""LIBSVM files are read as scikit-learn reads them, or refused."""

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_svmlight_file

from decor.errors import InputError
from decor.learning.datasets import a9a, files

from .conftest import needs

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


@given(rows, st.sampled_from(["\n", " \n", "\r\n", "\n\n", "\t\n"]))
def test_rows_are_read_as_scikit_learn_reads_them(table, end):
    text = "".join(
        label + "".join(f" {i}:{v}" for i, v in sorted(row.items())) + end for label, row in table
    ).encode()
    X, y = a9a.parse(text, "file")
    expected, labels = load_svmlight_file(
        io.BytesIO(text), n_features=123, dtype=np.float64, zero_based=False
    )
    assert X.dtype == np.float32 and np.array_equal(X, expected.toarray().astype(np.float32))
    assert y.dtype == np.int64 and np.array_equal(y, labels > 0)


def test_the_end_of_the_last_line_may_be_missing():
    X, y = a9a.parse(b"\n+1 1:1\n-1 2:0.5", "file")
    assert np.argwhere(X).tolist() == [[0, 0], [1, 1]] and X[1, 1] == 0.5 and y.tolist() == [1, 0]


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
def test_what_is_not_libsvm_is_refused_with_its_line(text, said):
    with pytest.raises(InputError, match=said):
        a9a.parse(text, "file")


@given(st.text("-+1 2:.\n", max_size=40) | st.binary(max_size=30))
def test_garbage_is_read_or_refused_and_nothing_else(text):
    try:
        X, y = a9a.parse(text if isinstance(text, bytes) else text.encode(), "file")
    except InputError:
        return
    assert len(X) == len(y) > 0 and np.isfinite(X).all() and set(y) <= {0, 1}


@needs("a9a")
def test_the_published_files_are_read_as_scikit_learn_reads_them():
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
