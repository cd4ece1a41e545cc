"""User level: correct runs reach the claim, and faults of noise and clip are found."""

import numpy as np
import pytest
import torch
from small_audits import FEW, failed_checks, failures, plan, reached

import decor
from decor.learning.gradients import modules
from decor.training import channel, sparse_kernels


@pytest.mark.slow
def test_a_correct_run_proves_more_than_nine_tenths_of_the_claim_and_never_more_than_all():
    audit = decor.audit(plan(decor.ring(8)))
    assert audit.passed and not audit.failures, audit.failures
    shares = reached(audit)
    assert {name for _, name in shares} == {"eavesdropper", "curious", "everyone"}
    assert all(0.9 < share <= 1 for share in shares.values()), shares
    assert {attack.attacker.coalition for wire in audit.wires for attack in wire.attacks} >= {
        (v,) for v in range(8)
    }


def test_noise_used_again_escapes_constant_canaries_and_no_others(monkeypatch):
    draw = channel.DenseChannel.noise
    monkeypatch.setattr(
        channel.DenseChannel,
        "noise",
        lambda self, to, alpha, step, threads=1: draw(self, to, alpha, 0, threads),
    )
    audit = decor.audit(plan(), engine=decor.Vectorised(), canaries=FEW, steps=8)
    failing = {attack.canary for attack in audit.wires[0].attacks if not attack.passed}
    assert "alternating" in failing and "constant" not in failing
    assert {"next step", "memory"} <= failed_checks(audit)


def test_a_little_too_little_noise_of_the_users_own_is_proven(monkeypatch):
    """Three quarters of sigma_cdp: all that is left of the noise in the sum over users."""
    by_edges = channel.root.by_edges
    monkeypatch.setattr(
        channel.root, "by_edges", lambda users, edges, s, c: by_edges(users, edges, 0.75 * s, c)
    )
    audit = decor.audit(plan(), engine=decor.Vectorised(noise="edges"), canaries=FEW, steps=8)
    assert "more about user" in failures(audit) and "sum of users" in failed_checks(audit)
    assert all(
        not attack.passed
        for attack in audit.wires[0].attacks
        if attack.attacker.adversary == "everyone" and attack.kind == "optimal"
    )


def test_one_stream_for_all_edges_is_detected(monkeypatch):
    fill = sparse_kernels.add_columns

    def one(to, start, at, values, places, *rest):
        edges = np.diff(start) == 2
        return fill(to, start, at, values, np.where(edges, 0, places), *rest)

    monkeypatch.setattr(sparse_kernels, "add_columns", one)
    audit = decor.audit(plan(), engine=decor.Vectorised(noise="edges"), canaries=FEW, steps=8)
    assert any(name.startswith("parts: ") for name in failed_checks(audit))


def test_gradients_that_are_not_clipped_are_detected(monkeypatch):
    def unclipped(to, gradients, clip, alpha):
        for block, g in zip(to, gradients, strict=True):
            block += g * alpha.view(*alpha.shape, *(1,) * (g.dim() - 3))

    monkeypatch.setattr(modules, "add_clipped", unclipped)
    audit = decor.audit(plan(), canaries=FEW, steps=8)
    assert all(not wire.passed for wire in audit.wires)
    assert "more about user" in failures(audit) or "covariance" in failed_checks(audit)


def test_gradients_that_are_clipped_too_late_are_detected(monkeypatch):
    """Canaries that are all eight clips long would miss it."""

    def clipped(to, gradients, clip, alpha):
        for block, g in zip(to, gradients, strict=True):
            length = g.flatten(3).double().norm(dim=-1)
            factor = torch.where(length <= 2 * clip, 1.0, clip / length) * alpha
            block += (g * factor.unsqueeze(-1)).to(g.dtype)

    monkeypatch.setattr(modules, "add_clipped", clipped)
    audit = decor.audit(plan(), canaries=FEW, steps=8)
    assert "clip" in failed_checks(audit) and all(not wire.passed for wire in audit.wires)


def test_coordinates_at_the_end_without_noise_are_detected(monkeypatch):
    draw = channel.DenseChannel.noise

    def short(self, to, alpha, step, threads=1):
        kept = [block[..., -3:].clone() for block in to]
        draw(self, to, alpha, step, threads)
        for block, before in zip(to, kept, strict=True):
            block[..., -3:] = before

    monkeypatch.setattr(channel.DenseChannel, "noise", short)
    assert "every coordinate" in failed_checks(decor.audit(plan(), canaries=FEW, steps=8))
