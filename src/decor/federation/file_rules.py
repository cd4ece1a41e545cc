"""Rules for fields that only a federation's file has."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from decor.errors import InputError, require
from decor.privacy.adversary import Adversary


def accept_adversary(value: Any) -> str | None:
    """An adversary in its one spelling; None for a text that names none."""
    try:
        adversary = Adversary.parse(value) if isinstance(value, str) else None
    except InputError:
        return None
    # one spelling for each adversary: equal files have equal digests
    return None if adversary is None or adversary.average_only else str(adversary)


def accept_pairs(value: Any) -> tuple[tuple[str, str], ...] | None:
    """Pairs of names, as tuples; None for anything else."""
    if not isinstance(value, list | tuple) or not value:
        return None
    pairs = []
    for pair in value:
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            return None
        if not all(isinstance(name, str) for name in pair):
            return None
        pairs.append((pair[0], pair[1]))
    return tuple(pairs)


def net_module(module: str) -> Any:
    """A module of decor.net; an error says how to install `cryptography`, which it needs."""
    # not imported at the top: every command loads this module, and cryptography is an extra
    require("cryptography", "peer", "keys")
    return import_module(f"decor.net.{module}")
