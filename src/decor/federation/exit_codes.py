"""Exit codes of nodes, as supervisors such as systemd understand them.

0: done as planned. 1: a transient failure outside; restart. 2: needs a person's attention. 3:
stopped to protect privacy. 4: done, with fewer steps or with noise left. 130: told to stop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from decor.errors import PrivacyStop, TransientError

if TYPE_CHECKING:  # a run is read by processes that load no torch
    from decor.results.run import Run

DONE = 0
TRANSIENT = 1
"""A cause outside that may pass: the only code after which a supervisor should start it again."""
NEEDS_A_PERSON = 2
PRIVACY = 3
"""Stopped for privacy: it must not be started again."""
INCOMPLETE = 4
"""Done, with fewer steps than planned or with noise left."""
INTERRUPTED = 130
"""Stopped by its operator. Shells report SIGINT so: 128 plus the signal's number."""


def run_code(run: Run) -> int:
    """The exit code of a node that has ended with this run."""
    if run.stopped is not None:
        return INTERRUPTED
    manifest = run.manifest
    incomplete = manifest.get("steps_missed") or manifest.get("noise_left", 1.0) > 1.0
    return INCOMPLETE if incomplete else DONE


def error_code(problem: BaseException) -> int:
    """The exit code of a node that could not go on.

    1: a transient failure outside; restart. 3: stopped to protect privacy. 2: anything else, which
    needs a person's attention; also an unknown exception, which may depend on the data.
    """
    if isinstance(problem, PrivacyStop):
        return PRIVACY
    return TRANSIENT if isinstance(problem, TransientError) else NEEDS_A_PERSON
