"""What commands print for programs, and how a report names the command that made it."""

from __future__ import annotations

import json
import shlex
import sys
from typing import Any

import decor
from decor.text import json_safe


def command_line() -> str:
    """The command as it was typed, without the options that say what to do with the folder."""
    kept = [word for word in sys.argv[1:] if word not in ("--resume", "--overwrite")]
    return shlex.join(["decor", *kept])


def guarantee_json(guarantee: decor.Guarantee) -> dict[str, Any]:
    """What every command with a guarantee prints about it with `--json`."""
    return {
        "epsilon": guarantee.epsilon,
        "delta": guarantee.delta,
        "adversary": str(guarantee.adversary),
    }


def write_json(value: dict[str, Any]) -> None:
    print(json.dumps(json_safe(value), allow_nan=False))
