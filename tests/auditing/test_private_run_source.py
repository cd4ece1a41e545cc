"""Private runs of the simulator: all attackers, the last bits, and the secret."""

import pytest
from small_audits import EXAMPLES, failures, plan, reached

import decor
from decor.noise.private_noise import Secret
from decor.training import vectorised


def test_a_private_run_is_attacked_by_all_and_its_last_bits_and_secret_are_tested():
    audit = decor.audit(plan(), engine=decor.Vectorised(seed=None), canaries=30_000, steps=8)
    assert audit.passed, audit.failures
    assert {row.adversary for row in audit.rows} == {"eavesdropper", "curious", "everyone"}
    assert all(share > 0.85 for share in reached(audit).values())
    (wire,) = audit.wires
    names = {check.name for check in wire.checks}
    assert {"clip", "support", "low bits", "entropy"} <= names and wire.last_bits == "tested"


@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
def test_examples_of_a_private_run_are_attacked_on_every_path(sampling):
    made = plan(decor.ring(4), **EXAMPLES, sampling=sampling)
    audit = decor.audit(made, engine=decor.Vectorised(seed=None), canaries=9_000, steps=8)
    assert audit.passed, audit.failures
    assert audit.wires[0].paths == ("module", "linear", "network")
    assert {attack.kind for attack in audit.wires[0].attacks} == {"optimal", "linear", "own batch"}
    assert all(share > 0.3 for share in reached(audit).values()), reached(audit)


def test_a_secret_of_two_bytes_is_detected(monkeypatch):
    monkeypatch.setattr(
        vectorised, "Secret", lambda random: Secret(lambda count: random(2) + bytes(count - 2))
    )
    audit = decor.audit(plan(), engine=decor.Vectorised(seed=None), canaries=3_000, steps=2)
    assert "was made from 2 bytes" in failures(audit)
