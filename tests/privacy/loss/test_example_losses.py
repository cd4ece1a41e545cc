"""What one example loses over plain and sampled steps: epsilon, and delta as its inverse."""

import math
from collections import Counter
from dataclasses import replace

import pytest
from oracles import true_delta
from scipy.special import ndtr

from decor.privacy.loss import subsampled
from decor.privacy.loss.example_losses import ExampleLosses
from decor.privacy.loss.subsampled import SubsampledStep

CASES = [("poisson", "add-remove"), ("poisson", "replace"), ("fixed", "replace")]
STEP = SubsampledStep(1.05, 64 / 3750, "poisson", "add-remove", 1)


def one(z, rate, case, mu_squared=0.0, steps=1):
    return ExampleLosses.of(mu_squared, {SubsampledStep(z, rate, *case, 1): steps}, case[1])


def test_steps_without_sampling_are_one_gaussian():
    losses = ExampleLosses.of(0.75, {}, "replace")
    value = losses.epsilon(1e-6)
    mu = math.sqrt(0.75)
    assert true_delta(value, mu) <= 1e-6 < true_delta(value * (1 - 1e-9), mu)
    assert true_delta(1.0, mu) <= losses.delta(1.0) <= true_delta(1.0, mu) * (1 + 1e-5)


@pytest.mark.parametrize("case", CASES)
def test_plain_steps_beside_sampled_ones_are_sampled_steps_of_rate_one(case):
    """A shift of 1/z for a removal and of 2/z for a replacement."""
    z, shift = 7.0, 1 if case[1] == "add-remove" else 2
    sampled = SubsampledStep(1.5, 0.05, *case, 100)
    plain = SubsampledStep(z, 1.0, *case, 30)
    wanted = subsampled.epsilon([sampled, plain], 1e-5)[0]
    losses = one(1.5, 0.05, case, 30 * (shift / z) ** 2, 100)
    assert losses.epsilon(1e-5) == pytest.approx(wanted, rel=1e-4)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("delta", [0.1, 1e-3, 1e-12])
def test_delta_is_the_inverse_of_epsilon_from_above(case, delta):
    losses = one(0.8, 0.05, case, 0.01, 20)
    value = losses.epsilon(delta)
    assert delta * (1 - 1e-9) <= losses.delta(value) <= 1.01 * delta
    assert losses.epsilon(losses.delta(value)) <= value


def test_one_removal_has_the_delta_of_the_integral():
    """P = (1-q) N(0) + q N(mu) against N(0): the loss is above epsilon from one point on."""
    rate, mu = 0.2, 2.0
    losses = one(1 / mu, rate, CASES[0])
    for epsilon in (0.0, 0.1, 1.0, 3.0):
        point = (math.log((math.exp(epsilon) - 1 + rate) / rate) + mu * mu / 2) / mu
        removal = (1 - rate) * ndtr(-point) + rate * ndtr(mu - point)
        removal -= math.exp(epsilon) * ndtr(-point)
        assert removal <= losses.delta(epsilon) <= 1.006 * removal + 2e-6


@pytest.mark.parametrize(("more_noise", "higher_rate"), [(0.002, 0.0), (0.0, 1e-4)])
def test_many_kinds_of_steps_are_merged_upwards(more_noise, higher_rate):
    steps = [
        SubsampledStep(1.0 + k * more_noise, 0.01 + k * higher_rate, "poisson", "replace", 3)
        for k in range(120)
    ]
    merged = ExampleLosses.of(0.0, {replace(step, steps=1): 3 for step in steps}, "replace")
    assert len(merged.phases) <= 48 and sum(step.steps for step in merged.phases) == 360
    exact = subsampled.epsilon(steps, 1e-5)[0]
    assert exact <= merged.epsilon(1e-5) <= 1.03 * exact


def test_nothing_costs_nothing_and_no_noise_hides_nothing():
    nothing = ExampleLosses.of(0.0, Counter({STEP: 0}), "add-remove")
    assert nothing.phases == () and nothing.epsilon(1e-5) == nothing.delta(0.5) == 0
    bare = ExampleLosses.of(math.inf, {STEP: 3}, "add-remove")
    assert bare.epsilon(0.1) == math.inf and bare.delta(100.0) == 1
