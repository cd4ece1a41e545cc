"""CSV files as people have them, as columns by name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decor.errors import InputError
from decor.learning.csv_table import read_columns, read_header, write_columns

EXPECTED = {"age": ["50", "61"], "ward": ["north", "south, old"], "sick": ["no", "yes"]}


@pytest.fixture
def write(tmp_path):
    def written(text):
        path = tmp_path / "data.csv"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return written


@pytest.mark.parametrize(
    "text",
    [
        'age,ward,sick\n50,north,no\n61,"south, old",yes\n',
        '\ufeffage;ward;sick\r\n50;north;no\r\n61;"south, old";yes\r\n',
        "age\tward\tsick\n50\tnorth\tno\n\n61\tsouth, old\tyes",
        '"age", "ward", "sick"\n"50", "north", "no"\n"61", "south, old", "yes"\n',
        '"age";"ward";"sick"\n50;north;no\n61;south, old;yes\n',
    ],
)
def test_files_come_in_many_dialects(write, text):
    path = write(text)
    assert read_columns(path) == EXPECTED and read_header(path) == tuple(EXPECTED)


def test_a_separator_within_quotes_separates_nothing(write):
    assert read_columns(write('"a, b, c";d\n1;2\n')) == {"a, b, c": ["1"], "d": ["2"]}


def test_spreadsheets_with_semicolons_write_decimal_commas(write):
    assert read_columns(write("a;b\n-70,5;x, y\n"))["a"] == ["-70.5"]
    # elsewhere a comma in a cell is part of it
    assert read_columns(write('a,b\n"70,5",2\n'))["a"] == ["70,5"]


def test_a_line_of_separators_is_a_record(write):
    assert read_columns(write("a,b\n\n,\n")) == {"a": [""], "b": [""]}


def test_a_header_alone_is_a_table_without_records(write):
    assert read_columns(write("a,b\n")) == {"a": [], "b": []}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is empty; its first line names the columns"),
        ("77123,2\n3,4\n", "holds numbers, not the names of columns; add a header"),
        ("a,a,b\n77123,2,3\n", "has column 'a' more than once"),
        ("a,,b\n77123,2,3\n", "column 2 of .* has no name"),
        ("a,b\n77123,2\n77123\n", "record 2 of .* has 1 cells, and the header has 2"),
        ('a,b\n77123,"2\n', "line 2 of .* is not CSV"),
        (b"a,b\n\xff\xfe,2\n", "is not a text file in UTF-8"),
    ],
)
def test_what_is_no_table_is_refused_without_its_content(write, text, problem):
    with pytest.raises(InputError, match=problem) as refused:
        read_columns(write(text))
    assert "77123" not in str(refused.value)


def test_long_files_are_read_whole_and_their_records_counted(write):
    lines = [f"{k},{k}" for k in range(1000)]
    assert read_columns(write("a,b\n" + "\n".join(lines)))["b"] == [str(k) for k in range(1000)]
    lines[700] = "1,2,3"
    with pytest.raises(InputError, match="record 701 of .* has 3 cells"):
        read_columns(write("a,b\n" + "\n".join(lines)))


def test_a_missing_file_is_one_sentence(tmp_path):
    with pytest.raises(InputError, match="cannot be read: No such file.*; give a CSV file"):
        read_columns(tmp_path / "none.csv")


CELL = st.text(st.characters(codec="utf-8", exclude_characters="\r\n\0"), max_size=5)


@given(st.lists(st.tuples(CELL, CELL), max_size=4))
def test_what_is_written_is_read_again(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("csv") / "own.csv"
    table = {"a b": [first for first, _ in rows], 'c"d': [second for _, second in rows]}
    write_columns(path, table)
    read = read_columns(path)
    # blanks after a separator are not part of a cell
    assert {name: [c.lstrip(" ") for c in cells] for name, cells in table.items()} == {
        name: [c.lstrip(" ") for c in cells] for name, cells in read.items()
    }
