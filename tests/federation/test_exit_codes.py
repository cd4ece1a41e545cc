"""What a supervisor learns from a node's exit code; tests/cli/test_node.py has real nodes."""

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
from decor.federation.exit_codes import INCOMPLETE, error_code, run_code
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
