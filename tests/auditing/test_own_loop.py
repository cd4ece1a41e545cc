"""Own loops under attack: canaries that loops share reach the claim and no more, and faults of the
clip and of the noise are found.
"""

import pytest
from own_loops import OwnLoops
from small_audits import FEW, failed_checks, failures, plan, reached

import decor
from decor.training import simulate


@pytest.mark.slow
def test_canaries_through_own_loops_prove_most_of_the_claim_and_never_more_than_all():
    audit = decor.audit(plan(decor.ring(8)), engine=OwnLoops(), steps=24)
    assert audit.passed and not audit.failures, audit.failures
    shares = reached(audit)
    assert {name for _, name in shares} == {"eavesdropper", "curious", "everyone"}
    assert all(0.8 < share <= 1 for share in shares.values()), shares


def test_an_own_loop_whose_differences_are_not_clipped_is_detected(monkeypatch):
    def unclipped(to, gradients, clip, alpha):
        for block, g in zip(to, gradients, strict=True):
            block += g * alpha.view(*alpha.shape, *(1,) * (g.dim() - 3))

    monkeypatch.setattr(simulate, "add_clipped", unclipped)
    audit = decor.audit(plan(), engine=OwnLoops(), canaries=FEW, steps=8)
    assert all(not wire.passed for wire in audit.wires)
    assert "more about user" in failures(audit) or "clip" in failed_checks(audit)


def test_an_own_loop_that_is_clipped_at_twice_the_clip_is_detected(monkeypatch):
    clipped = simulate.add_clipped
    monkeypatch.setattr(
        simulate, "add_clipped", lambda to, g, clip, alpha: clipped(to, g, 2 * clip, alpha)
    )
    audit = decor.audit(plan(), engine=OwnLoops(), canaries=FEW, steps=8)
    assert "clip" in failed_checks(audit) and all(not wire.passed for wire in audit.wires)


def test_an_own_loop_with_old_noise_is_detected(monkeypatch):
    take = simulate.SimulatedFederation._step

    def again(self, step, rate, before):
        self._channel.noise, real = (
            lambda to, alpha, at, threads: real(to, alpha, 0, threads),
            self._channel.noise,
        )
        try:
            return take(self, step, rate, before)
        finally:
            del self._channel.noise

    monkeypatch.setattr(simulate.SimulatedFederation, "_step", again)
    audit = decor.audit(plan(), engine=OwnLoops(), canaries=FEW, steps=8)
    assert {"next step", "memory"} <= failed_checks(audit)


def test_a_correct_own_loop_passes_a_small_audit():
    audit = decor.audit(plan(), engine=OwnLoops(), canaries=FEW, steps=8)
    assert audit.passed, audit.failures
