"""The audit: its claim is the plan's, and what cannot be audited is refused."""

import pytest
from small_audits import FEW, plan

import decor
from decor.errors import InputError


def test_the_claim_of_the_audit_is_the_plans_own():
    made = plan(decor.random_regular(7, degree=4, seed=1), decor.Adversary.colluding(2))
    audit = decor.audit(made, canaries=FEW, steps=8)
    assert audit.passed
    for row in audit.rows:
        assert row.claimed == made.guarantee(adversary=decor.Adversary.parse(row.adversary)).epsilon
        assert 0.6 * row.claimed < row.measured <= row.claimed
    worst = next(row for row in audit.rows if row.adversary == "colluding:2").best
    assert (
        worst.attacker.coalition == made.guarantee().worst_coalition
        and worst.attacker.victim == made.guarantee().worst_user
    )


def test_a_private_run_of_several_processes_is_refused_with_a_hint():
    with pytest.raises(InputError, match="Vectorised\\(seed=None\\), which draws the same noise"):
        decor.audit(plan(), engine=decor.ProcessGroup(seed=None))


def test_what_cannot_be_audited_is_refused_with_a_hint():
    made = plan()
    central = decor.baselines.central(made.topology, made.exposure, made.budget)
    for wrong, hint in (
        ({"plan": central}, "plan of DECOR"),
        (
            {"plan": decor.NoisePlan(made.topology, made.exposure, made.adversary, 0.0, 1.0)},
            "no noise",
        ),
        (
            {"plan": decor.NoisePlan(made.topology, made.exposure, made.adversary, 1.0, 1e8)},
            "smaller ratio",
        ),
        ({"plan": made, "canaries": 10}, "3,000"),
        ({"plan": made, "steps": 1}, "2 steps"),
        ({"plan": made, "confidence": 1.0}, "0.9999"),
        ({"plan": made, "engine": "peers"}, "Peers"),
        ({"plan": plan(decor.ring(5000), decor.Adversary.eavesdropper())}, "smaller one"),
    ):
        with pytest.raises(InputError, match=hint):
            decor.audit(wrong.pop("plan"), **wrong)
