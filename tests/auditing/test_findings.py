"""The outcome of an audit: rows, sentences and JSON."""

import json

import pytest
from small_audits import plan

import decor
from decor.auditing.findings import Audit, SourceFindings
from decor.auditing.noise_law import Check
from decor.privacy.loss import gaussian


def test_what_a_weak_coalition_proves_is_not_reported_as_a_strong_ones():
    """The epsilon is that of the coalition that attacked: on a path some curious users learn
    little.
    """
    made = decor.NoisePlan(
        decor.path(7), decor.Exposure(clip=0.7, steps=200), decor.Adversary.curious(), 1.0, 4.0
    )
    audit = decor.audit(made, engine=decor.Vectorised(noise="edges"), canaries=3_000, steps=4)
    curious = next(row for row in audit.rows if row.adversary == "curious")
    mus = [
        a.reached * 2 * 0.7 * (200 * a.attacker.leverage) ** 0.5
        for a in audit.wires[0].attacks
        if a.attacker.adversary == "curious"
    ]
    assert curious.measured == pytest.approx(gaussian.epsilon(max(mus), 1e-5))


def test_the_outcome_is_plain_json_and_a_sentence():
    audit = decor.audit(plan(), canaries=3_000, steps=4)
    data = json.loads(json.dumps(audit.to_json(), allow_nan=False))
    assert (
        data["passed"] and data["statement"].startswith("PASS") and str(audit) == data["statement"]
    )
    assert len(data["attacks"]) == sum(row["attacks"] for row in data["adversaries"])
    assert repr(audit) == f"Audit({audit})"
    assert audit._repr_html_().count("<td>passed</td>") == len(audit.rows) > 0
    assert data["steps"] == 4 and data["steps_of_plan"] == 200


def test_a_failed_check_is_a_sentence_with_its_p_value_where_chance_has_a_part():
    checks = (
        Check.of("covariance", 1e-30, 1e-6),
        Check.of("shape", 0.5, 1e-6),
        Check.exact("messages", False, "each user sent 9 messages in 8 steps"),
    )
    source = SourceFindings("vectorised", (), checks)
    assert source.failures == [
        'vectorised: check "covariance" failed: the noise does not have the planned covariance '
        "(p = 1e-30)",
        'vectorised: check "messages" failed: each user sent 9 messages in 8 steps',
    ]
    audit = Audit(plan(), 1e-5, 8, 3_000, 0.9999, (source,), 1.0)
    assert [check["said"] for check in audit.to_json()["checks"]] == [
        "the noise does not have the planned covariance",
        "the noise is Gaussian",
        "each user sent 9 messages in 8 steps",
    ]
