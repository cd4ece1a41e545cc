"""Options that several commands share, and the objects they build.

An option that sets a field of a dataclass takes its help text, type and default from that field.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any, get_args

import decor
from decor.choices import LogFormat
from decor.distributed import launch
from decor.distributed.world import World
from decor.errors import InputError
from decor.federation.file import Privacy
from decor.graph import files, named
from decor.privacy.budget import Budget, Exposure

from . import values

DELTA = 1e-5
ADVERSARY = "curious"
"""The default: any user of the network may be curious. An outsider alone is the exception."""
CLIP, STEPS = 1.0, 1000

_RECORDS_SYNTAX = (
    ": M if all have the same, M,M,... for users 0, 1, ..., NAME=M,... for users with names, or a "
    "FILE with lines user,records"
)
GRAPH_FILE = "file with the graph, instead of --topology: an edge list, .gml or .graphml"
_GRAPH = ("topology", "users", "degree", "probability", "graph_seed", "graph")
_NOISE = ("sigma_cdp", "sigma_cor")


def add_command(
    commands: Any, name: str, run: Callable[[argparse.Namespace], Any], help: str, example: str
) -> argparse.ArgumentParser:
    """A command whose `--help` ends with an example that can be pasted into a shell.

    Args:
        commands: What `ArgumentParser.add_subparsers` returned.
        name: As typed after `decor`.
        run: Gets the parsed options; returns the exit status, or None for 0.
        help: One line for the list of commands; as a sentence it opens the command's own help.
        example: "example:" or "examples:", and the indented lines.
    """
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=help, description=sentence(help), epilog=example, formatter_class=_Help
    )
    parser.set_defaults(run=run)
    return parser


class _Help(argparse.RawDescriptionHelpFormatter):
    """Examples keep their lines; a description of one line is wrapped, as all else is."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        kind = argparse.RawDescriptionHelpFormatter if "\n" in text else argparse.HelpFormatter
        return kind._fill_text(self, text, width, indent)


def sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def field_of(owner: type, name: str) -> Field[Any]:
    return next(each for each in fields(owner) if each.name == name)


def refuse_weights_of_auto(options: argparse.Namespace) -> None:
    """Refuses `--accelerate` where "auto" chooses the rounds and their weights."""
    if options.accelerate not in (None, False, "no", "designed"):
        raise InputError(
            "--gossip-rounds auto, the default, takes designed rounds; drop --accelerate "
            f"{options.accelerate}, or give --gossip-rounds too"
        )


def add_field(
    group: argparse._ActionsContainer,
    each: Field[Any],
    *,
    flag: str | None = None,
    help: str | None = None,
    default: Any = MISSING,
    read: Callable[[str], Any] | None = None,
    syntax: str = "",
    **more: Any,
) -> None:
    """The option of a dataclass field; its value is None where the option is not given.

    Args:
        group: The parser, or a group of it.
        each: The field. Its metadata has `help`, and `metavar` unless the first letter serves.
        flag: The option's name, where it is not the field's.
        help: The help text, where it is not the field's.
        default: What the command uses where the option is left out; by default the field's own.
        read: Turns the text into a value; by default the type of the field decides.
        syntax: Added to the help text.
        more: Further arguments of `add_argument`.
    """
    flag = flag or flag_of(each.name)
    default = each.default if default is MISSING else default
    help, kind = (help or each.metadata["help"]) + syntax, str(each.type)
    if kind == "bool":
        # None and not False, so that `field_values` can tell that the option is absent
        group.add_argument(flag, dest=each.name, action="store_true", default=None, help=help)
        return
    if each.name == "accelerate":  # `--accelerate` alone is short for `--accelerate chebyshev`
        more |= {"nargs": "?", "const": "chebyshev"}
        help += " (default: no; chebyshev if HOW is left out)"
        # a recipe says off with False, and a federation file with "no"
        read = values.acceleration if kind == "str" else values.acceleration_or_off
    elif default is not None and default is not MISSING:
        # 1e-5 and not 1e-05, as people write it
        shown = f"{default:g}".replace("e-0", "e-") if isinstance(default, float) else default
        help += f" (default: {shown})"
    # annotations are strings, such as "int | None"
    by_type: dict[str, Callable[[str], Any]] = {
        "float": values.number,
        "int": values.whole,
        "Rounds": values.rounds,
    }
    more.setdefault("metavar", each.metadata.get("metavar", each.name[0].upper()))
    # argparse gets no default: a saved plan refuses what was typed, and None tells it apart
    more.setdefault("required", default is MISSING)
    read = read or by_type.get(kind.split()[0], str)
    group.add_argument(flag, dest=each.name, type=read, help=help, **more)


def field_values(options: argparse.Namespace, owner: type) -> dict[str, Any]:
    """The fields of `owner` whose options were given."""
    named_values = ((each.name, getattr(options, each.name, None)) for each in fields(owner))
    return {name: value for name, value in named_values if value is not None}


