"""`decor predict`: what the model of a run says of new records."""

from __future__ import annotations

import argparse
from collections import Counter
from typing import Any

import decor
from decor.errors import InputError
from decor.text import amount

from . import options as opt
from .json_output import write_json

_EXAMPLE = """example:
  decor predict run --data new.csv --output predictions.csv"""


def add_to(commands: Any) -> None:
    help = "predict new records with the model of a run"
    parser = opt.add_command(commands, "predict", run, help, _EXAMPLE)
    folder = "folder written by decor train, decor node or decor release"
    parser.add_argument("what", metavar="RUN", help=folder)
    data = "CSV file with a header: the columns of the task, in any order; others are ignored"
    parser.add_argument("--data", required=True, metavar="FILE", help=data)
    output = (
        "CSV file to write: for each record the class and the probability of every class, or the "
        "predicted number"
    )
    parser.add_argument("--output", required=True, metavar="FILE", help=output)
    trust = (
        "import and call the model's code that the run names, which can do anything on this "
        "machine; its hash is compared first"
    )
    parser.add_argument("--trust-code", action="store_true", help=trust)
    overwrite = "replace the file in --output"
    parser.add_argument("--overwrite", action="store_true", help=overwrite)
    opt.add_json(parser)


def run(options: argparse.Namespace) -> None:
    from decor.learning.csv_table import read_columns, write_columns

    saved = decor.Run.load(options.what)
    if not saved.models:
        raise InputError(f"{options.what!r} has no models: they are at another process")
    table = read_columns(options.data)
    predictions = saved.predict(table, trust_code=options.trust_code)
    columns = predictions.columns()
    # at the end: records that cannot be predicted leave no incomplete file
    write_columns(options.output, columns, options.overwrite)
    records = len(predictions.values)
    classes = None if predictions.classes is None else Counter(predictions.most_likely)
    if options.json:
        write_json(
            {
                "records": records,
                "classes": classes,
                "output": options.output,
                # the noise of a simulation can be subtracted: programs must not publish its model
                "simulated": saved.simulated,
            }
        )
        return
    print(amount(records, "record"))
    for name, count in sorted((classes or {}).items()):
        print(f"  predicted {name}: {count:,}")
    print(f"wrote {options.output}")
