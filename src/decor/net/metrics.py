"""The status of a node or a relay in the text format of Prometheus."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

_OWN = (
    ("step", "gauge", "step", "Steps done."),
    ("steps", "gauge", "steps", "Steps of the whole plan."),
    ("done", "gauge", "done", "1 once this user has its final model, 0 before."),
    ("paused", "gauge", "paused", "1 while no step is taken, 0 otherwise."),
    ("messages_total", "counter", "messages", "Messages made, over all starts of this run."),
    ("missed_steps_total", "counter", "missed", "Steps that others took without this user."),
    ("late_messages_total", "counter", "late", "Models that came after their round."),
    (
        "last_progress_timestamp_seconds",
        "gauge",
        "last_progress",
        "When this user last made a message, ended a round or caught up, in Unix time.",
    ),
    (
        "noise_left_ratio",
        "gauge",
        "noise_left",
        "Noise in the average model over the planned noise, by this user's edges; 1 as planned.",
    ),
    (
        "epsilon_spent",
        "gauge",
        "epsilon",
        "Epsilon that this run has spent: of the whole plan from the first message on.",
    ),
    (
        "epsilon_so_far",
        "gauge",
        "epsilon_if_fixed",
        "Epsilon of the messages so far, if their number was fixed in advance; no guarantee.",
    ),
    ("epsilon_planned", "gauge", "epsilon_planned", "Epsilon of the whole plan."),
    ("delta", "gauge", "delta", "Failure probability of this run's epsilons."),
    (
        "ledger_epsilon_spent",
        "gauge",
        "ledger_epsilon",
        "Epsilon of all runs in the ledger, with the whole plan of each that has not ended, for "
        "the question of the limit.",
    ),
    (
        "ledger_epsilon_limit",
        "gauge",
        "ledger_limit",
        "The most that it may be: the limit in force that leaves least for another run.",
    ),
)
"""Name, type, key of the status, and help. What is None in the status is not served."""

_TIMES = (
    ("step_duration_seconds", "step_seconds", "Time of whole steps, with waiting for neighbours."),
    ("round_duration_seconds", "round_seconds", "Time to exchange the models of one round."),
)
"""Name and key of summaries, and their help."""

_BY_NEIGHBOUR = (
    ("neighbour_connected", "gauge", "here", "1 if the neighbour is connected, 0 otherwise."),
    ("reconnections_total", "counter", "reconnections", "Connections after the first."),
    ("sent_bytes_total", "counter", "sent_bytes", "Bytes sent to the neighbour, before TLS."),
    ("received_bytes_total", "counter", "received_bytes", "Bytes of the neighbour, after TLS."),
)
"""The same for keys of each neighbour's status."""

_OF_RELAY = (
    ("federations", "gauge", "federations", "Federations whose users are admitted."),
    ("open_connections", "gauge", "connections", "Connections that are open now."),
    ("waiting_connections", "gauge", "waiting", "Those that wait for their other end."),
    ("joined_pairs", "gauge", "joined_pairs", "Pairs of connections that are joined now."),
    ("accepted_connections_total", "counter", "accepted", "Connections accepted."),
    ("joins_total", "counter", "joins", "Pairs of connections joined."),
    ("passed_bytes_total", "counter", "passed_bytes", "Bytes passed on, both ways together."),
)
"""As `_OWN`, for the status of a relay; the names follow "relay_"."""

_REFUSALS = "Connections refused, or closed because the other end broke the protocol."
_BUILD = "Versions of this program and of what it runs on; always 1."


@dataclass
class Durations:
    """How often something was done, and how long all of it took, in seconds."""

    count: int = 0
    seconds: float = 0.0

    def add(self, seconds: float) -> None:
        self.count += 1
        self.seconds += seconds


@dataclass
class StepTimes:
    """How long steps and rounds have taken since the start, and when the last progress was."""

    # totals only: the time of one gradient depends on how many records were drawn
    steps: Durations = field(default_factory=Durations)
    rounds: Durations = field(default_factory=Durations)
    last_progress: float = field(default_factory=time.time)
    """Unix time; at first that of the start, so that a node that never gets on is noticed."""

    def mark(self) -> None:
        """Takes note of progress."""
        # the time of day, unlike all waits: monitoring compares it with its own clock
        self.last_progress = time.time()

    def status(self) -> dict[str, Any]:
        """As a node's status has it."""
        return {
            "step_seconds": {"count": self.steps.count, "sum": self.steps.seconds},
            "round_seconds": {"count": self.rounds.count, "sum": self.rounds.seconds},
            "last_progress": self.last_progress,
        }


Sample = tuple[str, Mapping[str, str], Any]
"""What follows the name of the metric, labels, and the value."""
Family = tuple[str, str, str, Iterable[Sample]]
"""Name, type and help of a metric, and its samples."""


def prometheus_text(status: Mapping[str, Any]) -> str:
    """A node's status as Prometheus reads it, version 0.0.4 of the text format.

    Args:
        status: As of `Node.status`.
    """
    families: list[Family] = []
    for name, kind, key, help in _OWN:
        # why it is paused is text for people: here it is paused or not
        value = status[key] if key != "paused" else status[key] is not None
        # left out, never zero: an epsilon of 0 would be a promise
        if value is not None:
            families.append((name, kind, help, [("", {}, value)]))
    for name, key, help in _TIMES:
        times = status[key]
        samples: list[Sample] = [("_sum", {}, times["sum"]), ("_count", {}, times["count"])]
        families.append((name, "summary", help, samples))
    for name, kind, key, help in _BY_NEIGHBOUR:
        by_name = [("", {"neighbour": each["name"]}, each[key]) for each in status["neighbours"]]
        families.append((name, kind, help, by_name))
    families += [_refusals("refusals_total", status), _build(status)]
    return _text({"federation": status["federation"], "user": status["user"]}, families)


def relay_text(status: Mapping[str, Any]) -> str:
    """The same of a relay's status.

    Args:
        status: As of `Relay.status`, with the versions under `build`.
    """
    families: list[Family] = [
        (f"relay_{name}", kind, help, [("", {}, status[key])])
        for name, kind, key, help in _OF_RELAY
    ]
    # without labels: which users meet is nothing that a relay publishes
    return _text({}, [*families, _refusals("relay_refusals_total", status), _build(status)])


def _refusals(name: str, status: Mapping[str, Any]) -> Family:
    samples = [("", {"kind": kind}, count) for kind, count in status["refusals"].items()]
    return name, "counter", _REFUSALS, samples


def _build(status: Mapping[str, Any]) -> Family:
    # a value has to be a number, so the versions are labels
    return "build_info", "gauge", _BUILD, [("", status["build"], 1)]


def _text(own: Mapping[str, str], families: Iterable[Family]) -> str:
    """Metrics with labels that every sample has."""
    lines: list[str] = []
    for name, kind, help, samples in families:
        lines.extend((f"# HELP decor_{name} {help}", f"# TYPE decor_{name} {kind}"))
        for suffix, labels, value in samples:
            lines.append(f"decor_{name}{suffix}{_labels({**own, **labels})} {_number(value)}")
    return "\n".join(lines) + "\n"


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escape(value)}"' for name, value in labels.items()) + "}"


def _escape(text: str) -> str:
    # backslash, quote and line break; nothing else is special within a label
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    """All digits: a rounded epsilon might be below the true one."""
    if math.isfinite(value):
        # the text format has no True and False
        return repr(int(value) if isinstance(value, bool) else value)
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
