"""Claims: epsilons at many deltas, read back as one mu."""

import numpy as np
import pytest

from decor.auditing.claim import DELTAS, Claim
from decor.privacy.loss import gaussian


@pytest.mark.parametrize("mu", [0.5, 1.0, 3.0])
def test_the_claim_of_a_gaussian_is_its_own_mu_or_a_little_more(mu):
    epsilons = np.array([gaussian.epsilon(mu, float(delta)) for delta in DELTAS])
    for false_alarms in (0.02, 0.1, 0.3):
        assert mu <= Claim(epsilons).mu(false_alarms) * (1 + 1e-9)
        assert Claim(epsilons).mu(false_alarms) < 1.1 * mu


def test_without_privacy_no_attack_that_can_be_measured_exceeds_the_claim():
    assert Claim(np.full(len(DELTAS), np.inf)).mu(0.1) > 30
