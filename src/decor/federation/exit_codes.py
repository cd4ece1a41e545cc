"""Exit codes of a node, for supervisors: whether to start it again, or to call a person."""

from __future__ import annotations

from typing import TYPE_CHECKING

from decor.errors import PrivacyStop, TransientError

if TYPE_CHECKING:
    from decor.results.run import Run

INCOMPLETE = 4
"""Exit code: done, with fewer steps than planned or with noise left."""


def run_code(run: Run) -> int:
    """The exit code of a node that has ended with this run."""
    # 130 as shells report SIGINT; it can be started again
    if run.stopped is not None:
        return 130
    manifest = run.manifest
    incomplete = manifest.get("steps_missed") or manifest.get("noise_left", 1.0) > 1.0
    return INCOMPLETE if incomplete else 0


def error_code(problem: BaseException) -> int:
    """The exit code of a node that could not go on.

    1: a cause outside that may pass, worth a restart. 3: stopped for privacy. 2: anything else, a
    person must look; also an unknown exception, which may depend on the data.
    """
    if isinstance(problem, PrivacyStop):
        return 3
    return 1 if isinstance(problem, TransientError) else 2
