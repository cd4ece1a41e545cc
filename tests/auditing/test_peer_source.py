"""Real peers: what they receive and know is attacked, and their keys are checked."""

from functools import partial

import numpy as np
import pytest
from small_audits import EXAMPLES, FEW, failed_checks, failures, plan, reached

import decor
from decor.auditing import example_level, peer_source
from decor.federation.local_gradient import LocalGradient
from decor.federation.node import Node
from decor.federation.peers_engine import split_by_user
from decor.net import session
from decor.noise.agreement import Agreement
from decor.noise.grid import Grid


def test_real_peers_are_attacked_by_their_messages_and_secrets():
    audit = decor.audit(plan(), engine=decor.Peers(), canaries=FEW, steps=6)
    assert audit.passed, audit.failures
    assert {row.adversary for row in audit.rows} == {"eavesdropper", "curious", "everyone"}
    assert all(share > 0.8 for share in reached(audit).values())


def test_examples_of_real_peers_are_attacked():
    audit = decor.audit(
        plan(decor.ring(3), **EXAMPLES), engine=decor.Peers(), canaries=8_000, steps=24
    )
    assert audit.passed, audit.failures
    assert all(share > 0.3 for share in reached(audit).values()), reached(audit)


def test_runs_of_real_peers_are_repeated_for_more_examples(monkeypatch):
    monkeypatch.setattr(example_level, "_WIDEST", 1_000)
    audit = decor.audit(
        plan(decor.ring(3), **EXAMPLES), engine=decor.Peers(), canaries=3_000, steps=4
    )
    assert audit.passed, audit.failures
    assert {attack.canaries for attack in audit.wires[0].attacks if attack.kind == "optimal"} == {
        3 * 750
    }


@pytest.fixture
def plant(monkeypatch):
    """`plant(fault)`: a function of this module is called in the process that starts the users."""

    def plant_fault(fault):
        monkeypatch.setattr(peer_source, "split_by_user", partial(planted, fault))

    return plant_fault


def planted(fault, task):
    fault()
    return split_by_user(task)


def clip_too_late():
    def of_user(self, model, rate):
        total, clip = self._mean(model), self.exposure.clip
        length = float(np.linalg.norm(total.astype(np.float64)))
        return total, 1.0 if length <= 2 * clip else clip / length

    LocalGradient._of_user = of_user


def test_peers_that_clip_too_late_are_detected(plant):
    plant(clip_too_late)
    audit = decor.audit(plan(), engine=decor.Peers(), canaries=FEW, steps=4)
    assert "clip" in failed_checks(audit)


def make_keys_of_two_bytes():
    def weak(identity, edge, random):
        return Agreement(identity, edge, lambda count: random(2) + bytes(count - 2))

    session.Agreement = weak


def test_keys_of_two_bytes_are_detected(plant):
    plant(make_keys_of_two_bytes)
    audit = decor.audit(plan(), engine=decor.Peers(), canaries=3_000, steps=2)
    assert "4 random bytes for its keys with 2 neighbours" in failures(audit)


def seed_randomness():
    made = Node.__post_init__

    def seeded(self):
        self.random = np.random.default_rng(list(self.identity.public)).bytes
        made(self)

    Node.__post_init__ = seeded


def test_bytes_that_are_not_the_operating_systems_are_detected(plant):
    plant(seed_randomness)
    audit = decor.audit(plan(), engine=decor.Peers(), canaries=3_000, steps=2)
    assert "not from the operating system" in failures(audit)
    assert failed_checks(audit) == {"entropy"}, "their distribution is right"


def add_beside_the_grid():
    add_noise = Grid.add_noise

    def beside(self, gradient, own_key, edges, factor=1.0, over=False, own_multiple=0):
        held = factor * gradient
        message, tags = add_noise(self, 0 * gradient, own_key, edges)
        return (message + held).astype(gradient.dtype if over else np.float64), tags

    Grid.add_noise = beside


def test_a_gradient_that_is_added_beside_the_grid_is_detected(plant):
    """The first digits are right; the last ones are those of the gradient."""
    plant(add_beside_the_grid)
    audit = decor.audit(plan(), engine=decor.Peers(), canaries=FEW, steps=4)
    assert failed_checks(audit) == {"support"}
    assert "not possible on the grid" in failures(audit)
