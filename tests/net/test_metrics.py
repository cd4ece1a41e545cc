"""The text for Prometheus, read by Prometheus's own parsers."""

import math
import shutil
import subprocess

import pytest
from example_status import STATUS
from prometheus_client.parser import text_string_to_metric_families

from decor.net.metrics import StepTimes, prometheus_text


def families(status):
    return {each.name: each for each in text_string_to_metric_families(prometheus_text(status))}


def samples(status):
    """(name, labels beyond those of every sample) -> value."""
    own = {"federation": STATUS["federation"], "user": "bonn"}
    found = {}
    for family in families(status).values():
        for sample in family.samples:
            assert own.items() <= sample.labels.items()
            more = frozenset((name, v) for name, v in sample.labels.items() if name not in own)
            found[sample.name, more] = sample.value
    return found


OWN = {
    "step": 5,
    "steps": 9,
    "done": 0,
    "paused": 0,
    "messages_total": 6,
    "missed_steps_total": 1,
    "late_messages_total": 2,
    "last_progress_timestamp_seconds": 1794985838.008448,
    "noise_left_ratio": 1.25,
    "epsilon_spent": 2.9999999999999996,
    "epsilon_so_far": 2.25,
    "epsilon_planned": 2.9999999999999996,
    "delta": 1e-5,
    "ledger_epsilon_spent": 4.5,
    "ledger_epsilon_limit": 10,
    "step_duration_seconds_sum": 1.5,
    "step_duration_seconds_count": 4,
    "round_duration_seconds_sum": 0.75,
    "round_duration_seconds_count": 8,
}
BY_NEIGHBOUR = {
    "neighbour_connected": (1, 0),
    "reconnections_total": (3, 0),
    "sent_bytes_total": (1 << 60, 0),
    "received_bytes_total": (7, 0),
}


def test_prometheus_reads_every_figure_of_a_status_as_it_is():
    expected = {(f"decor_{name}", frozenset()): value for name, value in OWN.items()}
    for name, values in BY_NEIGHBOUR.items():
        for neighbour, value in zip(('ulm\\"\n', "kiel"), values, strict=True):
            expected[f"decor_{name}", frozenset({("neighbour", neighbour)})] = value
    for kind, value in STATUS["refusals"].items():
        expected["decor_refusals_total", frozenset({("kind", kind)})] = value
    expected["decor_build_info", frozenset(STATUS["build"].items())] = 1
    assert samples(STATUS) == expected


def test_a_reason_to_pause_is_a_one_and_nothing_of_its_text():
    paused = STATUS | {"paused": "waits for ulm"}
    assert samples(paused)["decor_paused", frozenset()] == 1
    assert "waits" not in prometheus_text(paused)


def test_a_ledger_without_a_limit_has_no_limit_among_its_metrics():
    found = families(STATUS | {"ledger_epsilon": None, "ledger_limit": None})
    assert families(STATUS).keys() - found.keys() == {
        "decor_ledger_epsilon_spent",
        "decor_ledger_epsilon_limit",
    }


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 3.0000000000000004, 1e300])
def test_an_epsilon_is_neither_rounded_nor_lost(value):
    found = samples(STATUS | {"epsilon": value})["decor_epsilon_spent", frozenset()]
    assert found == value or (math.isnan(found) and math.isnan(value))


def test_every_metric_says_what_it_is_and_counters_are_named_as_such():
    text = prometheus_text(STATUS)
    for family in families(STATUS).values():
        assert family.documentation.endswith(".") and family.type in ("gauge", "counter", "summary")
        name = f"{family.name}_total" if family.type == "counter" else family.name
        assert text.count(f"# TYPE {name} {family.type}\n") == 1


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
@pytest.mark.parametrize("neighbours", [STATUS["neighbours"], []])
def test_prometheus_s_own_tool_finds_no_fault_in_the_text(neighbours):
    text = prometheus_text(STATUS | {"neighbours": neighbours})
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=text, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_times_are_counted_and_progress_has_a_date_from_the_start_on():
    times = StepTimes()
    started = times.last_progress
    times.steps.add(2.0)
    times.steps.add(0.5)
    times.mark()
    status = times.status()
    assert status["step_seconds"] == {"count": 2, "sum": 2.5}
    assert status["round_seconds"] == {"count": 0, "sum": 0.0}
    assert 1.7e9 < started <= status["last_progress"]
