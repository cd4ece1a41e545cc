"""The command `decor`: one short function per command."""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Sequence
from typing import NoReturn

import decor
from decor.distributed import launch
from decor.distributed.world import World
from decor.errors import AuditFailed, DecorError, InputError

from . import audit, compare, federation, graph, node, noise, release, reproduce, status, train, ui
from .terminal import INTERRUPTED, shown_progress


class _Parser(argparse.ArgumentParser):
    """argparse, with one sentence for an error instead of the usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def parser() -> argparse.ArgumentParser:
    top = _Parser(
        prog="decor",
        description="Private decentralised learning: plan the noise, know "
        "who learns what, and train.",
    )
    top.add_argument("--version", action="version", version=f"decor {decor.__version__}")
    commands = top.add_subparsers(
        title="commands", metavar="COMMAND", required=True, parser_class=_Parser
    )
    for module in (
        noise,
        graph,
        train,
        release,
        compare,
        reproduce,
        federation,
        node,
        status,
        ui,
        audit,
    ):
        module.add_commands(commands)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command.

    0: it worked; 1: an audit failed; 2: bad input, said in a sentence; 130: interrupted.
    """
    options = parser().parse_args(arguments)
    options.words = list(sys.argv[1:] if arguments is None else arguments)
    shown, warnings.showwarning = warnings.showwarning, _warn
    try:
        with shown_progress():
            code: int = options.run(options) or 0
        sys.stdout.flush()
        if code == INTERRUPTED:
            _say_interrupted()
        return code
    except AuditFailed as found:
        print(f"decor: {found}", file=sys.stderr)
        return 1
    except DecorError as problem:
        # all processes of a group have the same input, and the first of them says what is wrong
        # with it
        if World.joined().is_first or not isinstance(problem, InputError):
            print(f"decor: {problem}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader went away, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        _say_interrupted()
        return INTERRUPTED
    finally:
        warnings.showwarning = shown


def _say_interrupted() -> None:
    if World.joined().is_first and not launch.is_started():
        print("decor: interrupted", file=sys.stderr)


def _warn(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
    if World.joined().is_first:
        print(f"decor: warning: {message}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
