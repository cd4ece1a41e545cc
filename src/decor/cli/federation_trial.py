"""A trial: a federation on one machine, with keys and data for every user, made from a task."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

import decor
from decor.errors import InputError
from decor.results.safe_files import clear

from .output_files import make_folder, replaceable_trial, write_federation

if TYPE_CHECKING:
    from decor.federation.federation import Federation

TOWNS = tuple("bonn ulm kiel jena trier essen mainz gera halle worms celle emden".split())
"""Names of a trial's users; more users are bonn-2 and so on."""

MODELS: dict[str, dict[str, Any]] = {
    "breast-cancer": {"kind": "logistic", "features": 30},
    "digits": {"kind": "multinomial", "features": 64, "classes": 10},
    "a9a": {"kind": "logistic", "features": 123},
    "mnist": {"kind": "mlp", "features": 784, "classes": 10, "hidden": [128]},
}
"""The model of each task that has a trial."""

_STEPS = 50
_TRAINING = {
    "clip": 0.1,
    "learning_rate": 0.5,
    "gossip_rounds": 4,
    "accelerate": "designed",
    "final_gossip_rounds": 8,
}
"""Chosen in the simulator: breast-cancer with 8 users on a ring reaches 96 % at epsilon 10."""


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
        from decor.federation.improvements import steady_ratio

        name = options.task.replace("_", "-")
        if name not in MODELS:
            raise InputError(
                f"there is no trial of task {options.task!r}; there are {', '.join(MODELS)}"
            )
        self.folder, self._overwrite = Path(options.output), options.overwrite
        replaceable_trial(self.folder, self._overwrite)  # refuses before anything is computed
        count = 8 if options.users is None else options.users
        self._task = decor.tasks.make(name, users=count, seed=options.data_seed)
        names = [_town(k) for k in range(count)]
        self._keys = {town: net_module("identity").Identity.new() for town in names}
        # fixed now, because addresses are part of the file that all users share
        ports = net_module("addresses").free_ports(count)
        self.users: list[dict[str, Any]] = [
            {"name": town, "address": f"127.0.0.1:{port}", "key": self._keys[town].line}
            for town, port in zip(names, ports, strict=True)
        ]
        # only there the number of examples is public
        if options.unit == "example" and options.rate is None:
            for user, records in zip(self.users, self._task.counts, strict=True):
                user["records"] = records
        # set on the options, because an option wins over a default of the trial
        options.name = options.name or name
        options.steps = _STEPS if options.steps is None else options.steps
        self.defaults: dict[str, dict[str, Any]] = {
            "privacy": {"ratio": steady_ratio(count, options.steps)},
            "training": _TRAINING,
            "model": MODELS[name],
        }

    def write(self, federation: Federation) -> dict[str, str]:
        """Writes keys, data and the federation file; returns their paths."""
        import numpy as np

        folder, test = self.folder, self._task.test
        # checked again: a node may have started while the task was loaded
        clear(folder, replaceable_trial(folder, self._overwrite))
        keys, data = (make_folder(folder / part) for part in ("keys", "data"))
        for (town, key), (X, y) in zip(self._keys.items(), self._task.shards, strict=True):
            key.save(keys / f"{town}.key")
            np.savez(data / f"{town}.npz", X=X.numpy(), y=y.numpy())
        assert test is not None
        np.savez(folder / "test.npz", X=test[0].numpy(), y=test[1].numpy())
        # the file comes last: a folder with a federation file is a complete trial
        file = folder / "federation.toml"
        write_federation(file, federation.to_toml())
        return {
            "file": str(file),
            "keys": str(keys),
            "data": str(data),
            "test": str(folder / "test.npz"),
        }


def _town(number: int) -> str:
    again, k = divmod(number, len(TOWNS))
    return TOWNS[k] + (f"-{again + 1}" if again else "")
