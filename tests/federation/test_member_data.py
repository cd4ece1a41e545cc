"""A user's table as the federation's file prepares it: columns by name, values never refused."""

import numpy as np
import pytest
from federation_files import BASES, COMMON, DATA, EXAMPLE, TEXT

from decor.errors import InputError
from decor.federation.federation import Federation
from decor.federation.member_data import read_member_data, read_test_data

FILE = Federation.parse(BASES["columns"])
DECLARED = Federation.parse(
    EXAMPLE.replace("features = 30\n", "")
    .replace("records = 120", "records = 4")
    .replace("batch_size = 20", "batch_size = 2")
    + DATA
)
ROWS = "age,ward,sick\n50,north,no\n0,south,yes\n100,west,yes\n"


@pytest.fixture
def read(tmp_path):
    def from_text(text, federation=FILE, **more):
        path = tmp_path / "own.csv"
        path.write_text(text)
        return read_member_data(federation, path, **more)

    return from_text


def test_columns_are_found_by_their_names(read):
    one = read(ROWS)
    swapped = read("sick;age;ward\nno;50;north\nyes;0;south\nyes;100;west\n")
    for first, second in zip(one.shard, swapped.shard, strict=True):
        assert first.dtype == second.dtype and np.array_equal(first, second)
    X, y = one.shard
    assert X.tolist() == [[0, 1, 0, 0], [-1, 0, 1, 0], [1, 0, 0, 1]] and y.tolist() == [0, 1, 1]
    # the order of the model's inputs is the file's, and part of what users compare
    assert FILE.model.features == 4 and FILE.model.classes == 2
    assert FILE.task(one.shard).parameters == FILE.parameters == 5


@pytest.mark.parametrize(
    ("header", "problem"),
    [
        ("age,sick", "no column 'ward'"),
        ("age,ward,sick,bp", "column 'bp', which the description does not name"),
        ("age,Ward,sick", "no column 'ward', but has 'Ward'"),
        ("age,ward,sick,age", "column 'age' more than once"),
        ("50,1,0", "holds numbers, not the names of columns"),
    ],
)
def test_wrong_columns_are_refused(read, header, problem):
    with pytest.raises(InputError, match=problem):
        read(header + "\n" + ",".join("1" * (header.count(",") + 1)) + "\n")


def test_no_value_is_refused(read):
    hostile = ["", "nan", "1e999", "-inf", "ü", "0x10", "yes", "a" * 5000, "1_0"]
    data = read("age,ward,sick\n" + "".join(f"{v},{v},{s}\n" for v in hostile for s in ("no", v)))
    X, y = data.shard
    assert np.isfinite(X).all() and np.abs(X).max() <= 1 and set(y.tolist()) <= {0, 1}
    FILE.task(data.shard)
    counts = data.counts
    assert counts.records == 18 and counts.dropped == 8
    assert (counts.columns["age"].clamped, counts.columns["ward"].missing) == (2, 1)


@pytest.mark.parametrize("rows", ["", "50,north,\n", "50,north,perhaps\n51,south,\n"])
def test_a_user_without_a_known_label_joins_all_the_same(read, rows):
    data = read("age,ward,sick\n" + rows)
    assert data.shard[0].tolist() == [[0, 0, 0, 0]] and data.shard[1].tolist() == [0]
    assert FILE.task(data.shard, user=0).counts == (1,) and data.counts.used == 0


def test_where_the_number_of_records_is_public_it_does_not_depend_on_labels(read):
    """Each record is prepared by itself, so that neighbours cannot tell a label from its refusal."""
    rows = ["50,north,no\n", "0,south,yes\n", "100,west,perhaps\n", "7,north,\n"]
    data = read("age,ward,sick\n" + "".join(rows), DECLARED, number=1)
    X, y = data.shard
    assert len(X) == len(y) == 4 and (X[2:] == 0).all() and y.tolist() == [0, 1, 0, 1]
    assert DECLARED.task(data.shard, user=1).counts == (4,)
    with pytest.raises(InputError, match=r"3 records, and users.records says 4"):
        DECLARED.task(read("age,ward,sick\n" + "".join(rows[:3]), DECLARED, number=1).shard, user=1)


