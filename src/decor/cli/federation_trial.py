"""A trial: a federation on one machine, with keys and data for every user, made from a task."""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from decor.errors import InputError
from decor.results.safe_files import clear

from .federation_files import make_folder, replaceable_trial, write_federation
from .task_option import TaskOption

if TYPE_CHECKING:
    from decor.federation.federation import Federation
    from decor.learning.csv_table import Columns
    from decor.learning.task import Task
    from decor.learning.task_file import TaskFile

TOWNS = tuple("bonn ulm kiel jena trier essen mainz gera halle worms celle emden".split())
"""Names of a trial's users; more users are bonn-2 and so on."""

MODELS: dict[str, dict[str, Any]] = {
    "breast-cancer": {"kind": "logistic", "features": 30},
    "digits": {"kind": "multinomial", "features": 64, "classes": 10},
    "a9a": {"kind": "logistic", "features": 123},
    "mnist": {"kind": "mlp", "features": 784, "classes": 10, "hidden": [128]},
}
"""The model of each task that has a trial."""

TRIAL_DEFAULTS = {"steps": 50, "clip": 0.1, "learning_rate": 0.5, "final_gossip_rounds": 8}
"""Of the fields that a trial sets otherwise than a federation of named users.

Chosen in the simulator: breast-cancer with 8 users on a ring reaches 96 % at epsilon 10.
"""


