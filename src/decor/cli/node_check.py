"""`decor node FILE --check`: what the federation would make of a user's data, without joining."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from decor.text import amount, rounded_up, table

from .json_output import write_json

if TYPE_CHECKING:
    from decor.federation.federation import Federation
    from decor.learning.columns import Counts


def check_data(options: argparse.Namespace) -> None:
    """Reads and prepares the data as a node would; prints what only their owner may see.

    No model's code is run, no ledger is opened, and nothing is sent.

    Args:
        options: Of `decor node`; without an identity, the number of records is not compared.
    """
    from decor.federation.federation import Federation
    from decor.federation.member_data import read_member_data, read_test_data
    from decor.net.identity import Identity

    # people look at their data first, often before they have read the file's code
    federation = Federation.read(options.file, run_code=False)
    number = None
    if options.identity is not None:
        number = federation.number_of(Identity.load(options.identity).public)
    data = read_member_data(federation, options.data, options.label)
    if number is not None:
        records = len(data.shard[1]) if data.counts is None else data.counts.records
        # with another number epsilon would not be true, so that a node would refuse the data
        federation.check_records(number, records)
    if options.test is not None:
        # only for its mistakes, which a node would otherwise report on the day of the run
        read_test_data(federation, options.test, options.label)
    facts = _numbers(federation, data.shard) if data.counts is None else _count_line(data.counts)
    facts = {"data": options.data, "federation": federation.name, **facts}
    if federation.privacy.rate is not None:
        facts["largest_local_step"] = federation.exposure.local_step(facts["used"])
    facts["warnings"] = warnings_of(facts["used"], facts["classes"])
    if options.json:
        write_json(facts)
    else:
        _show(facts)


def warnings_of(used: int, classes: Mapping[str, int]) -> list[str]:
    """What a node would train on all the same, and its owner should know.

    Args:
        used: How many records have a known label.
        classes: How many of them each class has; empty where the label is a number.
    """
    if not used:
        return ["no record has a known label: this user would train on nothing"]
    present = [name for name, count in classes.items() if count]
    if len(present) == 1:
        return [f"all records are of class {present[0]!r}: nothing tells the classes apart"]
    return []


def _count_line(counts: Counts) -> dict[str, Any]:
    return {
        "records": counts.records,
        "used": counts.used,
        "dropped": counts.dropped,
        "columns": {name: vars(each) for name, each in counts.columns.items()},
        "classes": counts.classes,
        "base_rate": counts.base_rate,
    }


def _numbers(federation: Federation, shard: tuple[Any, Any]) -> dict[str, Any]:
    """The same of data that are numbers already: nothing of them is changed."""
    from decor.learning.build_model import convert_data

    _, y = convert_data(federation.model, federation.dtype, "the data", shard)
    names = federation.definition.classes or ()
    classes = {name: int((y == k).sum()) for k, name in enumerate(names)}
    rate = max(classes.values()) / len(y) if classes else None
    sizes = {"records": len(y), "used": len(y), "dropped": 0}
    return {**sizes, "columns": {}, "classes": classes, "base_rate": rate}


def _show(facts: dict[str, Any]) -> None:
    print(f"{facts['data']} for {facts['federation']}: {amount(facts['records'], 'record')}")
    if facts["dropped"]:
        print(f"{facts['dropped']:,} of them have no known label, and are not used.")
    names = ("missing", "clamped", "other")
    rows = [
        [column, *(f"{counts[name]:,}" for name in names)]
        for column, counts in facts["columns"].items()
        if any(counts.values())
    ]
    if rows:
        print("\nValues that are missing, beyond the range (clamped) or not listed (other):")
        print(table(["column", *names], rows))
    if facts["base_rate"] is not None:
        most = max(facts["classes"], key=facts["classes"].__getitem__)
        print(f"\nAlways guessing {most!r} is right for {facts['base_rate']:.1%} of the records.")
    if "largest_local_step" in facts:
        clips = rounded_up(facts["largest_local_step"])
        print(f"\nLargest local step: {clips} clips in an expected batch.")
    for warning in facts["warnings"]:
        print(f"Warning: {warning}.")
    # no noise covers these counts: to pass them on costs privacy that no ledger records
    print("\nThese figures are of private data, for you alone. Nothing was sent or spent.")
