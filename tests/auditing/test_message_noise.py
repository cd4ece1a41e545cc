"""The noise in messages: from messages back to gradients, and the estimate with the least noise."""

import numpy as np
import pytest
from small_audits import plan

import decor
from decor.auditing.attackers import list_attackers
from decor.auditing.message_noise import Transcript
from decor.auditing.sources import SimulatedSource


@pytest.fixture
def transcript():
    return Transcript(SimulatedSource(decor.Vectorised(), "v", True), plan(steps=3), 4)


def test_the_optimal_weights_leave_the_noise_that_the_leverage_says(transcript):
    for attacker in list_attackers(transcript.plan, secrets=True):
        weights = transcript.weights(attacker)
        variance = weights @ transcript.covariance(attacker.coalition) @ weights
        assert weights[attacker.victim] == 1 and not weights[list(attacker.coalition)].any()
        assert variance == pytest.approx(1 / attacker.leverage, rel=1e-6)


def test_gradients_are_read_from_messages_through_gossip(transcript):
    rng, W = np.random.default_rng(0), transcript.plan.topology.mixing.toarray()
    models = np.zeros((6, 4))
    for _ in range(3):
        gradients = rng.normal(size=models.shape)
        messages = models - gradients
        np.testing.assert_allclose(transcript.noisy_gradients(messages), gradients, atol=1e-12)
        models = W @ messages