def add_graph(parser: argparse.ArgumentParser, default: str = "ring") -> None:
    """The options of `topology_of`, or of `topologies_of` where the default has several names."""
    group = parser.add_argument_group("graph")
    # 16 users allow a ring, a square torus and a hypercube
    group.add_argument(
        "--users", type=values.whole, metavar="N", help="number of users (default: 16)"
    )
    add_named_graph(group, default, GRAPH_FILE)


def add_named_graph(group: argparse._ActionsContainer, default: str, file: str) -> None:
    """A graph by its name, or in a file; `file` is the help text of the latter."""
    what, metavar = "graph that connects the users", "NAME"
    if "," in default:
        what, metavar = "graphs to compare, separated by commas", "NAME,..."
    names = f"{', '.join(named.NAMES[:-1])} or {named.NAMES[-1]}"
    topology = f"{what}: {names} (default: {default})"
    group.add_argument("--topology", metavar=metavar, help=topology)
    degree = "with --topology random-regular, neighbours of each user (default: 4)"
    group.add_argument("--degree", type=values.whole, metavar="K", help=degree)
    probability = (
        "with --topology erdos-renyi, probability of each edge (default: 2 ln(N)/N for N users)"
    )
    group.add_argument("--probability", type=values.number, metavar="P", help=probability)
    seed = "seed for a random graph (default: 0)"
    group.add_argument("--graph-seed", type=values.whole, metavar="S", help=seed)
    group.add_argument("--graph", metavar="FILE", help=file)


def add_exposure(
    parser: argparse.ArgumentParser,
    steps: int = STEPS,
    several_clips: bool = False,
    records: str = _RECORDS_SYNTAX,
) -> None:
    """An option for every field of `Exposure`.

    Args:
        parser: The command.
        steps: The default of `--steps`, shown in the help text.
        several_clips: Whether `--clip` takes several values to choose from.
        records: Added to the help text of `--records`.
    """
    group = parser.add_argument_group("exposure (how training uses the private data)")
    special: dict[str, dict[str, Any]] = {
        "steps": {"default": steps},
        "clip": {"default": CLIP},
        "records": {"read": values.records, "syntax": records},
    }
    if records != _RECORDS_SYNTAX:  # such a command has a task, and refuses --records
        help = str(field_of(Exposure, "weighting").metadata["help"])
        special["weighting"] = {"help": help.replace("--records", "the task's data")}
    if several_clips:
        special["clip"] |= {
            "read": values.numbers,
            "metavar": "C,...",
            "syntax": "; if several are given, the best by training loss",
        }
    for each in fields(Exposure):
        add_field(group, each, **special.get(each.name, {}), required=False)


def add_epsilon(parser: argparse.ArgumentParser, **more: Any) -> None:
    add_field(parser, field_of(Budget, "epsilon"), **more)


def add_adversary(parser: argparse.ArgumentParser, planning: bool = True) -> None:
    """The adversary and delta; `planning` for a command that calibrates noise for that delta."""
    add_field(parser, field_of(Privacy, "adversary"), default=ADVERSARY, metavar="NAME")
    add_field(parser, field_of(Budget, "delta"), default=DELTA, read=values.probability)
    if planning:
        help = field_of(Privacy, "any_delta").metadata["help"]
        parser.add_argument("--any-delta", action="store_true", help=help)


def add_fixed_noise(group: argparse._ActionsContainer) -> None:
    for name, meaning in (
        ("--sigma-cdp", "sigma_cdp: standard deviation of each user's independent noise"),
        ("--sigma-cor", "sigma_cor: standard deviation of the noise shared on each edge"),
    ):
        group.add_argument(name, type=values.number, metavar="S", help=meaning)


def add_method(parser: argparse.ArgumentParser) -> None:
    method = "how to compute epsilon: exact, or paper for the paper's looser bound (default: exact)"
    parser.add_argument("--method", default="exact", metavar="NAME", help=method)


def add_json(parser: argparse.ArgumentParser) -> None:
    help = "print one JSON object on standard output, and nothing else"
    parser.add_argument("--json", action="store_true", help=help)


def add_metrics(parser: argparse.ArgumentParser) -> None:
    help = (
        "serve health checks and metrics for Prometheus over HTTP, on 127.0.0.1 unless HOST is "
        "given"
    )
    parser.add_argument("--metrics", metavar="[HOST:]PORT", help=help)


def add_log(parser: argparse.ArgumentParser) -> None:
    help = "write events to this file, which SIGHUP reopens, instead of standard error"
    parser.add_argument("--log", metavar="FILE", help=help)
    help = "format of events: text for people, or json, one object per line (default: text)"
    parser.add_argument("--log-format", choices=get_args(LogFormat), default="text", help=help)


def add_output(parser: argparse.ArgumentParser) -> None:
    add_json(parser)
    help = "plot the result to this file: .png, .svg or .pdf"
    parser.add_argument("--plot", type=values.plot_file, metavar="FILE", help=help)


