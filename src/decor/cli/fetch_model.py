"""`decor fetch`: the final model from a neighbour, for a user that was away at the end."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from decor.errors import InputError

from . import options as opt
from . import values
from .interrupts import sigterm_interrupts
from .json_output import guarantee_json, write_json
from .node import prepare_output, require_libraries

_EXAMPLE = """example:
  decor fetch hospitals.toml --identity bonn.key --test public.csv --output bonn"""


def add_to(commands: Any) -> None:
    help = "get the final model of a federation from a neighbour"
    parser = opt.add_command(commands, "fetch", run, help, _EXAMPLE)
    parser.add_argument("file", metavar="FILE", help="the federation file")
    key = "the user's key file, written by decor keygen; its node must not be running"
    parser.add_argument("--identity", required=True, metavar="FILE", help=key)
    test = "public examples to test the model on; needed for a model given as code"
    parser.add_argument("--test", metavar="FILE", help=test)
    label = "with .csv files, name or number of the label column (default: the last)"
    parser.add_argument("--label", metavar="COLUMN", help=label)
    output = "folder for the model and the run (default: run-NAME for the user NAME)"
    parser.add_argument("--output", metavar="DIR", help=output)
    opt.add_reach(parser)
    patience = "seconds to wait for a neighbour that has the model (default: 60)"
    parser.add_argument("--patience", type=values.number, default=60.0, metavar="S", help=patience)
    opt.add_json(parser)


def run(options: argparse.Namespace) -> None:
    with sigterm_interrupts():
        _run(options)


def _run(options: argparse.Namespace) -> None:
    require_libraries()
    from decor.federation.federation import Federation
    from decor.federation.fetch import ModelFetch
    from decor.federation.member_data import read_test_data
    from decor.federation.operator import EventLog
    from decor.federation.terms import Terms
    from decor.net.identity import Identity

    federation = Federation.read(options.file)
    identity = Identity.load(options.identity)
    number = federation.number_of(identity.public)
    name = federation.members[number].name
    output = Path(options.output or f"run-{name}")
    # before neighbours are asked: what cannot be saved should not cost them a transfer
    prepare_output(output, federation.digest)
    test = None if options.test is None else read_test_data(federation, options.test, options.label)
    # no private data are needed: any examples of the right shape load the model
    if test is None and federation.model.features is None:
        raise InputError("a model given as code needs examples of the right shape; give --test")
    task = federation.task(_one_example(federation.model.features) if test is None else test, test)
    log = EventLog(name, sys.stderr)
    terms = Terms.of(federation)
    reach = opt.reach_of(options, terms, number)
    fetch = ModelFetch(terms, number, identity, task, log, os.urandom, reach)
    result = asyncio.run(fetch.fetch(options.patience))
    # nothing of others is lost: `prepare_output` has refused folders of other runs
    result.save(output, overwrite=True)
    sender = result.manifest["engine"]["fetched_from"]
    if options.json:
        guarantee = guarantee_json(result.guarantee)
        write_json({"user": name, "from": sender, **guarantee, "output": str(output)})
    else:
        print(f"wrote {output}: the final model of {federation.name}, from {sender}")


def _one_example(features: int | None) -> tuple[Any, Any]:
    import numpy as np

    return np.zeros((1, features or 1)), np.zeros(1)
