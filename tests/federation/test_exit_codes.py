"""What a supervisor learns from a node's exit code; tests/cli/test_node.py has real nodes."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from decor.errors import (
    DecorError,
    InputError,
    LedgerError,
    PrivacyStop,
    RemoteProtocolError,
    TransientError,
)
from decor.federation import exit_codes
from decor.federation.exit_codes import (
    DONE,
    INCOMPLETE,
    INTERRUPTED,
    NEEDS_A_PERSON,
    PRIVACY,
    TRANSIENT,
    error_code,
    run_code,
)
from decor.results.stop_reason import StopReason


@pytest.mark.parametrize(
    ("problem", "code"),
    [
        (TransientError("the port is in use"), 1),
        (PrivacyStop("the budget is spent"), 3),
        (LedgerError("the disk is full"), 2),
        (InputError("no such file"), 2),
        (RemoteProtocolError("sent nonsense"), 2),
        (DecorError("the model has diverged"), 2),
        # a restart would repeat it, and with it perhaps something of the data
        (ValueError("patient 7"), 2),
        (MemoryError(), 2),
    ],
)
def test_only_listed_causes_are_worth_a_restart(problem, code):
    assert error_code(problem) == code


@pytest.mark.parametrize(
    ("stopped", "missed", "left", "code"),
    [
        (None, 0, 1.0, 0),
        (None, 1, 1.0, INCOMPLETE),
        (None, 0, 1.0001, INCOMPLETE),
        # told to stop: it can be started again, so nothing is final yet
        (StopReason("stopped after step 3 of 10", "unfinished"), 5, 7.0, 130),
    ],
)
def test_a_run_that_has_ended_says_whether_it_went_as_planned(stopped, missed, left, code):
    manifest = {"steps_missed": missed, "noise_left": left}
    assert run_code(SimpleNamespace(stopped=stopped, manifest=manifest)) == code


def deploying():
    """docs/deploy.md; copies of the source with planted faults do not have it."""
    return (Path(__file__).parents[2] / "docs" / "deploy.md").read_text(encoding="utf-8")


def codes_of(setting):
    """The exit codes that a setting of a node's systemd unit in docs/deploy.md lists."""
    (unit,) = [
        block
        for block in re.findall(r"```ini\n(.*?)```", deploying(), re.S)
        if "/decor node" in block
    ]
    (line,) = re.findall(rf"^{setting}=(.*)$", unit, re.M)
    return line if line.isalpha() or "-" in line else [int(code) for code in line.split()]


def test_the_systemd_unit_starts_a_node_again_after_a_cause_that_may_pass_and_nothing_else():
    assert codes_of("Restart") == "on-failure"
    # done, though not as planned, or stopped: no failure, so systemd does not start it again
    assert codes_of("SuccessExitStatus") == [INCOMPLETE, INTERRUPTED]
    assert codes_of("RestartPreventExitStatus") == [NEEDS_A_PERSON, PRIVACY, INTERRUPTED]
    every = {value for value in vars(exit_codes).values() if type(value) is int} - {DONE}
    handled = {*codes_of("SuccessExitStatus"), *codes_of("RestartPreventExitStatus")}
    assert every - handled == {TRANSIENT}


def test_the_table_of_exit_codes_has_every_code_and_says_which_one_is_worth_a_restart():
    section = deploying().split("Exit codes say whether a restart helps:")[1].split("\n\n")[1]
    rows = {}
    for line in section.splitlines()[2:]:
        code, meaning, advice = (cell.strip() for cell in line.strip("|").split("|"))
        rows[int(code)] = meaning, advice
    every = {value for value in vars(exit_codes).values() if type(value) is int}
    assert set(rows) == every
    again = {code for code, (_, advice) in rows.items() if "systemd does" in advice}
    assert again == {TRANSIENT}
    for code, word in (
        (PRIVACY, "stopped for privacy"),
        (INCOMPLETE, "fewer steps"),
        (NEEDS_A_PERSON, "unknown exception"),
        (INTERRUPTED, "operator"),
    ):
        assert word in rows[code][0]
    assert rows[PRIVACY][1].startswith("do not start it again")
