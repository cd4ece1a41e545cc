"""Attackers: coalitions, victims and leverages."""

import numpy as np
import pytest
from small_audits import plan

import decor
from decor.auditing.attackers import covariance, list_attackers


def test_leverages_are_those_of_plain_inversion():
    made = plan(decor.random_regular(7, degree=4, seed=1), decor.Adversary.colluding(2))
    edges = made.topology.edges
    for attacker in list_attackers(made, secrets=True):
        honest = [v for v in range(7) if v not in attacker.coalition]
        shared = np.full(len(edges), made.sigma_cor)
        Sigma = covariance(7, edges, made.sigma_cdp, shared, attacker.coalition)
        inverse = np.linalg.inv(Sigma[np.ix_(honest, honest)]).diagonal()
        assert attacker.leverage == pytest.approx(inverse.max(), rel=1e-9)
        assert attacker.victim in honest


def test_without_secrets_only_the_eavesdropper_attacks_and_with_them_all_kinds():
    made = plan(decor.random_regular(8, degree=4, seed=0), decor.Adversary.colluding(2))
    assert [a.adversary for a in list_attackers(made, secrets=False)] == ["eavesdropper"]
    attackers = list_attackers(made, secrets=True, victim=3)
    assert {a.adversary for a in attackers} == {
        "eavesdropper",
        "curious",
        "colluding:2",
        "everyone",
    }
    assert all(a.victim == 3 and 3 not in a.coalition for a in attackers)
