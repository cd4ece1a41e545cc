"""Exit codes say whether a restart is worth a try, and never hide what was lost."""

import pytest

from decor.errors import InputError, LedgerError, PrivacyStop, RemoteProtocolError, TransientError
from decor.federation.exit_codes import error_code, run_code


class Ended:
    """A run, as far as its exit code goes."""

    def __init__(self, stopped=None, **manifest):
        self.stopped, self.manifest = stopped, manifest


@pytest.mark.parametrize(
    "run, code",
    (
        (Ended(steps_missed=0, noise_left=1.0), 0),
        (Ended(), 0),  # a fetched model
        (Ended(steps_missed=1, noise_left=1.0), 4),
        (Ended(steps_missed=0, noise_left=1.0001), 4),
        (Ended("stopped after step 3", steps_missed=0, noise_left=1.0), 130),
    ),
)
def test_a_run_with_fewer_steps_or_noise_left_is_no_plain_success(run, code):
    assert run_code(run) == code


@pytest.mark.parametrize(
    "problem, code",
    (
        (TransientError("the port is in use"), 1),
        (PrivacyStop("the budget is spent"), 3),
        (LedgerError("the disk is full"), 2),
        (InputError("wrong"), 2),
        (RemoteProtocolError("odd"), 2),
        # a bug may depend on the data, and a restart would repeat it
        (ZeroDivisionError(), 2),
        (OSError("odd"), 2),
    ),
)
def test_only_listed_causes_are_worth_a_restart(problem, code):
    assert error_code(problem) == code
