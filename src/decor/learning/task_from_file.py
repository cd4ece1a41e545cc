"""A task from its file: reads the data of all users, prepares them, and holds back test records.

This is for simulations on one machine. In a federation each user prepares its own data.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from decor import checks
from decor.array_types import Array, Ints
from decor.errors import InputError

from . import own_data
from . import shards as ways
from .columns import Prepared
from .csv_table import Columns, read_columns
from .task import Task
from .task_file import TaskFile
from .tasks import ALPHA, TEST_PART

Users = int | Sequence[str]


def user_tables(file: TaskFile) -> dict[str, Columns] | None:
    """The table of each user by its name; None where one file holds records without a user.

    Raises:
        InputError: If a file cannot be read, or a record names no user.
    """
    if file.users:
        return {user: read_columns(file.path(path)) for user, path in file.users.items()}
    column = file.source.user
    if column is None:
        return None
    table = _whole_table(file)
    owners = table.pop(column, None)
    if owners is None:
        raise InputError(
            f"{file.source.file!r} has no column {column!r}, which source.user names; correct "
            "source.user"
        )
    # a blank beside a name would make another user of it
    names = [owner.strip() for owner in owners]
    if "" in names:
        raise InputError(
            f"{file.source.file!r} has a record without a user in column {column!r}; fill it in"
        )
    # sorted, because the order of records must not decide the order of users
    rows: dict[str, list[int]] = {user: [] for user in sorted(set(names))}
    for number, user in enumerate(names):
        rows[user].append(number)
    return {user: _rows(table, numbers) for user, numbers in rows.items()}


def split_tables(file: TaskFile, users: Sequence[str], seed: int = 0) -> dict[str, Columns]:
    """The records of one file, split at random over users, as they are in the file.

    Args:
        file: A task's file whose records have no users.
        users: Their names.
        seed: Selects the split.
    """
    table = _whole_table(file)
    records = len(next(iter(table.values())))
    parts = ways.iid(records, len(users), seed)
    return {user: _rows(table, rows.tolist()) for user, rows in zip(users, parts, strict=True)}


def make_task(
    file: TaskFile,
    users: Users,
    seed: int = 0,
    shards: str | None = None,
    alpha: float | None = None,
) -> Task:
    """The task, with the data of its file.

    Args:
        file: The task's file.
        users: How many there are, or their names; where the file names its users, the same.
        seed: Selects the held-back test records, where the file has none, and the split.
        shards: "iid", "dirichlet" or "by-label", where one file holds records without a user.
        alpha: Only for "dirichlet".

    Raises:
        InputError: If columns are wrong, a user has no record with a known label, or all records
            have the same label.
    """
    seed = checks.count("seed", seed, 0)
    tables = user_tables(file)
    if tables is None:
        parts, held = _split(file, users, seed, shards, alpha)
    elif shards is not None or alpha is not None:
        raise InputError(
            f"the task {file.name!r} says whose each record is; drop --shards and --alpha"
        )
    else:
        parts, held = _parts(file, tables, seed)
    # a refusal that depends on values tells nobody anything: one machine has all data
    _refuse_one_class(file, parts)
    # held-back records are users' own, and so never public
    test, public = held, False
    if file.source.test is not None:
        test, public = _prepare(file, file.source.test), file.source.test_public
    module, loss = file.definition.build()
    return Task(
        module,
        loss,
        {name: _tensors(part) for name, part in parts.items()}
        if tables is not None or not isinstance(users, int)
        else [_tensors(part) for part in parts.values()],
        test=None if test is None else _tensors(test),
        name=file.name,
        facts={"task_digest": file.digest, "seed": seed, "split": shards or "by user"},
        test_public=public,
        **_more(file),
    )


Part = tuple[Array, Array]
"""(X, y)."""


def _more(file: TaskFile) -> dict[str, Any]:
    """Arguments of `Task` that only some files need."""
    metrics = {
        name: own_data.import_function(code, f"metrics.{name}")
        for name, code in file.metrics.items()
    }
    return {"definition": file.definition, **({"metrics": metrics} if metrics else {})}


def _parts(
    file: TaskFile, tables: dict[str, Columns], seed: int
) -> tuple[dict[str, Part], Part | None]:
    """Each user's part, and test records: a fifth of each user's, unless the file has some."""
    rng, parts, held = np.random.default_rng(seed), {}, []
    for user, table in tables.items():
        X, y = _part(_apply(file, table, f"the data of {user}"))
        order = rng.permutation(len(X))
        # rounded down: a user with fewer than five records keeps them all
        out = 0 if file.source.test is not None else int(len(X) * TEST_PART)
        parts[user] = X[np.sort(order[out:])], y[np.sort(order[out:])]
        held.append((X[order[:out]], y[order[:out]]))
    return parts, _join(held)


def _split(
    file: TaskFile, users: Users, seed: int, shards: str | None, alpha: float | None
) -> tuple[dict[str, Part], Part | None]:
    """The records of one file, split over users, and test records that were held back."""
    X, y = _part(_apply(file, _whole_table(file), repr(file.source.file)))
    way = shards or "iid"
    if file.definition.classes is None and way != "iid":
        raise InputError(f"shards {way!r} go by classes, and the label is a number; take iid")
    labels: Array = y if file.definition.classes is not None else np.zeros(len(y), dtype=np.int64)
    kept: Ints = np.arange(len(X))
    held = None
    if file.source.test is None:
        # before the split, so that all ways to split are measured on the same test records
        kept, out = ways.hold_out(labels, TEST_PART, seed)
        held = X[out], y[out]
    names = tuple(map(str, range(users))) if isinstance(users, int) else tuple(users)
    concentration = ALPHA if alpha is None and way == "dirichlet" else alpha
    rows = ways.split(way, labels[kept], len(names), seed, concentration)
    parts = {name: (X[kept[each]], y[kept[each]]) for name, each in zip(names, rows, strict=True)}
    return parts, held


def _whole_table(file: TaskFile) -> Columns:
    if file.source.file is None:
        raise InputError(
            f"the task {file.name!r} says nowhere where the data are; give source.file, or a file "
            "for each user in [users]"
        )
    return read_columns(file.path(file.source.file))


def _rows(table: Columns, numbers: Sequence[int]) -> Columns:
    return {name: [cells[k] for k in numbers] for name, cells in table.items()}


def _apply(file: TaskFile, table: Columns, where: str) -> Prepared:
    preparation = file.definition.preparation
    assert preparation is not None  # checked by TaskFile
    return preparation.apply(table, where)


def _prepare(file: TaskFile, name: str) -> Part:
    return _part(_apply(file, read_columns(file.path(name)), repr(name)))


def _part(prepared: Prepared) -> Part:
    assert prepared.targets is not None  # of records with a label
    return prepared.features, prepared.targets


def _join(parts: Sequence[Part]) -> Part | None:
    if not sum(len(X) for X, _ in parts):
        return None
    return np.concatenate([X for X, _ in parts]), np.concatenate([y for _, y in parts])


def _tensors(part: Part) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.from_numpy(part[0]), torch.from_numpy(part[1])


def _refuse_one_class(file: TaskFile, parts: dict[str, Part]) -> None:
    classes = file.definition.classes
    present = set().union(*(set(y.tolist()) for _, y in parts.values())) if classes else set()
    if classes is not None and len(present) == 1:
        raise InputError(
            f"all records are of class {classes[present.pop()]!r}, so there is nothing to learn; "
            "check the label's column"
        )
