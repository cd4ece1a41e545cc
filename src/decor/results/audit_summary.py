"""The outcome of an audit (`Audit.to_json`, audit.json), as table rows and as a report section."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from html import escape
from pathlib import Path
from typing import Any, Self

from decor.choices import Unit
from decor.errors import InputError
from decor.privacy.adversary import Adversary
from decor.privacy.plan import NoisePlan
from decor.text import rounded_down, rounded_up

from .json_dataclass import Epsilon, JsonRecord
from .safe_files import read_json

HEADER = ("engine", "adversary", "claimed epsilon", "measured", "reached", "")


@dataclass(frozen=True, kw_only=True)
class AuditRow(JsonRecord):
    """One adversary: the claimed epsilon, and the most that its attacks have shown.

    `reached` is the share of the claimed mu that was measured.
    """

    engine: str
    adversary: str
    claimed_epsilon: Epsilon
    measured_epsilon: Epsilon
    reached: Epsilon
    passed: bool

    @property
    def reached_text(self) -> str:
        """The share in percent, rounded down to one digit: an audit must not overstate itself."""
        percent = 100 * self.reached
        return f"{math.floor(10 * percent) / 10:g} %" if percent < 1e300 else "inf"


@dataclass(frozen=True)
class AuditCheck(JsonRecord):
    """One check of the distribution of the noise."""

    passed: bool


@dataclass(frozen=True, kw_only=True)
class AuditSummary(JsonRecord):
    """What terminal, figure and report show of an audit; `source` is the whole audit.json."""

    # required: a file without these is not an audit
    statement: str
    adversaries: tuple[AuditRow, ...]
    checks: tuple[AuditCheck, ...]
    # an old file may lack the rest; without a verdict an audit has not passed
    passed: bool = False
    plan: str = ""
    unit: Unit = "user"
    topology: str = ""
    canaries: int = 0
    steps: int = 0
    steps_of_plan: int = 0
    seconds: float = 0.0
    last_bits: dict[str, str] = field(default_factory=dict)
    failures: tuple[str, ...] = ()
    source: dict[str, object] = field(default_factory=dict, repr=False, compare=False)

    def to_json(self) -> dict[str, Any]:
        return dict(self.source)

    @classmethod
    def from_json(cls, value: object, where: str = "audit") -> Self:
        # the checks of the types first: only a sound file is kept as `source`
        summary = super().from_json(value, where)
        assert isinstance(value, dict)
        return replace(summary, source=value)

    @property
    def checks_passed(self) -> int:
        return sum(check.passed for check in self.checks)

    @property
    def rows(self) -> list[list[str]]:
        """The cells below HEADER. A claim is rounded up, and a measurement is rounded down.

        At example level the measured epsilon is a comparison with a Gaussian, and not a bound.
        """
        # at user level an attack proves a lower bound on epsilon
        sign = "about" if self.unit == "example" else ">="
        return [
            [
                row.engine,
                row.adversary,
                rounded_up(row.claimed_epsilon),
                f"{sign} {rounded_down(row.measured_epsilon)}",
                row.reached_text,
                "pass" if row.passed else "FAIL",
            ]
            for row in self.adversaries
        ]


def fingerprint(plan: NoisePlan) -> str:
    """A digest of what an audit is about: graph, noise and exposure, but not the adversary."""
    # one audit attacks as every adversary, so it holds for plans that differ only in theirs
    neutral = replace(plan, adversary=Adversary.eavesdropper(), budget=None)
    return sha256(neutral.to_json().encode()).hexdigest()


def load_audit(folder: str | Path, plan: NoisePlan) -> AuditSummary | None:
    """The result of `decor audit FOLDER`; None where there is none, or where it is out of date.

    Args:
        folder: The run folder.
        plan: The plan of the run. An audit of another plan is left out with a warning, because
            the run in the folder may have been replaced since.

    Raises:
        InputError: If audit.json cannot be read.
    """
    path = Path(folder) / "audit.json"
    if not path.is_file():
        return None
    try:
        audit = AuditSummary.from_json(read_json(path))
    # unreadable is an error and not "no audit": a failed audit must not vanish with its file
    except InputError as problem:
        raise InputError(
            f"{str(path)!r} cannot be read as an audit ({problem}); run decor audit again"
        ) from None
    if audit.plan == fingerprint(plan):
        return audit
    warnings.warn(
        f"{str(path)!r} is the audit of a different plan, and is ignored; run decor audit again",
        stacklevel=2,
    )
    return None


def render_section(audits: Sequence[tuple[str, AuditSummary]]) -> str:
    """The report's section as HTML. Guarantee: all text of the data is escaped."""
    parts = [_render_audit(name if len(audits) > 1 else "", audit) for name, audit in audits]
    return (
        '<section class="card" aria-labelledby="audit-title">'
        f'<h2 id="audit-title">Audit</h2>{"".join(parts)}</section>'
    )


def _render_audit(name: str, audit: AuditSummary) -> str:
    # on the terminal the last column needs no name, but a screen reader does
    head = "".join(f'<th scope="col">{escape(cell or "verdict")}</th>' for cell in HEADER)
    body = ""
    for row in audit.rows:
        body += f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>"
    title = f"<h3>{escape(name)}</h3>" if name else ""
    # failures come before the table: they are what a reader must not miss
    failures = "".join(f"<li>{escape(failure)}</li>" for failure in audit.failures)
    label = escape(f"Audit {name}".strip())
    return (
        f"{title}<p>{escape(audit.statement)}</p>{f'<ul>{failures}</ul>' if failures else ''}"
        f'<div class="scroll" tabindex="0" role="region" aria-label="{label}">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
        f'<p class="quiet">{audit.checks_passed} of {len(audit.checks)} checks of the noise’s '
        "distribution passed. Attacks prove a lower bound; the claim is an upper bound.</p>"
    )
