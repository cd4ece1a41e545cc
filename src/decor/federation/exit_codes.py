"""Exit codes of nodes, as supervisors such as systemd understand them.

0: done as planned. 1: a transient failure outside; restart. 2: needs a person's attention. 3:
stopped to protect privacy. 4: done, with fewer steps or with noise left. 130: told to stop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from decor.errors import PrivacyStop, TransientError

if TYPE_CHECKING:  # a run is read by processes that load no torch
    from decor.results.run import Run

INTERRUPTED = 130
"""Exit code: stopped by its operator. Shells report SIGINT so: 128 plus the signal's number."""
INCOMPLETE = 4
"""Exit code: done, with fewer steps than planned or with noise left."""


def run_code(run: Run) -> int:
    """The exit code of a node that has ended with this run."""
    if run.stopped is not None:
        return INTERRUPTED
    manifest = run.manifest
    incomplete = manifest.get("steps_missed") or manifest.get("noise_left", 1.0) > 1.0
    return INCOMPLETE if incomplete else 0


def error_code(problem: BaseException) -> int:
    """The exit code of a node that could not go on.

    1: a transient failure outside; restart. 3: stopped to protect privacy. 2: anything else, which
    needs a person's attention; also an unknown exception, which may depend on the data.
    """
    if isinstance(problem, PrivacyStop):
        return 3
    return 1 if isinstance(problem, TransientError) else 2