def test_with_a_common_rate_one_record_less_is_one_example_less_even_if_it_was_the_only_one(read):
    """A constant record that stood in for the last one would replace it, at twice the shift."""
    file = Federation.parse(COMMON.replace("features = 30\n", "") + DATA)
    all_three, two, none = (
        read(text, file, number=0).shard
        for text in (ROWS, ROWS.rsplit("100", 1)[0], "age,ward,sick\n")
    )
    assert [len(X) for X, _ in (all_three, two, none)] == [4, 3, 1]
    # what is left is the same
    assert np.array_equal(two[0], np.delete(all_three[0], 2, 0))
    assert np.array_equal(none[0], two[0][2:]) and np.array_equal(none[1], two[1][2:])


def test_public_test_records_without_a_label_are_left_out(tmp_path):
    path = tmp_path / "test.csv"
    path.write_text(ROWS + "20,north,\n")
    assert len(read_test_data(FILE, path)[1]) == 3
    path.write_text("age,ward,sick\n20,north,\n")
    with pytest.raises(InputError, match="no record with a known label"):
        read_test_data(FILE, path)


def test_a_label_that_is_a_number_is_scaled(read):
    text = BASES["columns"].replace('kind = "logistic"', 'kind = "linear"')
    federation = Federation.parse(
        text.replace('classes = ["no", "yes"]', 'kind = "number"\nlow = 0\nhigh = 10')
    )
    X, y = read("age,ward,sick\n50,north,5\n50,north,99\n50,north,\n", federation).shard
    assert X.shape == (2, 4) and y.tolist() == [[0], [1]]
    assert federation.task((X, y)).parameters == 4


def test_what_has_no_names_of_columns_is_refused(tmp_path):
    np.savez(tmp_path / "own.npz", X=np.zeros((3, 4)), y=np.zeros(3))
    with pytest.raises(InputError, match="has no names of columns.*give a CSV file"):
        read_member_data(FILE, tmp_path / "own.npz")
    with pytest.raises(InputError, match="names the label, 'sick'; drop --label"):
        read_member_data(FILE, tmp_path / "own.csv", "sick")


def test_a_file_without_columns_reads_numbers_as_before(tmp_path):
    path = tmp_path / "own.csv"
    path.write_text("1,2,0\n3,4,1\n")
    data = read_member_data(Federation.parse(TEXT), path)
    assert data.shard[0].tolist() == [[1, 2], [3, 4]] and data.counts is None


WRONG = [
    ("features = 30\n", "features = 5\n", r"model.features is 5, and the columns give the model 4"),
    ('"logistic"', '"linear"', "the label 'sick' has classes, which model.kind 'linear' does not"),
    (
        '["no", "yes"]',
        '["no", "yes", "perhaps"]',
        "the label has 3 classes|model.classes must be 2",
    ),
    ('["no", "yes"]', '["no"]', "classes of label 'sick' must be at least 2"),
    (
        'kind = "number"\nlow = 0\nhigh = 100\nmissing = 50',
        'kind = "plain"',
        "values can be refused",
    ),
    ("low = 0\nhigh", "low = 0\nheight = 3\nhigh", "column 1 of kind 'number'.*height"),
    ('name = "ward"', 'name = "age"', "column 'age' more than once"),
]


@pytest.mark.parametrize(("old", "new", "problem"), WRONG, ids=lambda text: text[:30])
def test_columns_that_do_not_fit_the_model_are_refused(old, new, problem):
    text = (TEXT + DATA) if old == "features = 30\n" else BASES["columns"]
    assert old in text
    with pytest.raises(InputError, match=problem):
        Federation.parse(text.replace(old, new))


def test_what_is_written_with_columns_is_read_again():
    again = Federation.parse(FILE.to_toml())
    assert again == FILE and again.digest == FILE.digest and again.to_toml() == FILE.to_toml()
    # without them the digest is that of earlier versions
    assert not any(name.startswith("data") for name in Federation.parse(TEXT).fields())
