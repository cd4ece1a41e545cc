"""`--task`: the name of a built-in task, a task's file, or a function that returns a task."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import decor
from decor.errors import InputError
from decor.graph.topology import Topology

from . import options as opt

if TYPE_CHECKING:
    from decor.learning.task import Task
    from decor.learning.task_file import TaskFile

HELP = (
    "what to learn: least-squares, breast-cancer, digits, a9a, mnist, fashion-mnist, "
    "mnist-scattering or fashion-mnist-scattering; a task.toml, written by decor task new; or "
    "MODULE:FUNCTION, which returns a decor.Task"
)


@dataclass(frozen=True)
class TaskOption:
    """What `--task` names. Nothing is read or imported before it is needed.

    Attributes:
        text: As typed.
    """

    text: str

    @cached_property
    def file(self) -> TaskFile | None:
        """The task's file, if one is named."""
        # a .toml that is missing is a missing file, and not an unknown task
        if not self.text.endswith(".toml") and not Path(self.text).is_file():
            return None
        from decor.learning.task_file import TaskFile

        return TaskFile.read(self.text)

    @cached_property
    def _function(self) -> Callable[..., Any] | None:
        from decor.learning import own_data

        if self.file is not None or not own_data.is_function(self.text):
            return None
        return own_data.import_function(self.text, "--task")

    @property
    def is_function(self) -> bool:
        """Whether a function is named."""
        return self._function is not None

    @cached_property
    def _takes_users(self) -> bool:
        return (
            self._function is not None and "users" in inspect.signature(self._function).parameters
        )

    @cached_property
    def _finished(self) -> Task | None:
        """The task of a function that decides itself who its users are."""
        if self._function is None or self._takes_users:
            return None
        return self._verify(self._function())

    @cached_property
    def users(self) -> int | tuple[str, ...] | None:
        """How many users the task has, or their names; None where they can be chosen."""
        if self.file is not None:
            from decor.learning.task_from_file import user_tables

            tables = user_tables(self.file)
            return None if tables is None else tuple(tables)
        return None if self._finished is None else self._finished.names or self._finished.users

    def make(
        self,
        users: int | tuple[str, ...],
        seed: int = 0,
        shards: str | None = None,
        alpha: float | None = None,
    ) -> Task:
        """The task with the data of its users.

        Args:
            users: How many there are, or their names; where the task has users, the same.
            seed: Selects the split and the test records.
            shards: How records are split, where users can be chosen.
            alpha: Only for shards "dirichlet".
        """
        if self.file is not None:
            from decor.learning.task_from_file import make_task

            return make_task(self.file, users, seed, shards, alpha)
        if self._function is None:
            return decor.tasks.make(self.text, users, seed, shards, alpha)
        # ignored, they would make the result look like that of another split
        if (shards, alpha) != (None, None):
            raise InputError(
                f"--task {self.text} splits its data itself; drop --shards and --alpha"
            )
        # not called again: it may read a lot of data
        if self._finished is not None:
            return self._finished
        # optional, because a function that reads files may have nothing to draw
        takes_seed = "seed" in inspect.signature(self._function).parameters
        return self._verify(self._function(users=users, **({"seed": seed} if takes_seed else {})))

    def _verify(self, made: Any) -> Task:
        if not isinstance(made, decor.Task):
            raise InputError(
                f"--task {self.text} must return a decor.Task, not {type(made).__name__}"
            )
        return made


def fit_users(task: TaskOption, options: argparse.Namespace) -> None:
    """Sets `options.users` to the number of the task's users, where it has users."""
    users = task.users
    # a graph in a file has users of its own, which are compared with the task's later
    if users is None or options.graph is not None:
        return
    count = users if isinstance(users, int) else len(users)
    if options.users not in (None, count):
        raise InputError(
            f"the task {task.text} has {count} users, not {options.users}; drop --users"
        )
    options.users = count


def name_users(task: TaskOption, topology: Topology) -> Topology:
    """The graph with the names of the task's users, where it has none of its own."""
    if not isinstance(task.users, tuple) or topology.labels is not None:
        return topology
    if len(task.users) != topology.users:
        return topology  # refused later, with the numbers of both
    return replace(topology, labels=task.users)


def topology_of(task: TaskOption, options: argparse.Namespace) -> Topology:
    """The graph that the options describe, of the task's users.

    Args:
        task: What `--task` names.
        options: Those of `options.add_graph`.
    """
    fit_users(task, options)
    return name_users(task, opt.topology_of(options))
