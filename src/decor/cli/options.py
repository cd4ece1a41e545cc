"""Options that several commands share, and what they build."""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field
from pathlib import Path
from typing import Any

import decor
from decor import checks
from decor.errors import InputError
from decor.graph import named

DELTA = 1e-5
ADVERSARY = "curious"
"""Every user is in the network: an adversary who is none of them is the exception."""
ANY_DELTA = (
    "plan for a delta above 0.001, or above one over the number of users (of all records "
    "at example level)"
)


def number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number, not {text!r}") from None


def whole(text: str) -> int:
    """A whole number; 1e6 is one too."""
    try:
        value = float(text)
        if value != int(value):
            raise ValueError
        return int(text) if text.lstrip("+-").isdigit() else int(value)
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(f"must be a whole number, not {text!r}") from None


def seed(text: str) -> int | str:
    """A whole number, or the word for a private run."""
    return "secret" if text == "secret" else whole(text)


def probability(text: str) -> float:
    """A number, or a fraction such as 1/40."""
    above, slash, below = text.partition("/")
    if not slash:
        return number(text)
    if not number(below):
        raise argparse.ArgumentTypeError(f"must be a number or a fraction, not {text!r}")
    return number(above) / number(below)


def records(text: str) -> int | tuple[int, ...] | dict[str, int]:
    """One number; NAME=M,... or a file for users with names; M,M,... for users 0..n-1."""
    path = Path(text)
    try:
        if path.suffix.lower() in (".csv", ".tsv", ".txt", ".json") or (
            "=" not in text and path.is_file()
        ):
            return counted(path)
        if "=" in text:
            pairs = [part.rpartition("=") for part in text.split(",") if part.strip()]
            return _by_name(
                [(name.strip(), whole(count.strip())) for name, _, count in pairs], "it"
            )
    except InputError as problem:
        raise argparse.ArgumentTypeError(str(problem)) from None
    return tuple(whole(part) for part in text.split(",")) if "," in text else whole(text)


