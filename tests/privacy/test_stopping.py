"""Stopping early: the guarantee is the whole plan's, not the epsilon of the steps taken."""

from dataclasses import replace

import numpy as np
import pytest

import decor
from decor.privacy.loss import gaussian
from decor.results.run import Run
from decor.results.stop_reason import StopReason

STEPS, PATHS, DELTA = 1000, 20_000, 1e-3
ENOUGH = StopReason("enough", "callback")


@pytest.fixture(scope="module")
def run():
    exposure = decor.Exposure(clip=1.0, steps=STEPS)
    plan = decor.calibrate(
        decor.ring(4), exposure, decor.Adversary.everyone(), decor.Budget(3.0, DELTA)
    )
    return Run(plan, {"step": [0]}, {}, STEPS)


@pytest.fixture(scope="module")
def walks(run):
    """Log likelihood ratio of all messages up to each step, [paths, steps], for the first data."""
    mu = gaussian.mu(3.0, 0.999 * DELTA) / np.sqrt(STEPS)
    steps = np.random.default_rng(5).normal(mu**2 / 2, mu, (PATHS, STEPS))
    return np.cumsum(steps, axis=1, out=steps)


def true_delta(walks, at, epsilon):
    """delta of transcripts that stop at step `at` and report `epsilon`, one of each per path."""
    final = walks[np.arange(len(walks)), at - 1]
    excess = np.where(final > epsilon, -np.expm1(epsilon - final), 0.0)
    return excess.mean(), 4 * excess.std() / np.sqrt(len(walks))


@pytest.fixture(scope="module")
def stopped(run, walks):
    """A rule on messages alone: stop once they reveal more than the epsilon of the steps so far."""
    looked = np.unique(np.geomspace(20, STEPS, 60).astype(int))
    reported = np.array([run.guarantee_at(steps=int(step)).epsilon for step in looked])
    beyond = walks[:, looked - 1] > reported + 0.05
    first = np.where(beyond.any(1), beyond.argmax(1), len(looked) - 1)
    return looked[first], reported[first]


def test_the_epsilon_of_the_steps_taken_is_no_promise(walks, stopped):
    """The counter-example: several times the claimed delta, by a rule on public messages."""
    result, error = true_delta(walks, *stopped)
    assert result - error > 3 * DELTA


def test_what_a_run_promises_holds_for_the_same_rule(run, walks, stopped):
    at, _ = stopped
    early = [replace(run, steps_taken=int(t), stopped=ENOUGH) for t in np.unique(at)]
    promised = np.array([each.guarantee.epsilon for each in early])
    assert (promised == run.guarantee.epsilon).all()
    result, error = true_delta(walks, at, promised[0])
    assert result - error < DELTA


def test_a_number_of_steps_fixed_in_advance_costs_what_is_said(run, walks):
    for steps in (50, 370, STEPS):
        epsilon = run.guarantee_at(steps=steps).epsilon
        result, error = true_delta(walks, np.full(PATHS, steps), epsilon)
        assert abs(result - DELTA) < error + 2e-4
