"""Audit: what was claimed, what was measured, and whether the claim stands."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from decor.privacy.adversary import Adversary
from decor.privacy.guarantee import Guarantee
from decor.privacy.loss import gaussian
from decor.privacy.plan import NoisePlan
from decor.results.audit_section import fingerprint
from decor.text import json_safe

from .attack import Attack
from .noise_law import Check

_LITTLE = 0.3
"""Of a claim: who has measured less has not measured it."""


@dataclass(frozen=True)
class Wired:
    """What was found on one wire: one engine's way to make noise."""

    name: str
    attacks: tuple[Attack, ...]
    checks: tuple[Check, ...]
    paths: tuple[str, ...] = ()
    """Whose records were attacked: of any module, a linear model, a network."""
    last_bits: str = ""
    """What can be said of the last bits of messages."""

    @property
    def passed(self) -> bool:
        """Nothing that was measured is against the claim; and something was measured."""
        right = all(attack.passed for attack in self.attacks) and all(
            check.passed for check in self.checks
        )
        return right and bool(self.attacks)


@dataclass(frozen=True)
class Row:
    """One adversary on one wire: the plan's epsilon, and the most that was proven."""

    wire: str
    adversary: str
    best: Attack
    attacks: int
    claimed: float
    measured: float
    passed: bool


@dataclass(frozen=True, eq=False)
class Audit:
    """The outcome: `passed` unless an attack proves more than is claimed, a check fails, or nothing
    was measured.
    """

    plan: NoisePlan
    delta: float
    steps: int
    canaries: int
    confidence: float
    wires: tuple[Wired, ...]
    seconds: float

    @property
    def passed(self) -> bool:
        return bool(self.wires) and all(wire.passed for wire in self.wires)

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """The strongest attack of every adversary: one that proves too much, or else the most that
        any has proven.
        """
        found = []
        for wire in self.wires:
            for adversary in dict.fromkeys(attack.by.adversary for attack in wire.attacks):
                some = [attack for attack in wire.attacks if attack.by.adversary == adversary]
                best = max(
                    some,
                    key=lambda attack: (
                        not attack.passed,
                        attack.reached * math.sqrt(attack.by.leverage),
                    ),
                )
                claimed = self.guarantee(adversary).epsilon
                passed = all(attack.passed for attack in some)
                found.append(
                    Row(
                        wire.name,
                        adversary,
                        best,
                        len(some),
                        claimed,
                        self._measured(best, claimed),
                        passed,
                    )
                )
        return tuple(found)

    def guarantee(self, adversary: str) -> Guarantee:
        return self.plan.guarantee(self.delta, Adversary.parse(adversary))

    def _measured(self, best: Attack, claimed: float) -> float:
        """The share of the claimed mu that was measured, as an epsilon of the whole plan.

        The claim is the one against the very coalition that attacked, which may be weaker than the
        worst of its kind. At example level, where the plan's claim is no Gaussian's, it is the
        Gaussian's with the same epsilon: no proof.
        """
        exposure = self.plan.exposure
        if exposure.unit == "user":
            allowed = 2 * exposure.clip * math.sqrt(exposure.steps * best.by.leverage)
        else:
            allowed = gaussian.mu(claimed, self.delta) if claimed < math.inf else math.inf
        share = best.reached * allowed
        return float(gaussian.epsilon(share, self.delta)) if share < math.inf else math.inf

    @property
    def failures(self) -> list[str]:
        """A sentence for everything that is not as claimed."""
        found = [] if self.wires else ["nothing was measured: no engine was attacked"]
        name = self.plan.topology.name
        for wire in self.wires:
            if not wire.attacks:
                found.append(
                    f"{wire.name}: nothing was measured: this process has heard no "
                    "messages, and made no attack"
                )
            for attack in wire.attacks:
                if not attack.passed:
                    who = (
                        f" (users {', '.join(map(name, attack.by.coalition[:8]))})"
                        if attack.by.coalition
                        else ""
                    )
                    how, victim = (
                        f"{attack.canary} canaries, {attack.kind} attack",
                        name(attack.by.victim),
                    )
                    found.append(
                        f"{wire.name}: {attack.by.adversary}{who} learns more of user {victim} "
                        "than the plan allows: "
                        f"mu {attack.measured:.3g} is proven, and {attack.claimed:.3g} was "
                        f"claimed ({how})"
                    )
            found += [
                f"{wire.name}: not so: {check.said} ({check.name}, probability "
                f"{check.probability:.1g})"
                for check in wire.checks
                if not check.passed
            ]
        return found

    def __str__(self) -> str:
        if not self.passed:
            return f"FAIL: {self.failures[0]}"
        row = max(self.rows, key=lambda row: row.best.reached)
        if row.best.reached < _LITTLE:
            most = f"{100 * row.best.reached:.0f} % of the claimed mu at most"
            return f"PASS, and little was measured: {most}; take more canaries or steps"
        return (
            f"PASS: of the claimed mu up to {100 * row.best.reached:.0f} % was measured and "
            "nowhere more than 100 %, by "
            f"{sum(row.attacks for row in self.rows)} attacks of {len(self.rows)} kinds of "
            "adversary; the noise is as planned "
            f"({sum(len(wire.checks) for wire in self.wires)} checks; confidence "
            f"{self.confidence:g})"
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values, for scripts and for the report; infinities are the string "inf"."""
        found: dict[str, Any] = json_safe(
            {
                "passed": self.passed,
                "plan": fingerprint(self.plan),
                "statement": str(self),
                "delta": self.delta,
                "steps": self.steps,
                "steps_of_plan": self.plan.exposure.steps,
                "canaries": self.canaries,
                "confidence": self.confidence,
                "seconds": self.seconds,
                "unit": self.plan.exposure.unit,
                "last_bits": {wire.name: wire.last_bits for wire in self.wires},
                "records_of": {wire.name: list(wire.paths) for wire in self.wires if wire.paths},
                "users": self.plan.topology.users,
                "topology": self.plan.topology.description,
                "adversaries": [_row(row) for row in self.rows],
                "attacks": [
                    {"engine": wire.name, **_attack(attack)}
                    for wire in self.wires
                    for attack in wire.attacks
                ],
                "checks": [
                    {"engine": wire.name, **vars(check), "passed": check.passed}
                    for wire in self.wires
                    for check in wire.checks
                ],
                "failures": self.failures,
            }
        )
        return found


def _attack(attack: Attack) -> dict[str, Any]:
    told = vars(attack.by) | vars(attack) | {"reached": attack.reached, "passed": attack.passed}
    return {name: value for name, value in told.items() if name != "by"}


def _row(row: Row) -> dict[str, Any]:
    best = row.best
    return {
        "engine": row.wire,
        "adversary": row.adversary,
        "claimed_epsilon": row.claimed,
        "measured_epsilon": row.measured,
        "claimed_mu": best.claimed,
        "measured_mu": best.measured,
        "reached": best.reached,
        "victim": best.by.victim,
        "coalition": list(best.by.coalition),
        "canary": best.canary,
        "attack": best.kind,
        "attacks": row.attacks,
        "passed": row.passed,
    }