def counted(path: Path) -> dict[str, int]:
    """How many records each user holds: of a CSV file with lines `user,records`, or of a JSON
    object.
    """
    where = f"the file of records {str(path)!r}"
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as problem:
        raise InputError(f"{where} cannot be read: {problem.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"{where} is not a text file; write lines such as: bonn,152") from None
    if text.lstrip().startswith("{"):
        try:
            # as pairs: a name that is there twice must not be lost
            return _by_name(json.loads(text, object_pairs_hook=list), where)
        except (ValueError, RecursionError) as problem:
            if isinstance(problem, InputError):
                raise
            raise InputError(f"{where} is no JSON object: {problem}") from None
    first = text.partition("\n")[0]
    rows = list(
        csv.reader(
            text.splitlines(), delimiter=next((mark for mark in ";\t" if mark in first), ",")
        )
    )
    lines = [
        (k, [cell.strip() for cell in row]) for k, row in enumerate(rows, 1) if "".join(row).strip()
    ]
    if lines and lines[0][1] == ["user", "records"]:
        lines = lines[1:]
    for k, row in lines:
        if len(row) != 2 or not row[0] or not (row[1].isascii() and row[1].isdigit()):
            raise InputError(
                f"line {k} of {where} is not a user and its number of records; write "
                "lines such as: bonn,152"
            )
    return _by_name([(row[0], int(row[1])) for _, row in lines], where)


def _by_name(pairs: Sequence[tuple[str, Any]], where: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, count in pairs:
        if name in found:
            raise InputError(f"{where} has the user {name!r} twice; give each once")
        if not name or not checks.is_count(count, 0):
            raise InputError(
                f"{where} has {count!r} records for the user {name!r}; give a whole "
                "number for each name"
            )
        found[name] = count
    if not found:
        raise InputError(f"{where} holds no user; write such as: bonn,152")
    return found


def numbers(text: str) -> tuple[float, ...]:
    """One number or several, with commas."""
    return tuple(number(part) for part in text.split(",") if part.strip())


def picture(text: str) -> str:
    """A file that a picture can be written to: said before anything is computed for it."""
    from matplotlib.backend_bases import FigureCanvasBase

    # which needs LaTeX
    path, known = Path(text), sorted({*FigureCanvasBase.get_supported_filetypes()} - {"pgf"})
    if path.suffix.lower().removeprefix(".") not in known:
        endings = ", ".join(f".{ending}" for ending in known)
        raise argparse.ArgumentTypeError(
            f"the picture {text!r} cannot be written: its name must end in one of {endings}"
        )
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(
            f"the picture {text!r} cannot be written: make the folder {str(path.parent)!r} first"
        )
    return text


def add_field(
    group: argparse._ArgumentGroup,
    each: Field[Any],
    *,
    flag: str | None = None,
    default: Any = MISSING,
    read: Callable[[str], Any] | None = None,
) -> None:
    """The option of a dataclass's field, with the help text, type and default that stand there;
    None where it is not given.

    `flag` is its name where that is not the field's, `default` what stands for a field left out,
    `read` parses its text.
    """
    flag = flag or "--" + each.name.replace("_", "-")
    default = each.default if default is MISSING else default
    said, kind = each.metadata["help"], str(each.type)
    if kind == "bool":
        group.add_argument(flag, dest=each.name, action="store_true", default=None, help=said)
        return
    if default is not None and default is not MISSING:
        said += (
            f" (default: {default:g})" if isinstance(default, float) else f" (default: {default})"
        )
    read = read or (
        number if kind.startswith("float") else whole if kind.startswith("int") else str
    )
    metavar = each.metadata.get("metavar", each.name[0].upper())
    group.add_argument(
        flag, dest=each.name, type=read, required=default is MISSING, metavar=metavar, help=said
    )


def add_graph(parser: argparse.ArgumentParser, default: str = "ring") -> None:
    group = parser.add_argument_group("graph")
    several = ", or several with commas" if "," in default else ""
    group.add_argument(
        "--topology", metavar="NAME", help=f"{', '.join(named.NAMES)}{several} (default: {default})"
    )
    group.add_argument("--users", type=whole, metavar="N", help="number of users (default: 16)")
    group.add_argument(
        "--degree", type=whole, metavar="K", help="neighbours in random-regular (default: 4)"
    )
    group.add_argument(
        "--probability",
        type=number,
        metavar="P",
        help="of an edge in erdos-renyi (default: 2 log(N)/N)",
    )
    group.add_argument(
        "--graph-seed", type=whole, metavar="S", help="of a random graph (default: 0)"
    )
    group.add_argument(
        "--graph", metavar="FILE", help="a graph of your own: edge list, .gml or .graphml"
    )


def add_accelerate(group: argparse._ArgumentGroup) -> None:
    said = (
        "better weights for several rounds: chebyshev's, or designed for this graph (chebyshev "
        "if none is named)"
    )
    group.add_argument(
        "--accelerate", nargs="?", const="chebyshev", default=False, metavar="HOW", help=said
    )


_RECORDS = (
    "example level: records of every user; NAME=M,... or a FILE (lines user,records) by "
    "name; M,M,... of users 0, 1, ..."
)


def add_exposure(
    parser: argparse.ArgumentParser, steps: int = 1000, several_clips: bool = False
) -> None:
    group = parser.add_argument_group("what is exposed")
    group.add_argument(
        "--steps", type=whole, metavar="T", help=f"training steps (default: {steps})"
    )
    if several_clips:
        group.add_argument(
            "--clip",
            type=numbers,
            metavar="C,...",
            help="norms to clip gradients to, to choose from (default: 1)",
        )
    else:
        group.add_argument(
            "--clip",
            type=number,
            metavar="C",
            help="norm to which gradients are clipped (default: 1)",
        )
    group.add_argument(
        "--unit", help="user (all data of a user) or example (one record) (default: user)"
    )
    group.add_argument(
        "--batch-size",
        type=whole,
        metavar="B",
        help="records a step; at example level epsilon depends on it",
    )
    group.add_argument("--records", type=records, metavar="M", help=_RECORDS)
    group.add_argument("--sampling", help="example level: poisson (default) or fixed")
    group.add_argument(
        "--relation", help="example level: add-remove (default with poisson) or replace"
    )


def add_adversary(parser: argparse.ArgumentParser, planning: bool = True) -> None:
    """Of a command that makes a plan (`planning`), or only accounts for one."""
    who = f"eavesdropper, curious, colluding:Q or everyone (default: {ADVERSARY})"
    parser.add_argument("--adversary", metavar="WHO", help=who)
    delta = f"failure probability, such as 1e-6 or 1/1000000 (default: {DELTA:g})"
    parser.add_argument("--delta", type=probability, metavar="D", help=delta)
    if planning:
        parser.add_argument("--any-delta", action="store_true", help=ANY_DELTA)


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--json",
        action="store_true",
        help="one JSON object on standard output, and nothing else there",
    )


def add_output(parser: argparse.ArgumentParser) -> None:
    add_json(parser)
    parser.add_argument(
        "--plot", type=picture, metavar="FILE", help="draw the answer: .png, .svg or .pdf"
    )


def adversary_of(options: argparse.Namespace) -> decor.Adversary:
    adversary = decor.Adversary.parse(ADVERSARY if options.adversary is None else options.adversary)
    if adversary.average_only:
        raise InputError(
            "who sees the average alone is no adversary of DECOR; compare with central DP in the "
            "table of decor plan"
        )
    return adversary


def exposure_of(options: argparse.Namespace) -> decor.Exposure:
    return decor.Exposure(
        clip=1.0 if options.clip is None else options.clip,
        steps=1000 if options.steps is None else options.steps,
        unit="user" if options.unit is None else options.unit,
        batch_size=options.batch_size,
        records=options.records,
        sampling=options.sampling,
        relation=options.relation,
    )


def refuse_beside_plan(options: argparse.Namespace) -> None:
    """A saved plan says what is exposed, on which graph and with which noise: nothing else may seem
    to say it.
    """
    said = (
        "topology",
        "users",
        "degree",
        "probability",
        "graph_seed",
        "graph",
        "steps",
        "clip",
        "unit",
        "batch_size",
    )
    for name in (*said, "records", "sampling", "relation", "sigma_cdp", "sigma_cor"):
        if getattr(options, name, None) is not None:
            raise InputError(
                f"--plan already says the {name.replace('_', ' ')}; drop --{name.replace('_', '-')}"
            )


def topology_of(options: argparse.Namespace) -> decor.Topology:
    _refuse_unused(options)
    if options.graph is not None:
        topology = decor.read(options.graph)
        if options.users is not None and options.users != topology.users:
            raise InputError(
                f"--graph {options.graph} has {topology.users} users, not "
                f"{options.users}; drop --users"
            )
        return topology
    name = options.topology or "ring"
    return named.named(name, options.users, options.degree, options.probability, options.graph_seed)


def topologies_of(options: argparse.Namespace) -> tuple[tuple[str, decor.Topology], ...]:
    """Several graphs of the same users, by the names given with commas."""
    if options.graph is not None:
        return ((Path(options.graph).stem, topology_of(options)),)
    names = [name.strip() for name in (options.topology or "ring,torus").split(",") if name.strip()]
    if len(set(names)) < len(names) or not names:
        raise InputError(
            f"--topology {options.topology!r} names no graph, or one twice; give "
            "names such as ring,torus"
        )
    used = {other for name in names for other in named.TAKES.get(named.plain(name), ())}
    found = []
    for name in names:
        own = argparse.Namespace(**vars(options))
        own.topology = name
        for other in used - set(named.TAKES.get(named.plain(name), ())):
            setattr(own, other, None)  # meant for another of the graphs
        found.append((name, topology_of(own)))
    return tuple(found)


def _refuse_unused(options: argparse.Namespace) -> None:
    """An option that would change nothing was meant to change something."""
    name = "--graph" if options.graph is not None else (options.topology or "ring")
    used = named.TAKES.get(named.plain(name), ())
    for other in (
        "degree",
        "probability",
        "graph_seed",
        *(["topology"] if name == "--graph" else []),
    ):
        if getattr(options, other) is not None and other not in used:
            raise InputError(f"--{other.replace('_', '-')} does not apply to {name}; drop it")
