"""The large numbers of a page: the metric, what it loses against each baseline, and settings."""

import math
import re
from dataclasses import replace
from statistics import stdev

import pytest
import sample

from decor.results.key_figures import render_key_figures
from decor.results.tables import difference_of, spreads


def figures(data, outcome=0, metric=0):
    """The figures as texts: big number, unit, name, small print."""
    report = sample.read(data)
    chosen = report.metrics[metric]
    html = render_key_figures(report, report.outcomes[outcome], chosen, spreads(report, chosen))
    return [" ".join(re.sub("<[^>]*>", " ", part).split()) for part in html.split("<div>")[1:]]


def mean(report, method, epsilon):
    values = report.outcome(method, epsilon).final["accuracy"]
    return 100 * sum(values) / len(values)


def test_an_outcome_is_compared_with_every_baseline_at_its_budget():
    report = sample.read(sample.comparison())
    own, *against = figures(sample.comparison())
    assert own.startswith("test accuracy, DECOR ring") and "4 seeds, from" in own
    names = {"No privacy": None, "Local DP": 1.0, "Central DP": 1.0}
    for text, (method, epsilon) in zip(against, names.items(), strict=True):
        difference = mean(report, "DECOR ring", 1.0) - mean(report, method, epsilon)
        assert f"{difference:+.1f}".replace("-", "−") in text and f"{method}: " in text
        # the error of a difference, not of either mean
        pairs = zip(
            report.outcome("DECOR ring", 1.0).final["accuracy"],
            report.outcome(method, epsilon).final["accuracy"],
            strict=True,
        )
        error = 100 * stdev(a - b for a, b in pairs) / 2
        assert f"± {error:.1f}; {method}: " in text, text


def test_a_difference_of_other_seeds_adds_both_errors_and_one_of_single_runs_has_none():
    report = sample.read(sample.comparison())
    metric = report.metrics[0]
    one, other = report.outcome("DECOR ring", 1.0), report.outcome("Local DP", 1.0)
    apart = difference_of(one, replace(other, seeds=(7, 8, 9, 10)), metric)
    errors = [100 * stdev(each.final[metric.name]) / 2 for each in (one, other)]
    assert apart.error == pytest.approx(math.hypot(*errors))
    assert apart.mean == pytest.approx(difference_of(one, other, metric).mean)
    single = [replace(o, seeds=(0,), final={metric.name: (0.5,)}) for o in (one, other)]
    assert difference_of(*single, metric).error is None


def test_a_baseline_is_not_compared_with_itself():
    texts = figures(sample.comparison(), outcome=2)
    assert texts[0].startswith("test accuracy, Central DP")
    assert not any("against central DP" in text for text in texts)


def test_a_single_run_shows_its_second_metric_and_its_settings():
    own, second, epsilon, steps = figures(sample.single())
    assert "1 seed" in own and "±" not in own and second.startswith("training loss")
    assert "ε, with δ = 1e-05 3" in epsilon and "σ cdp" in epsilon and "steps 200" in steps


def test_an_outcome_that_diverged_has_no_number_and_a_partial_one_says_so():
    assert figures(sample.diverged(), outcome=3)[0] == "test accuracy, Local DP – % 4 seeds"
    assert "3 of 4 seeds, from" in figures(sample.diverged(), outcome=7)[0]
