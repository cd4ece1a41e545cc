"""`decor task new`: a task's file from the header of a table, and from what is public."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from decor.errors import InputError, write_errors
from decor.learning.file_model import Model
from decor.text import table

from . import options as opt
from . import values
from .json_output import write_json
from .user_options import pair

if TYPE_CHECKING:
    from decor.learning.columns import AnyLabel, Column
    from decor.learning.csv_table import Columns
    from decor.learning.task_file import TaskFile

Answer = TypeVar("Answer")

_NEW = """examples:
  decor task new --data patients.csv --label diagnosis --public sample.csv
  decor task new --data bonn=bonn.csv --data ulm=ulm.csv --label diagnosis --classes no,yes \\
      --column age=0:120 --column ward=medical,surgical"""
_MODEL = ("kind", "code", "hidden", "activation", "image", "channels", "seed", "loss")
"""Fields of [model] that do not follow from others."""


def add_to(commands: Any) -> None:
    help = "write a task's file: columns, label and model of your own data"
    parser = commands.add_parser("task", help=help, description=opt.sentence(help))
    kinds = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_new(opt.add_command(kinds, "new", run_new, "write a task's file", _NEW))


def _add_new(parser: argparse.ArgumentParser) -> None:
    data = (
        "CSV file with a header, of which only the header is read; repeat NAME=FILE for each user "
        "with a file of its own"
    )
    parser.add_argument("--data", action="append", required=True, metavar="[NAME=]FILE", help=data)
    parser.add_argument("--label", required=True, metavar="COLUMN", help="column to predict")
    public = (
        "public CSV file with the same columns: gives ranges, categories and classes, and test "
        "records; without it they are asked for"
    )
    parser.add_argument("--public", metavar="FILE", help=public)
    column = "what a column holds: LOW:HIGH for numbers, A,B,... for categories; can be repeated"
    parser.add_argument("--column", action="append", default=[], metavar="NAME=WHAT", help=column)
    classes = "classes of the label, as A,B,...; or LOW:HIGH to predict a number"
    parser.add_argument("--classes", metavar="WHAT", help=classes)
    user = "column that names the user of each record, where one file holds all records"
    parser.add_argument("--user-column", metavar="COLUMN", help=user)
    name = "name of the task (default: that of the output file)"
    parser.add_argument("--name", metavar="NAME", help=name)
    output = "file to write (default: task.toml)"
    parser.add_argument("--output", default="task.toml", metavar="FILE", help=output)
    overwrite = "replace the file in --output"
    parser.add_argument("--overwrite", action="store_true", help=overwrite)
    group = parser.add_argument_group("model")
    readers: dict[str, Callable[[str], Any]] = dict.fromkeys(
        ("hidden", "image", "channels"),
        lambda text: [values.whole(size) for size in text.split(",")],
    )
    for field_name in _MODEL:
        each = opt.field_of(Model, field_name)
        # its name in [model] is short; on a command line "kind" alone would say too little
        flag = "--model" if field_name == "kind" else None
        opt.add_field(group, each, flag=flag, read=readers.get(field_name))
    opt.add_json(parser)


def run_new(options: argparse.Namespace) -> None:
    from decor.learning import model_code
    from decor.learning.columns import NumberColumn, Preparation
    from decor.learning.definition import Definition
    from decor.learning.task_file import Source, TaskFile

    output, question = Path(options.output), _Question(options)
    # all questions come before anything is written: without an answer no file is left
    preparation = Preparation([question.column(name) for name in question.columns], question.label)
    given = opt.field_values(options, Model)
    model: dict[str, Any] = {name: given[name] for name in _MODEL if name in given}
    if model.get("code") is not None:
        # users of the file then notice if the code that they have installed is another
        model["code_sha256"] = model_code.hash_source(model["code"])
    elif "kind" not in model:
        is_number = isinstance(preparation.label, NumberColumn)
        model["kind"] = _usual_kind(preparation.classes, "hidden" in model)
        if is_number and model["kind"] == "mlp":
            model["loss"] = "squared"
    # relative to the file, so that the folder can be moved as a whole
    path = question.path_from(output.parent)
    source: dict[str, Any] = {}
    if not question.users:
        source |= {"file": path(options.data[0]), "user": options.user_column}
    if options.public is not None:
        # recorded, because a trial writes out test records only if anyone may see them
        source |= {"test": path(options.public), "test_public": True}
    file = TaskFile(
        name=options.name or output.stem,
        definition=Definition.of(preparation.to_json(), model),
        source=Source(**source),
        users={user: path(each) for user, each in question.users.items()},
    )
    _write(output, file.to_toml(), options.overwrite)
    _show(file, question, options)


def _usual_kind(classes: tuple[str, ...] | None, hidden: bool) -> str:
    if hidden:
        return "mlp"
    if classes is None:
        return "linear"
    return "logistic" if len(classes) == 2 else "multinomial"


def _write(path: Path, text: str, overwrite: bool) -> None:
    exists = "replace it with --overwrite, or name another file with --output"
    # "x" and no look beforehand: another process may make the file in between
    mode = "w" if overwrite else "x"
    with write_errors(path, exists=exists), path.open(mode, encoding="utf-8") as file:
        file.write(text)


@dataclass
class _Question:
    """What each column holds: from options, from a public sample, or asked for, in this order."""

    options: argparse.Namespace

    def __post_init__(self) -> None:
        self.origins: dict[str, str] = {}
        """Column names with where their description is from."""
        self._typed = dict(
            pair(text, "--column", "=", "NAME=LOW:HIGH or NAME=A,B,...")
            for text in self.options.column
        )
        # a mistyped name would be ignored, and a sample might decide on the column it meant
        unknown = [name for name in self._typed if name not in self.columns]
        if unknown:
            raise InputError(
                f"--column {unknown[0]} is no column of the data beside the label; there are "
                f"{', '.join(self.columns)}"
            )

    @cached_property
    def users(self) -> dict[str, str]:
        """User names with their files; empty if one file holds all records."""
        named = [text.partition("=") for text in self.options.data if "=" in text]
        if not named and len(self.options.data) == 1:
            return {}
        users = {name: path for name, _, path in named if name and path}
        if len(users) < len(self.options.data):
            raise InputError(
                "--data names either one file, or a different NAME=FILE for each user, such as "
                "--data bonn=bonn.csv --data ulm=ulm.csv"
            )
        if self.options.user_column is not None:
            raise InputError("--user-column is for one file of all users; drop it")
        return users

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The columns beside the label and the user's, in the order of the first file."""
        from decor.learning.csv_table import read_header

        paths = list(self.users.values()) or self.options.data
        # what describes a column becomes public: no record may be read for it
        headers = {path: read_header(path) for path in paths}
        first = headers[paths[0]]
        apart = {"--label": self.options.label, "--user-column": self.options.user_column}
        for path, header in headers.items():
            # as sets: columns are found by name, so each user's file may have its own order
            if {*header} != {*first}:
                odd = sorted({*header} ^ {*first})[0]
                has, has_not = (path, paths[0]) if odd in header else (paths[0], path)
                raise InputError(
                    f"{has!r} has the column {odd!r}, and {has_not!r} has not; all files need the "
                    "same columns: drop it from the one, or add it to the other"
                )
            for flag, name in apart.items():
                if name is not None and name not in header:
                    raise InputError(
                        f"{flag} {name!r} is no column of {path!r}; there are {', '.join(header)}"
                    )
        return tuple(name for name in first if name not in apart.values())

    @cached_property
    def _sample(self) -> Columns:
        from decor.learning.csv_table import read_columns

        if self.options.public is None:
            return {}
        sample = read_columns(self.options.public)
        for name in sample:
            if name not in (*self.columns, self.options.label):
                # the data may have it all the same: a model never sees whose a record is
                why = (
                    "which names the user of a record and is no input"
                    if name == self.options.user_column
                    else "which the data does not have"
                )
                raise InputError(
                    f"the public sample has the column {name!r}, {why}; take it out of the sample"
                )
        for name in (*self.columns, self.options.label):
            if name not in sample:
                raise InputError(
                    f"the public sample has no column {name!r}; it needs all columns, because it "
                    "also tests the model"
                )
        return sample

    def column(self, name: str) -> Column:
        """What a column holds."""
        from decor.learning.column_proposal import SYNTAX, parse_column, sample_column

        # typing wins: a small sample may lack the ends of a range, or a rare category
        text = self._typed.get(name)
        if text is None and name in self._sample:
            self.origins[name] = "public sample"
            return sample_column(name, self._sample[name])
        self.origins[name] = "typed in"
        if text is not None:
            return parse_column(name, text)
        return _ask(f"column {name!r} ({SYNTAX})", lambda text: parse_column(name, text))

    @cached_property
    def label(self) -> AnyLabel:
        """What the label is."""
        from decor.learning.column_proposal import parse_label, sample_label

        name, text = self.options.label, self.options.classes
        if text is None and name in self._sample:
            self.origins[name] = "public sample"
            return sample_label(name, self._sample[name])
        self.origins[name] = "typed in"
        if text is not None:
            return parse_label(name, text)
        return _ask(f"classes of label {name!r} (A,B,...)", lambda text: parse_label(name, text))

    def path_from(self, folder: Path) -> Callable[[str], str]:
        """Turns a path as typed into one from the folder of the task's file."""
        return lambda path: Path(os.path.relpath(path, folder)).as_posix()


