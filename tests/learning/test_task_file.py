"""A task's file: what is read and written, and what is refused."""

import pytest
from own_tables import BY_USER, EACH, FILE, ONE_FILE, PUBLIC

from decor.errors import InputError
from decor.learning.task_file import TaskFile

WHOLE = FILE + BY_USER + PUBLIC + '\n[metrics]\nauc = "own.metrics:auc"\n'


@pytest.mark.parametrize("text", [FILE, FILE + ONE_FILE, FILE + EACH, WHOLE])
def test_what_is_written_is_read_again(text):
    file = TaskFile.parse(text)
    again = TaskFile.parse(file.to_toml())
    assert again == file and again.digest == file.digest and again.to_toml() == file.to_toml()


def test_sizes_of_the_model_follow_from_the_columns():
    file = TaskFile.parse(FILE)
    assert file.definition.model.features == 5 and file.definition.model.classes == 2
    # people edit the columns, so that the sizes are not written
    assert "features" not in file.to_toml()


def test_the_digest_is_of_what_is_learnt_and_measured():
    file = TaskFile.parse(FILE)
    assert TaskFile.parse(FILE + EACH).digest == file.digest  # data are not in it
    assert TaskFile.parse(FILE.replace('"heart"', '"lung"')).digest == file.digest
    changed = [
        FILE.replace("high = 100", "high = 101"),
        FILE.replace('["no", "yes"]', '["yes", "no"]'),
        FILE.replace('kind = "logistic"', 'kind = "mlp"\nhidden = [3]'),
        WHOLE,
    ]
    assert len({file.digest, *(TaskFile.parse(text).digest for text in changed)}) == 5


REFUSED = [
    ("decor-task-1", "decor-task-9", "format must be .decor-task-1.*other versions are not read"),
    ("[model]", "[modell]", "modell is not a field of this file; did you mean model"),
    ('[model]\nkind = "logistic"\n', "", r"the section \[model\] is missing"),
    ('"logistic"', '"forest"', "model.kind must be .* not 'forest'"),
    ('kind = "number"', 'kind = "numeric"', "column 1 must have a name and a kind"),
    ("low = 0\nhigh = 100", "low = 100\nhigh = 0", "the range 100 to 0, which holds no values"),
    ('["no", "yes"]', '["no", "yes", "dead"]', "model.classes must be 2|has 3 classes"),
    ('"heart"', '""', "name must be a name of 1 to 64 characters"),
]


@pytest.mark.parametrize(("old", "new", "problem"), REFUSED, ids=[row[2][:40] for row in REFUSED])
def test_what_cannot_be_meant_is_refused_with_its_field(old, new, problem):
    assert old in FILE
    with pytest.raises(InputError, match=problem) as refused:
        TaskFile.parse(FILE.replace(old, new, 1))
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        (ONE_FILE + EACH, "either in one file .* or in a file for each"),
        ('\n[source]\nuser = "hospital"\n', "source.user applies only with source.file"),
        ("\n[source]\ntest_public = true\n", "source.test_public applies only with source.test"),
        ('\n[source]\npath = "all.csv"\n', "source.path is not a field of this file"),
        ("\n[users]\nbonn = 3\n", "users.bonn must be the path of a CSV file, not 3"),
        ('\n[metrics]\nauc = "own"\n', "metrics.auc must be .package.module:function."),
        ('\n[metrics]\nauc = "own:auc"\n', "are measured on test records; give source.test"),
        ("\n[source\n", "this is not TOML"),
    ],
)
def test_sources_of_data_that_make_no_sense_are_refused(more, problem):
    with pytest.raises(InputError, match=problem):
        TaskFile.parse(FILE + more)


def test_a_file_without_columns_is_no_task():
    with pytest.raises(InputError, match=r"the section \[data\] is missing.*decor task new"):
        TaskFile.parse('format = "decor-task-1"\n[model]\nkind = "logistic"\nfeatures = 3\n')


def test_a_missing_file_is_one_sentence(tmp_path):
    with pytest.raises(InputError, match="cannot be read: No such file.*decor task new"):
        TaskFile.read(tmp_path / "task.toml")
