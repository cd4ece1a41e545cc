"""`decor rehearse FILE`: a federation in the simulator, before anything is spent."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from decor.errors import InputError, require
from decor.text import amount, rounded_up

from . import options as opt
from . import values
from .json_output import guarantee_json, write_json

if TYPE_CHECKING:
    from decor.federation.rehearsal import Rehearsal, Score

_EXAMPLE = """examples:
  decor rehearse federation.toml --public sample.csv
  decor rehearse federation.toml --bandwidth 100 --latency 20 --json"""
_CEILING = "a ceiling, not a forecast"
_BEST_CASE = "the best case, not a forecast"
_CLOSING = (
    "Nothing was sent or spent. No key, no ledger and no user's data was opened. These figures "
    "follow from what is public."
)


def add_to(commands: Any) -> None:
    help = "try a federation file in the simulator, before anything is spent"
    parser = opt.add_command(commands, "rehearse", run, help, _EXAMPLE)
    parser.add_argument("file", metavar="FILE", help="the federation file")
    public = (
        "CSV file (or .npz, where the file has no columns) with records that anyone may know, to "
        "train and test on; without it, records are planted, and accuracy is only a ceiling"
    )
    parser.add_argument("--public", metavar="SAMPLE", help=public)
    label = "the label's column in SAMPLE, where the federation file has no columns"
    parser.add_argument("--label", metavar="COLUMN", help=label)
    seeds = "number of simulated trainings (default: 3 with --public, else 10)"
    parser.add_argument("--seeds", type=values.whole, metavar="N", help=seeds)
    megabits = "megabits per second that each user can send, to estimate the time (default: 10)"
    parser.add_argument(
        "--bandwidth", type=values.number, default=10.0, metavar="MBIT/S", help=megabits
    )
    latency = "milliseconds until a message arrives, to estimate the time (default: 50)"
    parser.add_argument("--latency", type=values.number, default=50.0, metavar="MS", help=latency)
    trust = (
        "import and call the model's code that the file names, which can do anything on this "
        "machine; its hash is compared first"
    )
    parser.add_argument("--trust-code", action="store_true", help=trust)
    opt.add_json(parser)


def run(options: argparse.Namespace) -> None:
    # one by one: each is part of another extra, which the message names
    require("torch", "train", "rehearsals")
    require("cryptography", "peer", "rehearsals")
    from decor.federation.federation import Federation
    from decor.federation.rehearsal import Link, rehearse
    from decor.federation.start_model import find_start

    federation = Federation.read(options.file, run_code=options.trust_code)
    # without the model there are no bytes, no time and no accuracy to report
    if not federation.is_size_known:
        raise InputError(
            f"{options.file!r} has its model as code, {federation.model.code}, which a rehearsal "
            "runs; read the code, then give --trust-code"
        )
    # looked for as by a node: that it is missing should be known before the day of the run
    start = find_start(federation.model.start_sha256, options.file, None)
    link = Link(options.bandwidth, options.latency / 1000)
    found = rehearse(
        federation, options.public, options.label, start=start, link=link, seeds=options.seeds
    )
    if options.json:
        write_json(_facts(found))
    else:
        _show(found)


def _facts(found: Rehearsal) -> dict[str, Any]:
    federation, noise, score = found.federation, found.noise, found.score
    return {
        "name": federation.name,
        "digest": federation.digest.hex(),
        **guarantee_json(federation.guarantee()),
        "users": len(federation.members),
        "steps": federation.training.steps,
        "bytes": asdict(found.traffic),
        "seconds": asdict(found.duration),
        "link": asdict(found.link),
        "noise": {**asdict(noise), "ratio": noise.ratio},
        "score": {
            **asdict(score),
            "mean": score.mean,
            "figure": score.figure,
            "is_forecast": score.is_forecast,
            "meaning": _meaning(score),
        },
        "warnings": _warnings(found),
        # what the closing line tells people, for programs
        "spent": False,
    }


def _meaning(score: Score) -> str:
    if score.is_forecast:
        return "on the public sample"
    # a score in which less is better has a floor, so "ceiling" would mislead
    return _CEILING if score.metric == "accuracy" else _BEST_CASE


def _warnings(found: Rehearsal) -> list[str]:
    score, noise, warnings = found.score, found.noise, []
    if score.is_useless:
        what = "public sample" if score.is_forecast else "planted records"
        warnings.append(
            f"on the {what} the model is no better than always guessing {score.most_frequent!r}; "
            "this federation would spend its budget on nothing"
        )
    # already too much in the best case: real gradients disagree, and add up to less
    if noise.ratio > 1:
        warnings.append(
            f"even where all gradients agree, the noise is {rounded_up(noise.ratio)} times what "
            "they add up to"
        )
    # from here on operators would have the alert DecorNoiseLeft (deploy/alerts.yml)
    if noise.left_after_crash > 2:
        warnings.append(
            f"one user lost in one step leaves {rounded_up(noise.left_after_crash)} times the "
            "planned noise in every model; a smaller privacy.ratio leaves less (decor federation "
            "check says which)"
        )
    return warnings


def _show(found: Rehearsal) -> None:
    federation = found.federation
    print(
        f"{federation.name}: {amount(len(federation.members), 'user')}, "
        f"{amount(federation.training.steps, 'step')}; digest {federation.digest.hex()}\n"
        f"{federation.guarantee()}\n"
    )
    for title, lines in (
        ("Bytes", _byte_lines(found)),
        ("Time", _time_lines(found)),
        ("Noise", _noise_lines(found)),
        (found.score.metric.replace("_", " ").capitalize(), _score_lines(found.score)),
    ):
        print("\n".join([title, *(f"  {line}" for line in lines)]))
    print("".join(f"\nWarning: {warning}." for warning in _warnings(found)))
    print(_CLOSING)


def _byte_lines(found: Rehearsal) -> list[str]:
    traffic = found.traffic
    return [
        f"{traffic.step:,} bytes to each neighbour in a step, before TLS",
        f"{_size(traffic.user)} in all from the user with the most neighbours, "
        f"{_size(traffic.total)} from all users",
    ]


def _time_lines(found: Rehearsal) -> list[str]:
    duration, link = found.duration, found.link
    records = amount(duration.records, "record")
    return [
        f"at least {_span(duration.total)} at {link.megabits:g} Mbit/s and "
        f"{1000 * link.latency:g} ms (--bandwidth, --latency; federation probe measures them)",
        f"a step: {_span(duration.gradient)} for a message ({records}, on this machine) and "
        f"{_span(duration.network)} on the network",
        "without TLS, the ledger's disk, and waiting for slow users",
    ]


def _noise_lines(found: Rehearsal) -> list[str]:
    noise = found.noise
    return [
        f"largest possible signal: {noise.signal:.4g}, if all clipped gradients point one way",
        f"noise in the average model: {rounded_up(noise.parameter)} in each direction "
        f"({rounded_up(noise.ratio)} x that signal), {rounded_up(noise.noise)} in all parameters",
        f"after one user is lost in a step: {rounded_up(noise.left_after_crash)} x planned, in "
        "every model; a restart while its neighbours wait leaves none",
        f"after one user never returns: up to {rounded_up(noise.left_without_user)} x planned",
    ]


def _score_lines(score: Score) -> list[str]:
    # beside the mean: with few seeds one lucky run says little
    lowest, highest = min(score.values), max(score.values)
    metric = score.metric.replace("_", " ")
    runs = f"{len(score.values)} run{'s' if len(score.values) > 1 else ''}"
    spread = f"{_number(score, lowest)} to {_number(score, highest)} in {runs}"
    if score.is_forecast:
        lines = [
            f"{_number(score, score.figure)} of the average model on the public sample ({spread}; "
            f"{score.trained:,} records train, {score.tested:,} test)"
        ]
    else:
        lines = [
            f"{_meaning(score)}: {_number(score, score.figure)} on planted records ({spread})",
            "planted records are as easy to tell apart as can be, with equally frequent classes; "
            "--public SAMPLE says more",
        ]
    lines.append(f"worst {metric} of any user's model: {_number(score, score.worst_user)}")
    if score.base_rate is not None:
        guess = f"always guessing {score.most_frequent!r}"
        lines.append(f"{guess} is right for {score.base_rate:.1%} of these records")
    return lines


def _number(score: Score, value: float) -> str:
    return f"{value:.1%}" if score.metric == "accuracy" else f"{value:.4g}"


def _size(size: int) -> str:
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{size / factor:,.1f} {unit}"
    return f"{size:,} bytes"


def _span(seconds: float) -> str:
    for unit, factor in (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0), ("s", 1.0)):
        # from two of a unit on: below that the next smaller unit shows more
        if seconds >= 2 * factor or (unit == "s" and seconds >= 1):
            return f"{seconds / factor:.1f} {unit}"
    return f"{1000 * seconds:.3g} ms"
