"""The studies by name."""

from __future__ import annotations

from importlib import import_module

from decor.errors import InputError

from .study import Study

MODULES = {
    "least-squares": "least_squares",
    "a9a": "a9a",
    "mnist": "mnist",
    "accountant": "accountant",
    "irregular": "irregular",
    "adversaries": "adversaries",
    "scaling": "scaling",
    "gossip": "gossip",
    "records": "records",
}


def study(name: str, quick: bool = False) -> Study:
    """The study of that name; `quick` takes fewer points, seeds and settings."""
    if name not in MODULES:
        raise InputError(f"there is no study named {name!r}; choose from {', '.join(MODULES)}")
    # imported by name: studies that train need torch, the others do not
    made: Study = import_module(f".{MODULES[name]}", __package__).study(quick)
    return made