def add_resume(parser: argparse.ArgumentParser, what: str) -> None:
    for name, verb in (("--resume", "continue"), ("--overwrite", "replace")):
        help = f"{verb} the {what} already in the output folder"
        parser.add_argument(name, action="store_true", help=help)


def adversary_of(options: argparse.Namespace) -> decor.Adversary:
    adversary = decor.Adversary.parse(ADVERSARY if options.adversary is None else options.adversary)
    # the baseline central DP is accounted with it, but it is no adversary to plan against
    if adversary.average_only:
        raise InputError(
            "average-only is not an adversary of DECOR: it sees no messages; for it, see central "
            "DP in the table of decor plan"
        )
    return adversary


def delta_of(options: argparse.Namespace) -> float:
    return DELTA if options.delta is None else float(options.delta)


def exposure_of(options: argparse.Namespace) -> decor.Exposure:
    return decor.Exposure(**{"clip": CLIP, "steps": STEPS} | field_values(options, Exposure))


def refuse_beside_plan(options: argparse.Namespace) -> None:
    """Refuses options that a saved plan already sets: they would be ignored."""
    set_by_plan = (*_GRAPH, *(each.name for each in fields(Exposure)), *_NOISE)
    for name in set_by_plan:
        if getattr(options, name, None) is not None:
            raise InputError(
                f"the saved plan already sets the {name.replace('_', ' ')}; drop {flag_of(name)}"
            )


def flag_of(name: str) -> str:
    return "--" + name.replace("_", "-")


def topology_of(options: argparse.Namespace) -> decor.Topology:
    _refuse_unused(options)
    if options.graph is not None:
        topology, note = files.read_with_note(options.graph)
        # a wrong separator or a header that became users would change all noise
        if World.current().is_first and not launch.is_worker():
            print(f"decor: note: {options.graph}: {note}", file=sys.stderr)
        if options.users is not None and options.users != topology.users:
            raise InputError(
                f"--graph {options.graph} has {topology.users} users, not {options.users}; drop "
                "--users"
            )
        return topology
    name, random = options.topology or "ring", ("degree", "probability", "graph_seed")
    return named.from_name(name, options.users, **{key: getattr(options, key) for key in random})


def topologies_of(options: argparse.Namespace) -> tuple[tuple[str, decor.Topology], ...]:
    """Several graphs of the same users: (name, graph) for each name in `--topology`."""
    if options.graph is not None:
        return ((Path(options.graph).stem, topology_of(options)),)
    names = [name.strip() for name in (options.topology or "ring,torus").split(",") if name.strip()]
    # a name that is there twice would double the time, and its rows
    if len(set(names)) < len(names) or not names:
        raise InputError(
            f"--topology {options.topology!r} names no graph, or one twice; give names such as "
            "ring,torus"
        )
    used = {option for name in names for option in _options_of(name)}
    graphs = []
    for name in names:
        # options that belong to another of the graphs must not be refused for this one
        others = dict.fromkeys(used - _options_of(name))
        own = argparse.Namespace(**vars(options) | {"topology": name} | others)
        graphs.append((name, topology_of(own)))
    return tuple(graphs)


def _options_of(name: str) -> set[str]:
    return set(named.TAKES.get(named.canonical_name(name), ()))


def _refuse_unused(options: argparse.Namespace) -> None:
    """Refuses options that would change nothing: the caller meant them to."""
    name = "--graph" if options.graph is not None else (options.topology or "ring")
    unused = ["degree", "probability", "graph_seed"]
    if name == "--graph":
        unused.append("topology")
    for option in unused:
        if getattr(options, option) is not None and option not in _options_of(name):
            raise InputError(f"{flag_of(option)} does not apply to {name}; drop it")


def add_reach(parser: argparse.ArgumentParser) -> None:
    """Adds the options that say where a user listens, and how it reaches others."""
    listen = (
        "address to listen on, such as :7400 for all interfaces; may be repeated (default: the "
        "user's addresses in the federation file)"
    )
    parser.add_argument("--listen", action="append", metavar="HOST:PORT", help=listen)
    proxy = (
        "HTTP proxy for outgoing connections: http://HOST:PORT or http://USER:PASSWORD@HOST:PORT"
    )
    parser.add_argument("--proxy", metavar="URL", help=proxy)


def reach_of(options: argparse.Namespace, terms: Any, number: int) -> Any:
    """Where a user listens, and how it reaches others: a `decor.net.reach.Reach`.

    Args:
        options: Those of `add_reach`.
        terms: The federation's, a `decor.federation.terms.Terms`.
        number: The user.
    """
    return terms.reach(number, options.listen, proxy_of(options))


def proxy_of(options: argparse.Namespace) -> Any:
    """The proxy that the options name: a `decor.net.http_proxy.HttpProxy`, or None."""
    # imported late: commands that only plan load nothing of the network
    from decor.net.http_proxy import HttpProxy

    return None if options.proxy is None else HttpProxy.parse(options.proxy)
