"""The command `decor`: parses the options, runs one command, and turns errors into exit codes."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
import warnings
from collections.abc import Collection, Sequence
from typing import Any, NoReturn

import decor
from decor.distributed import launch
from decor.distributed.world import World
from decor.errors import AuditFailed, DecorError, InputError
from decor.federation.exit_codes import INTERRUPTED, error_code

from . import (
    account,
    audit,
    compare,
    federation,
    fetch_model,
    graph,
    keygen,
    ledger,
    node,
    plan,
    predict,
    rehearse,
    relay,
    release,
    report,
    reproduce,
    status,
    task,
    train,
    ui,
    up,
)
from .progress_line import show_progress

_GROUPS = {
    "plan": (plan, account, graph, ui),
    "train": (task, train, predict, compare, report, release),
    "federate": (keygen, federation, rehearse, ledger, node, relay, fetch_model, up, status),
    "check": (audit, reproduce),
}
"""In the order of `decor --help`, under these headings."""


class _Parser(argparse.ArgumentParser):
    """argparse, with one sentence for an error instead of the usage.

    Attributes:
        default_command: Of a group of commands: (the command to run where none is named, all
            commands of the group).
    """

    default_command: tuple[str, Collection[str]] | None = None

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if self.default_command is not None and args:
            default, commands = self.default_command
            if args[0] not in (*commands, "-h", "--help"):
                args = [default, *args]
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def parser() -> argparse.ArgumentParser:
    """The parser of all commands. It loads no heavy library, so that `decor --help` is fast."""
    top = _Parser(
        prog="decor",
        usage="%(prog)s [-h] [--version] COMMAND ...",
        description="Private decentralised learning: plan the noise, see what each adversary "
        "learns, and train.",
    )
    top.add_argument("--version", action="version", version=f"decor {decor.__version__}")
    # the groups below list the commands, instead of argparse's one list
    commands = top.add_subparsers(
        prog="decor",
        metavar="COMMAND",
        help=argparse.SUPPRESS,
        required=True,
        parser_class=_Parser,
    )
    for heading, group in _GROUPS.items():
        first = len(commands._choices_actions)
        for command in group:
            command.add_to(commands)
        listed = top.add_argument_group(heading)
        listed._group_actions.extend(commands._choices_actions[first:])
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        arguments: As typed after `decor`; by default those of this process.

    Returns:
        0: it worked; 1: an audit failed, or a cause outside that may pass; 2: bad input, explained
        in one sentence on standard error, or a bug, with its traceback; 3: a node stopped for
        privacy; 4: a node finished with fewer steps or with noise left; 130: interrupted.
    """
    before, warnings.showwarning = warnings.showwarning, _show_warning
    try:
        options = parser().parse_args(arguments)
        # for commands that run themselves again in several processes
        options.arguments = list(sys.argv[1:] if arguments is None else arguments)
        with show_progress():
            code: int = options.run(options) or 0
        sys.stdout.flush()  # here, where a closed pipe is caught
        if code == INTERRUPTED:
            _report_interrupt()
        return code
    except AuditFailed as failure:
        print(f"decor: {failure}", file=sys.stderr)
        return 1
    except DecorError as problem:
        # bad input is the same in every process of a group, so that rank 0 alone reports it; any
        # other error may be this process's own
        if World.current().is_first or not isinstance(problem, InputError):
            print(f"decor: {problem}", file=sys.stderr)
        return error_code(problem)
    except BrokenPipeError:
        # the reader has closed the pipe, as `head` does; without a new standard output Python
        # would complain again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        _report_interrupt()
        return INTERRUPTED
    except Exception as problem:
        # not Python's 1, which supervisors take for worth a restart: it may depend on the data
        traceback.print_exc()
        return error_code(problem)
    finally:
        warnings.showwarning = before


def _report_interrupt() -> None:
    # of a process group only the process that started it reports
    if World.current().is_first and not launch.is_worker():
        print("decor: interrupted", file=sys.stderr)


def _show_warning(
    message: Warning | str, category: type[Warning], *_: object, **__: object
) -> None:
    if World.current().is_first:
        print(f"decor: warning: {message}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
