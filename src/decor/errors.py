"""Every error a person can meet. Each message says what is wrong, the value, and the way out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec


class DecorError(Exception):
    """Base of all errors raised on purpose by DECOR; anything else that escapes is a bug of
    ours.
    """


class InputError(DecorError, ValueError):
    """An invalid value; the message names it and says what to give instead."""


class GraphError(InputError):
    """A graph that cannot be built: self-loop, duplicate edge, unknown user, impossible degree,
    unreadable file.
    """


class BudgetError(InputError):
    """A privacy budget, exposure or noise that makes no sense, such as a negative epsilon or a
    delta outside (0, 1).
    """


class MissingExtra(DecorError, ImportError):
    """Something that is installed on request only, such as torch; the message says how."""

    @classmethod
    def of(cls, what: str, extra: str | None, library: str | None) -> MissingExtra:
        """`what` says what needs the library, which an extra of this package brings (None: the
        package itself); it is installed from a clone.
        """
        place = "." if extra is None else f"'.[{extra}]'"
        return cls(f"{what}: pip install {place} in a clone of DECOR", name=library)


class AuditFailed(DecorError):
    """Measured: what users send is not as private as claimed, or its noise not as planned."""


class CannotBound(DecorError):
    """The privacy of this case cannot be bounded from above, so no number is given."""


class FragileGraphWarning(UserWarning):
    """Against this adversary some user can be isolated, so correlated noise buys nothing for it."""


class DivergenceWarning(UserWarning):
    """A training whose models are no longer finite: it has stopped, and what it spent is spent."""


class UnsharedWarning(UserWarning):
    """A round of an own loop in which nothing, or nothing finite, was shared: zero was sent."""


class AgreementError(DecorError):
    """Two neighbours could not agree on a secret, or one asks for what is gone; nothing was sent
    under it.
    """


class LocalProtocolError(DecorError):
    """This side used the protocol wrongly: a bug of ours, never the neighbour's fault."""


class RemoteProtocolError(DecorError):
    """A neighbour sent what it may not send; the message names it.

    Its connection is closed, and nothing else happens.
    """


class LedgerError(DecorError):
    """The ledger cannot be read or written, or has refused a forbidden request; nothing may be
    sent until this is fixed.
    """


class PrivacyStop(LedgerError):
    """A node has stopped for privacy: its ledger is old, a step would get a second message, or the
    budget is spent. Starting it again would not help.
    """


class TransientError(DecorError):
    """Something outside failed that may work in a moment: a name server, a port in use, a ledger
    that another program is using. Starting again is worth a try.
    """


def require(library: str, extra: str | None, what: str) -> None:
    """Raises MissingExtra if a library that an extra provides is not installed; imports nothing.

    Args:
        library: The library's import name.
        extra: The extra of this package that brings it. None: every complete installation has it,
            but not deploy/requirements.txt, for nodes alone.
        what: What needs it, in the plural: "nodes", "runs".
    """
    try:
        found = find_spec(library)
    except ModuleNotFoundError:  # a library inside another that is missing
        found = None
    if found is None:
        raise MissingExtra.of(f"{what} need {library}", extra, library)


@contextmanager
def write_errors(
    path: object, *, before: str = "", after: str = "", exists: str = ""
) -> Iterator[None]:
    """Within this block an OSError becomes an InputError that names the file that is written.

    Args:
        path: The file.
        before: What the message calls it, such as "the key ".
        after: The way out, if there is one.
        exists: The way out for a new file where there is one of this name already.
    """
    try:
        yield
    except OSError as problem:
        if exists and isinstance(problem, FileExistsError):
            raise InputError(f"{str(path)!r} exists; {exists}") from None
        reason = f"{problem.strerror}{after}"
        raise InputError(f"{before}{str(path)!r} cannot be written: {reason}") from None