def _ask(what: str, read: Callable[[str], Answer]) -> Answer:
    """Asks until the answer can be read. On standard error: standard output may be JSON."""
    while True:
        print(f"{what}: ", end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        # the end of the input, as in a script: asking again would never end
        if not line:
            print(file=sys.stderr)
            raise InputError(
                f"nothing public says what {what.partition(' (')[0]} holds; give --public, or "
                "--column NAME=LOW:HIGH or NAME=A,B,... and --classes A,B,..."
            )
        try:
            # a mistake costs this one answer, and not all that were given before it
            return read(line.strip())
        except InputError as problem:
            print(problem, file=sys.stderr)


def _show(file: TaskFile, question: _Question, options: argparse.Namespace) -> None:
    preparation = file.definition.preparation
    assert preparation is not None
    described = {
        each.name: _holds(each.to_json()) for each in (*preparation.columns, preparation.label)
    }
    if options.json:
        definition = file.definition.to_json()
        write_json({"output": options.output, "digest": file.digest, **definition})
        return
    rows = [[name, holds, question.origins[name]] for name, holds in described.items()]
    print(table(["column", "holds", "from"], rows))
    model = file.definition.model
    print(f"\nmodel: {model.kind or model.code}; digest {file.digest[:12]}...")
    # the last moment to notice that a range was copied from private data
    print("Only the header of the data was read. Ranges, categories and classes become public.")
    print(f"\nwrote {options.output}")


def _holds(column: dict[str, Any]) -> str:
    if column["kind"] == "number":
        return f"{column['low']:g} to {column['high']:g}"
    names: list[str] = column.get("values") or column["classes"]
    shown = ", ".join(names[:6])
    return f"{shown} and {len(names) - 6} more" if len(names) > 6 else shown