class Trial:
    """The users of a trial, with their keys and data, before anything is written.

    Args:
        options: Of `decor federation new`; gets the trial's name and steps where they are not
            given.

    Attributes:
        users: The users as the federation file lists them.
        defaults: Values of the file's fields for which no option was given, by section.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        from decor.federation.file_rules import net_module
        from decor.privacy.gossip_choice import steady_ratio

        self.folder, self._overwrite = Path(options.output), options.overwrite
        replaceable_trial(self.folder, self._overwrite)  # refuses before anything is computed
        self._data = _data_of(options)
        names, count = self._data.users, len(self._data.users)
        # in memory until the federation has been checked: a mistake leaves no keys behind
        self._keys = {town: net_module("identity").Identity.new() for town in names}
        # fixed now, because addresses are part of the file that all users share
        ports = net_module("addresses").free_ports(count)
        self.users: list[dict[str, Any]] = [
            {"name": town, "address": f"127.0.0.1:{port}", "key": self._keys[town].line}
            for town, port in zip(names, ports, strict=True)
        ]
        # only there the number of examples is public
        if options.unit == "example" and options.rate is None:
            for user, records in zip(self.users, self._data.counts, strict=True):
                user["records"] = records
        # set on the options, because an option wins over a default of the trial
        options.name = options.name or self._data.name
        options.steps = TRIAL_DEFAULTS["steps"] if options.steps is None else options.steps
        self.defaults: dict[str, dict[str, Any]] = {
            "privacy": {"ratio": steady_ratio(count, options.steps)},
            "training": TRIAL_DEFAULTS,
            **self._data.sections,
        }

    def write(self, federation: Federation) -> dict[str, str]:
        """Writes keys, data and the federation file; returns their paths."""
        folder = self.folder
        # checked again: a node may have started while the task was loaded
        clear(folder, replaceable_trial(folder, self._overwrite))
        keys, data = (make_folder(folder / part) for part in ("keys", "data"))
        for user, key in self._keys.items():
            key.save(keys / f"{user}.key")
        test = self._data.write(folder, data)
        # the file comes last: a folder with a federation file is a complete trial
        file = folder / "federation.toml"
        write_federation(file, federation.to_toml())
        return {
            "file": str(file),
            "keys": str(keys),
            "data": str(data),
            **({} if test is None else {"test": str(test)}),
        }


@dataclass(frozen=True)
class _Arrays:
    """The data of a task whose examples are arrays of numbers."""

    name: str
    users: tuple[str, ...]
    task: Task
    sections: dict[str, dict[str, Any]]

    @property
    def counts(self) -> tuple[int, ...]:
        return self.task.counts

    def write(self, folder: Path, data: Path) -> Path | None:
        """Writes each user's data, and the test data; returns the latter's path."""
        import numpy as np

        for user, (X, y) in zip(self.users, self.task.shards, strict=True):
            np.savez(data / f"{user}.npz", X=X.numpy(), y=y.numpy())
        if self.task.test is None:
            return None
        X, y = self.task.test
        np.savez(folder / "test.npz", X=X.numpy(), y=y.numpy())
        return folder / "test.npz"


@dataclass(frozen=True)
class _Tables:
    """The data of a task's file: each user's own table, prepared by nobody yet."""

    file: TaskFile
    tables: dict[str, Columns]

    @property
    def name(self) -> str:
        return re.sub(r"[^A-Za-z0-9._-]+", "-", self.file.name).strip("-._") or "trial"

    @property
    def users(self) -> tuple[str, ...]:
        return tuple(self.tables)

    @property
    def sections(self) -> dict[str, dict[str, Any]]:
        return file_sections(self.file)

    @property
    def counts(self) -> tuple[int, ...]:
        return tuple(len(next(iter(table.values()))) for table in self.tables.values())

    def write(self, folder: Path, data: Path) -> Path | None:
        """As of `_Arrays`; only test records that are public are written."""
        from decor.learning.csv_table import read_columns, write_columns

        for user, table in self.tables.items():
            write_columns(data / f"{user}.csv", table)
        # private test records must not lie beside a file that is meant to be sent around
        if not self.file.source.test_public:
            return None
        public = read_columns(self.file.path(self.file.source.test or ""))
        write_columns(folder / "test.csv", public)
        return folder / "test.csv"


def file_sections(file: TaskFile) -> dict[str, dict[str, Any]]:
    """The sections [data] and [model] of a federation that learns the task of a file.

    Raises:
        InputError: If the model's code that is installed here is not the file's.
    """
    from decor.learning import model_code

    model = file.definition.model
    if model.code is not None and model.code_sha256 is not None:
        # the hash is written anew below: without this, other code would pass for the task's
        model_code.verify(model.code, model.code_sha256)
    sections = file.definition.to_json()
    # sizes follow from the columns, and the hash from what is installed
    computed = ("features", "classes", "code_sha256")
    given = {name: value for name, value in sections["model"].items() if value is not None}
    return {
        "data": sections["data"],
        "model": {name: value for name, value in given.items() if name not in computed},
    }


def _data_of(options: argparse.Namespace) -> _Arrays | _Tables:
    task: TaskOption = options.task
    if task.file is None:
        return _arrays_of(task, options)
    from decor.learning.task_from_file import split_tables, user_tables

    tables = user_tables(task.file)
    if tables is None:
        return _Tables(task.file, split_tables(task.file, _towns(options), options.data_seed))
    if options.users not in (None, len(tables)):
        raise InputError(
            f"the task {task.text} has {len(tables)} users, not {options.users}; drop --users"
        )
    return _Tables(task.file, tables)


def _arrays_of(task: TaskOption, options: argparse.Namespace) -> _Arrays:
    name = task.text.replace("_", "-")
    if name in MODELS:
        towns = _towns(options)
        made = task.make(len(towns), options.data_seed)
        return _Arrays(name, towns, made, {"model": MODELS[name]})
    if not task.is_function:
        raise InputError(
            f"there is no trial of task {task.text!r}; there are {', '.join(MODELS)}, and files "
            "of decor task new"
        )
    users = task.users
    made = task.make(_towns(options) if users is None else users, options.data_seed)
    definition = made.definition
    if definition is None or definition.preparation is not None:
        raise InputError(
            f"the model of task {task.text} is known to your program alone; name it in a task.toml "
            "(model.code), which other users can read"
        )
    towns = made.names or tuple(_town(k) for k in range(made.users))
    given = {k: v for k, v in definition.to_json()["model"].items() if v is not None}
    return _Arrays(task.text.rpartition(":")[2], towns, made, {"model": given})


def _towns(options: argparse.Namespace) -> tuple[str, ...]:
    return tuple(_town(k) for k in range(8 if options.users is None else options.users))


def _town(number: int) -> str:
    again, k = divmod(number, len(TOWNS))
    return TOWNS[k] + (f"-{again + 1}" if again else "")
