"""A task's file, task.toml: columns, label, model, metrics, and where the data of each user are.

All of it but the data is public. A path in the file is relative to the file's folder.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from decor.errors import InputError

from .definition import Definition
from .file_model import CODE
from .file_rules import Rule, abbreviate, check_fields, file_field, keep_if, locate_errors
from .file_toml import parse_section, refuse_unknown, toml_text

FORMAT = "decor-task-1"
_SECTIONS = ("data", "model", "metrics", "source", "users")
_PATH = Rule("the path of a CSV file", keep_if(lambda x: isinstance(x, str) and bool(x.strip())))
_NAME = Rule(
    "a name of 1 to 64 characters", keep_if(lambda x: isinstance(x, str) and 0 < len(x) < 65)
)
_COLUMN = Rule("the name of a column", keep_if(lambda x: isinstance(x, str) and bool(x)))


@dataclass(frozen=True, kw_only=True)
class Source:
    """[source]: one CSV file with the records of all users, and public test records.

    `user` is the column that names the user of each record; without it the records are split.
    """

    file: str | None = file_field(_PATH, None)
    user: str | None = file_field(_COLUMN, None)
    test: str | None = file_field(_PATH, None)
    test_public: bool = file_field(
        Rule("true or false", keep_if(lambda x: isinstance(x, bool))), False
    )

    def __post_init__(self) -> None:
        check_fields(self, "source")
        if self.user is not None and self.file is None:
            raise InputError("source.user applies only with source.file; drop it")
        if self.test_public and self.test is None:
            raise InputError("source.test_public applies only with source.test; drop it")


@dataclass(frozen=True, kw_only=True)
class TaskFile:
    """A task's file, checked as a whole; from `read` or `parse`.

    Attributes:
        name: What runs and reports call the task.
        definition: Columns, label and model.
        source: One file for all users, and test records.
        users: User names with their CSV files, instead of `source.file`.
        metrics: Own metrics: names with "package.module:function", which is called with
            (outputs, targets) of the test records.
        folder: Where paths begin.
    """

    name: str
    definition: Definition
    source: Source = field(default_factory=Source)
    users: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, str] = field(default_factory=dict)
    # a copy of the file elsewhere describes the same task
    folder: Path = field(default=Path(), compare=False)

    def __post_init__(self) -> None:
        _NAME.check("name", self.name)
        if self.definition.preparation is None:
            raise InputError(
                "the section [data] is missing; it names the label and the columns, as decor task "
                "new writes them"
            )
        for user, path in self.users.items():
            _PATH.check(f"users.{user}", path)
        for metric, code in self.metrics.items():
            CODE.check(f"metrics.{metric}", code)
        if self.users and self.source.file is not None:
            raise InputError(
                "the data of users are either in one file (source.file) or in a file for each "
                "([users]); drop one of them"
            )
        if self.metrics and self.source.test is None:
            raise InputError("[metrics] are measured on test records; give source.test")

    @staticmethod
    def read(path: str | Path) -> TaskFile:
        """Reads a task's file; no data and no code of it."""
        try:
            content = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as problem:
            reason = getattr(problem, "strerror", None) or "it is not text"
            raise InputError(
                f"the task {str(path)!r} cannot be read: {reason}; write one with decor task new"
            ) from None
        with locate_errors(f"the task {str(path)!r}: "):
            return TaskFile.parse(content, Path(path).parent)

    @staticmethod
    def parse(content: str, folder: Path = Path()) -> TaskFile:
        """Reads the text of a task's file.

        Args:
            content: The text.
            folder: Where its paths begin.
        """
        try:
            tables = tomllib.loads(content)
        # deeply nested brackets exhaust the parser's stack
        except (tomllib.TOMLDecodeError, RecursionError) as problem:
            raise InputError(f"this is not TOML: {problem}") from None
        refuse_unknown(tables, ("format", "name", *_SECTIONS))
        if tables.get("format") != FORMAT:
            raise InputError(
                f'format must be "{FORMAT}", not {abbreviate(tables.get("format"))}; other '
                "versions are not read"
            )
        sections = {name: tables.get(name, {}) for name in ("source", "users", "metrics")}
        for name, section in sections.items():
            if not isinstance(section, Mapping):
                raise InputError(f"{name} must be a section [{name}], not {abbreviate(section)}")
        return TaskFile(
            name=tables.get("name", "own task"),
            definition=Definition.of(tables.get("data"), tables.get("model")),
            source=parse_section(Source, sections["source"], "source"),
            users=sections["users"],
            metrics=sections["metrics"],
            folder=folder,
        )

    def to_toml(self) -> str:
        """The text of the file, as `parse` reads it."""
        tables: dict[str, Any] = {"format": FORMAT, "name": self.name}
        tables |= self.definition.to_json()
        for name in ("features", "classes"):  # they follow from [data], which people edit
            del tables["model"][name]
        # every default is falsy, so only what was given is written
        source = {name: each for name, each in asdict(self.source).items() if each}
        sections = {"metrics": self.metrics, "source": source, "users": self.users}
        return toml_text(tables | {name: each for name, each in sections.items() if each})

    @cached_property
    def digest(self) -> str:
        """SHA-256 of what is learnt and measured, in hexadecimal digits; data are not in it."""
        # no name and no path: what is learnt does not depend on them
        content = ["decor-task-1", self.definition.digest, dict(self.metrics)]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode("ascii")).hexdigest()

    def path(self, name: str) -> Path:
        """A path of the file, from where the program runs."""
        return self.folder / name
