"""Stopping early: why the promise is the whole plan's, and the epsilon of the steps taken
is none.
"""

from dataclasses import replace

import numpy as np
import pytest

import decor
from decor.privacy.loss import gaussian
from decor.results.run import Run

STEPS, PATHS, DELTA = 1000, 20_000, 1e-3


@pytest.fixture(scope="module")
def run():
    exposure = decor.Exposure(clip=1.0, steps=STEPS)
    plan = decor.calibrate(
        decor.ring(4), exposure, decor.Adversary.everyone(), decor.Budget(3.0, DELTA)
    )
    return Run(plan, {"step": [0]}, {}, STEPS)


@pytest.fixture(scope="module")
def walks(run):
    """The logarithm of the likelihood ratio of all messages up to every step, [paths, steps], if
    the data is the first of two.
    """
    mu = gaussian.mu(3.0, 0.999 * DELTA) / np.sqrt(STEPS)
    steps = np.random.default_rng(5).normal(mu**2 / 2, mu, (PATHS, STEPS))
    return np.cumsum(steps, axis=1, out=steps)


def true_delta(walks, at, epsilon):
    """delta of a transcript that stops at `at` (one step for every path), if `epsilon` (one for
    every path) is reported.
    """
    final = walks[np.arange(len(walks)), at - 1]
    excess = np.where(final > epsilon, -np.expm1(epsilon - final), 0.0)
    return excess.mean(), 4 * excess.std() / np.sqrt(len(walks))


@pytest.fixture(scope="module")
def stopped(run, walks):
    """A rule that looks at messages alone: stop as soon as they reveal more than the epsilon of the
    steps so far.
    """
    looked = np.unique(np.geomspace(20, STEPS, 60).astype(int))
    reported = np.array([run.guarantee_at(steps=int(step)).epsilon for step in looked])
    beyond = walks[:, looked - 1] > reported + 0.05
    first = np.where(beyond.any(1), beyond.argmax(1), len(looked) - 1)
    return looked[first], reported[first]


def test_the_epsilon_of_the_steps_taken_is_no_promise(walks, stopped):
    """The counter-example: several times the delta that is claimed, by a rule on public
    messages.
    """
    found, error = true_delta(walks, *stopped)
    assert found - error > 3 * DELTA


def test_what_a_run_promises_holds_for_the_same_rule(run, walks, stopped):
    at, _ = stopped
    promised = np.array(
        [
            replace(run, steps_taken=int(t), stopped="enough").guarantee.epsilon
            for t in np.unique(at)
        ]
    )
    assert (promised == run.guarantee.epsilon).all()
    found, error = true_delta(walks, at, promised[0])
    assert found - error < DELTA


def test_a_number_of_steps_fixed_in_advance_costs_what_is_said(run, walks):
    for steps in (50, 370, STEPS):
        epsilon = run.guarantee_at(steps=steps).epsilon
        found, error = true_delta(walks, np.full(PATHS, steps), epsilon)
        assert abs(found - DELTA) < error + 2e-4
