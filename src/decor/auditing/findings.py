"""Audit: what was claimed, what was measured, and whether the claim stands."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from html import escape
from typing import Any

from decor.privacy.adversary import Adversary
from decor.privacy.guarantee import Guarantee
from decor.privacy.loss import gaussian
from decor.privacy.plan import NoisePlan
from decor.results.audit_summary import fingerprint
from decor.text import html_table, json_safe, rounded_down, rounded_up

from .mu_bound import Attack
from .noise_law import Check

_LITTLE = 0.3
"""An audit that reaches less of the claim than this has measured little."""


@dataclass(frozen=True)
class SourceFindings:
    """What was found in the messages of one source.

    Attributes:
        name: The source, such as "vectorised, edge by edge".
        attacks: All attacks.
        checks: All checks.
        paths: The gradient code whose examples were attacked, of `canary_tasks.PATHS`.
        last_bits: What can be said about the last bits of messages.
    """

    name: str
    attacks: tuple[Attack, ...]
    checks: tuple[Check, ...]
    paths: tuple[str, ...] = ()
    last_bits: str = ""

    @property
    def passed(self) -> bool:
        """Nothing measured contradicts the claim, and something was measured."""
        right = all(attack.passed for attack in self.attacks)
        right = right and all(check.passed for check in self.checks)
        # all() of nothing is true, and an audit without attacks has shown nothing
        return right and bool(self.attacks)

    @property
    def failures(self) -> list[str]:
        """A sentence for each check that failed."""
        sentences = []
        for check in self.checks:
            if not check.passed:
                # an exact check has no p-value
                p = f" (p = {check.probability:.1g})" if check.least < 0.5 else ""
                sentences.append(f'{self.name}: check "{check.name}" failed: {check.sentence}{p}')
        return sentences


@dataclass(frozen=True)
class Row:
    """One adversary at one source: the plan's epsilon, and the largest that was proven.

    Attributes:
        wire: Name of the message source.
        adversary: Name of the adversary.
        best: Its strongest attack.
        attacks: How many attacks it made.
        claimed: The plan's epsilon against it.
        measured: The epsilon that its best attack proves.
        passed: Whether none of its attacks proves more than is claimed.
    """

    wire: str
    adversary: str
    best: Attack
    attacks: int
    claimed: float
    measured: float
    passed: bool


@dataclass(frozen=True, eq=False, repr=False)
class Audit:
    """The outcome of `decor.audit`.

    Attributes:
        plan: The plan that was audited.
        delta: Where epsilons are compared.
        steps: Steps that were run.
        canaries: Canaries that were planted.
        confidence: Probability with which a correct engine passes.
        wires: The findings at each message source: one for each way in which the engine makes
            noise.
        seconds: How long the audit took.
    """

    plan: NoisePlan
    delta: float
    steps: int
    canaries: int
    confidence: float
    wires: tuple[SourceFindings, ...]
    seconds: float

    @property
    def passed(self) -> bool:
        """No attack proves more than is claimed, no check fails, and something was measured."""
        return bool(self.wires) and all(wire.passed for wire in self.wires)

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """The strongest attack of each adversary: one that proves too much, or the best one."""
        rows = []
        for wire in self.wires:
            for adversary in dict.fromkeys(a.attacker.adversary for a in wire.attacks):
                attacks = [a for a in wire.attacks if a.attacker.adversary == adversary]
                best = max(attacks, key=_strength)
                claimed = self.guarantee(adversary).epsilon
                measured = self._epsilon(best, claimed)
                passed = all(attack.passed for attack in attacks)
                rows.append(
                    Row(wire.name, adversary, best, len(attacks), claimed, measured, passed)
                )
        return tuple(rows)

    def guarantee(self, adversary: str) -> Guarantee:
        """The plan's guarantee at the audit's delta.

        Args:
            adversary: Its name, such as "curious".
        """
        return self.plan.guarantee(self.delta, Adversary.parse(adversary))

    def _epsilon(self, best: Attack, claimed: float) -> float:
        """The share of the claimed mu that was measured, as an epsilon of the whole plan.

        The claim is the one against the coalition that attacked, which may be weaker than the worst
        of its kind. At example level the plan's claim is not Gaussian: there it is that of the
        Gaussian with the same epsilon, so the result is a comparison and not a proof.
        """
        exposure = self.plan.exposure
        if exposure.unit == "user":
            # mu = 2 C sqrt(T leverage) is that of a whole run (docs/guarantees.md)
            allowed = 2 * exposure.clip * math.sqrt(exposure.steps * best.attacker.leverage)
        else:
            allowed = gaussian.mu(claimed, self.delta) if claimed < math.inf else math.inf
        share = best.reached * allowed
        return float(gaussian.epsilon(share, self.delta)) if share < math.inf else math.inf

    @property
    def failures(self) -> list[str]:
        """A sentence for each thing that is not as claimed."""
        sentences = [] if self.wires else ["nothing was measured: no engine was attacked"]
        for wire in self.wires:
            if not wire.attacks:
                sentences.append(
                    f"{wire.name}: nothing was measured: this process received no messages and "
                    "made no attack"
                )
            excesses = [attack for attack in wire.attacks if not attack.passed]
            sentences += [f"{wire.name}: {self._excess(attack)}" for attack in excesses]
            sentences += wire.failures
        return sentences

    def _excess(self, attack: Attack) -> str:
        name, attacker = self.plan.topology.name, attack.attacker
        # eight names are enough to find the place
        names = ", ".join(map(name, attacker.coalition[:8]))
        members = f" (users {names})" if names else ""
        return (
            f"{attacker.adversary}{members} learns more about user {name(attacker.victim)} than "
            f"the plan allows: an attack proves mu {attack.measured:.3g}, and the plan claims "
            f"{attack.claimed:.3g} ({attack.canary} canaries, {attack.kind} attack)"
        )

    def __str__(self) -> str:
        if not self.passed:
            return f"FAIL: {self.failures[0]}"
        reached = 100 * max(row.best.reached for row in self.rows)
        # still a pass: an attack that measures little is no evidence of a fault
        if reached < 100 * _LITTLE:
            most = f"at most {reached:.0f} % of the claimed mu"
            return f"PASS, but little was measured: {most}; use more canaries or steps"
        attacks = sum(row.attacks for row in self.rows)
        checks = sum(len(wire.checks) for wire in self.wires)
        return (
            f"PASS: {attacks} attacks by {len(self.rows)} adversaries measured up to "
            f"{reached:.0f} % of the claimed mu, and none more than 100 %; the noise is as "
            f"planned ({checks} checks; confidence {self.confidence:g})"
        )

    def __repr__(self) -> str:
        return f"Audit({self})"

    def _repr_html_(self) -> str:
        """The outcome, and the strongest attack of each adversary, as a notebook shows them."""
        cells = [
            (
                row.wire,
                row.adversary,
                rounded_up(row.claimed),
                rounded_down(row.measured),
                "passed" if row.passed else "failed",
            )
            for row in self.rows
        ]
        header = ("engine", "adversary", "claimed epsilon", "measured epsilon", "")
        return f"<p>{escape(str(self))}</p>{html_table(header, cells)}"

    def to_json(self) -> dict[str, Any]:
        """Plain values, for scripts and for the report; infinities are the string "inf"."""
        data: dict[str, Any] = json_safe(
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
                "attacks": [_attack(w.name, attack) for w in self.wires for attack in w.attacks],
                "checks": [_check(w.name, check) for w in self.wires for check in w.checks],
                "failures": self.failures,
            }
        )
        return data


def _strength(attack: Attack) -> tuple[bool, float]:
    # a coalition's claim grows with its leverage: what counts is the mu that is proven
    return not attack.passed, attack.reached * math.sqrt(attack.attacker.leverage)


def _attack(engine: str, attack: Attack) -> dict[str, Any]:
    fields = vars(attack.attacker) | vars(attack)
    del fields["attacker"]
    return {"engine": engine, **fields, "reached": attack.reached, "passed": attack.passed}


def _check(engine: str, check: Check) -> dict[str, Any]:
    return {
        "engine": engine,
        "name": check.name,
        "said": check.sentence,
        "probability": check.probability,
        "least": check.least,
        "passed": check.passed,
    }


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
        "victim": best.attacker.victim,
        "coalition": list(best.attacker.coalition),
        "canary": best.canary,
        "attack": best.kind,
        "attacks": row.attacks,
        "passed": row.passed,
    }
