"""The audit on real engines: it reaches the claim where all is right, and fails where something is
not.
"""

import json

import numpy as np
import pytest
import torch

import decor
from decor.auditing import attackers, example_level
from decor.errors import InputError
from decor.federation.local_gradient import Local
from decor.federation.node import Node
from decor.learning import batches
from decor.learning.gradients import layers, linear, modules
from decor.net import session
from decor.noise.agreement import Agreement
from decor.noise.grid import Grid
from decor.noise.secret import Secret
from decor.privacy.loss import gaussian
from decor.training import channel, sparse_kernels, vectorised

FEW = 15_000


def plan(graph=None, adversary=None, steps=200, **exposure):
    return decor.calibrate(
        graph or decor.ring(6),
        decor.Exposure(clip=0.7, steps=steps, **exposure),
        adversary or decor.Adversary.curious(),
        decor.Budget(3.0, 1e-5),
    )


EXAMPLES = {"unit": "example", "batch_size": 10, "records": 400}


def reached(audit):
    return {(row.wire, row.adversary): row.best.reached for row in audit.rows}


@pytest.mark.slow
def test_of_a_right_run_more_than_nine_tenths_is_proven_and_never_more_than_all():
    found = decor.audit(plan(decor.ring(8)))
    assert found.passed and not found.failures, found.failures
    shares = reached(found)
    assert {name for _, name in shares} == {"eavesdropper", "curious", "everyone"}
    assert all(0.9 < share <= 1 for share in shares.values()), shares
    assert {attack.by.coalition for wire in found.wires for attack in wire.attacks} >= {
        (v,) for v in range(8)
    }


def test_the_claim_of_the_audit_is_the_plans_own():
    made = plan(decor.random_regular(7, degree=4, seed=1), decor.Adversary.colluding(2))
    found = decor.audit(made, canaries=FEW, steps=8)
    assert found.passed
    for row in found.rows:
        assert row.claimed == made.guarantee(adversary=decor.Adversary.parse(row.adversary)).epsilon
        assert 0.6 * row.claimed < row.measured <= row.claimed
    worst = next(row for row in found.rows if row.adversary == "colluding:2").best
    assert (
        worst.by.coalition == made.guarantee().worst_coalition
        and worst.by.victim == made.guarantee().worst_user
    )
    # every foe's leverage by plain inversion
    edges = made.topology.edges
    for foe in attackers.foes(made, secrets=True):
        honest = [v for v in range(7) if v not in foe.coalition]
        Sigma = attackers.covariance(
            7, edges, made.sigma_cdp, np.full(len(edges), made.sigma_cor), foe.coalition
        )
        inverse = np.linalg.inv(Sigma[np.ix_(honest, honest)]).diagonal()
        assert foe.leverage == pytest.approx(inverse.max(), rel=1e-9) and foe.victim in honest


@pytest.mark.parametrize("relation", ["add-remove", "replace"])
def test_records_are_found_as_often_as_the_claim_allows_and_no_more(relation):
    found = decor.audit(
        plan(decor.ring(4), **EXAMPLES, relation=relation), canaries=24_000, steps=32
    )
    assert found.passed, found.failures
    assert all(0.8 < share <= 1 for share in reached(found).values()), reached(found)


def test_records_are_attacked_on_every_path_that_an_engine_takes_to_their_gradients(monkeypatch):
    """Whoever trains a linear model or a network does not train on the path of any module."""
    seen = {}
    for path in (modules.Modules, linear.Linear, layers.Layers):

        def counted(self, to, *rest, own=path.add_records):
            seen.setdefault(type(self).__name__, set()).update(
                tuple(block.shape[3:]) for block in to
            )
            own(self, to, *rest)

        monkeypatch.setattr(path, "add_records", counted)
    found = decor.audit(plan(decor.ring(4), **EXAMPLES), canaries=6_000, steps=4)
    assert found.passed, found.failures
    assert seen.keys() == {"Modules", "Linear", "Layers"} and len(seen["Layers"]) == 2
    assert found.to_json()["records_of"] == {
        wire.name: ["module", "linear", "network"] for wire in found.wires
    }


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_records_are_attacked_however_much_larger_the_noise_of_edges_is_and_whoever_else_has_how_many(
    dtype,
):
    exposure = decor.Exposure(
        clip=1.0, steps=100, unit="example", batch_size=10, records=(100, 100, 100, 2600)
    )
    made = decor.NoisePlan(
        decor.ring(4), exposure, decor.Adversary.curious(), sigma_cdp=1.0, sigma_cor=1e5
    )
    found = decor.audit(made, engine=decor.Vectorised(dtype=dtype), canaries=6_000, steps=8)
    assert found.passed, found.failures
    assert all(share > 0.7 for share in reached(found).values()), reached(found)
    assert "network" in found.wires[0].paths


def test_records_of_very_many_users_are_not_one_hot():
    found = decor.audit(
        plan(decor.ring(300), unit="example", batch_size=1, records=100), canaries=3_000, steps=2
    )
    assert found.passed and all(wire.paths == ("module",) for wire in found.wires)


def test_batches_of_a_fixed_size_are_attacked_too():
    found = decor.audit(
        plan(decor.ring(4), **EXAMPLES, sampling="fixed"), canaries=12_000, steps=32
    )
    assert found.passed and all(share > 0.4 for share in reached(found).values()), reached(found)


def test_real_peers_are_attacked_by_what_they_hear_and_know():
    found = decor.audit(plan(), engine=decor.Peers(), canaries=FEW, steps=6)
    assert found.passed, found.failures
    assert {row.adversary for row in found.rows} == {"eavesdropper", "curious", "everyone"}
    assert all(share > 0.8 for share in reached(found).values())


def test_real_peers_records_are_attacked():
    found = decor.audit(
        plan(decor.ring(3), **EXAMPLES), engine=decor.Peers(), canaries=8_000, steps=24
    )
    assert found.passed, found.failures
    assert all(share > 0.3 for share in reached(found).values()), reached(found)


def test_runs_of_real_peers_are_repeated_until_there_are_as_many_records(monkeypatch):
    monkeypatch.setattr(example_level, "_WIDEST", 1_000)
    found = decor.audit(
        plan(decor.ring(3), **EXAMPLES), engine=decor.Peers(), canaries=3_000, steps=4
    )
    assert found.passed, found.failures
    assert {attack.canaries for attack in found.wires[0].attacks if attack.kind == "optimal"} == {
        3 * 750
    }


def test_one_process_of_a_group_is_attacked():
    found = decor.audit(plan(), engine=decor.ProcessGroup(), canaries=FEW, steps=6)
    assert found.passed and [wire.name for wire in found.wires] == ["process-group"]
    assert all(share > 0.8 for share in reached(found).values())


def test_a_private_run_is_attacked_by_all_and_its_last_bits_and_its_secret_are_looked_at():
    found = decor.audit(plan(), engine=decor.Vectorised(seed=None), canaries=30_000, steps=8)
    assert found.passed, found.failures
    assert {row.adversary for row in found.rows} == {"eavesdropper", "curious", "everyone"}
    assert all(share > 0.85 for share in reached(found).values())
    (wire,) = found.wires
    assert {"clip", "support", "low bits", "entropy"} <= {
        check.name for check in wire.checks
    } and wire.last_bits == "looked at"


@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
def test_records_of_a_private_run_are_attacked_on_every_path(sampling):
    made = plan(decor.ring(4), **EXAMPLES, sampling=sampling)
    found = decor.audit(made, engine=decor.Vectorised(seed=None), canaries=9_000, steps=8)
    assert found.passed, found.failures
    assert found.wires[0].paths == ("module", "linear", "network")
    assert {attack.kind for attack in found.wires[0].attacks} == {"optimal", "linear", "own batch"}
    assert all(share > 0.3 for share in reached(found).values()), reached(found)


def test_a_simulation_claims_nothing_of_its_last_bits_and_says_so():
    found = decor.audit(plan(), canaries=3_000, steps=4)
    assert found.passed and all(
        said.startswith("not claimed: a simulation")
        for said in found.to_json()["last_bits"].values()
    )
    assert not {"support", "low bits", "entropy"} & {
        check.name for wire in found.wires for check in wire.checks
    }


def test_a_private_run_of_several_processes_is_refused_with_a_way_out():
    with pytest.raises(InputError, match="Vectorised\\(seed=None\\), which draws the same noise"):
        decor.audit(plan(), engine=decor.ProcessGroup(seed=None))


# what is not right


def said(found):
    assert not found.passed
    return " ".join(found.failures)


def test_noise_used_again_escapes_constant_canaries_and_no_others(monkeypatch):
    draw = channel.Dense.noise
    monkeypatch.setattr(
        channel.Dense,
        "noise",
        lambda self, to, alpha, step, threads=1: draw(self, to, alpha, 0, threads),
    )
    found = decor.audit(plan(), engine=decor.Vectorised(), canaries=FEW, steps=8)
    failing = {attack.canary for attack in found.wires[0].attacks if not attack.passed}
    assert "alternating" in failing and "constant" not in failing
    assert "knows nothing of the last" in said(found)


def test_a_little_too_little_noise_of_the_users_own_is_proven(monkeypatch):
    """Three quarters of sigma_cdp: the noise of everybody's sum, which all others cancel out of."""
    by_edges = channel.root.by_edges
    monkeypatch.setattr(
        channel.root, "by_edges", lambda users, edges, s, c: by_edges(users, edges, 0.75 * s, c)
    )
    found = decor.audit(plan(), engine=decor.Vectorised(noise="edges"), canaries=FEW, steps=8)
    assert "more of user" in said(found) and "adds up" in said(found)
    assert all(
        not attack.passed
        for attack in found.wires[0].attacks
        if attack.by.adversary == "everyone" and attack.kind == "optimal"
    )


def test_one_stream_for_all_edges_is_noticed(monkeypatch):
    fill = sparse_kernels.add_columns

    def one(to, start, at, values, places, *rest):
        edges = np.diff(start) == 2
        return fill(to, start, at, values, np.where(edges, 0, places), *rest)

    monkeypatch.setattr(sparse_kernels, "add_columns", one)
    assert "parts" in said(
        decor.audit(plan(), engine=decor.Vectorised(noise="edges"), canaries=FEW, steps=8)
    )


def test_gradients_that_are_not_clipped_are_found_out(monkeypatch):
    def unclipped(to, gradients, clip, alpha):
        for block, g in zip(to, gradients, strict=True):
            block += g * alpha.view(*alpha.shape, *(1,) * (g.dim() - 3))

    monkeypatch.setattr(modules, "add_clipped", unclipped)
    found = decor.audit(plan(), canaries=FEW, steps=8)
    assert all(not wire.passed for wire in found.wires)
    assert "more of user" in said(found) or "covariance" in said(found)


def late(limit):
    """A clip that lets up to twice its length through; what is longer is clipped."""
    return lambda length: 1.0 if length <= 2 * limit else limit / length


def test_gradients_that_are_clipped_too_late_are_found_out(monkeypatch):
    """Canaries that are all eight clips long would not see it."""

    def clipped(to, gradients, clip, alpha):
        for block, g in zip(to, gradients, strict=True):
            length = g.flatten(3).double().norm(dim=-1)
            factor = torch.where(length <= 2 * clip, 1.0, clip / length) * alpha
            block += (g * factor.unsqueeze(-1)).to(g.dtype)

    monkeypatch.setattr(modules, "add_clipped", clipped)
    found = decor.audit(plan(), canaries=FEW, steps=8)
    assert "is sent as one clip" in said(found) and all(not wire.passed for wire in found.wires)


def test_peers_that_clip_too_late_are_found_out(monkeypatch):
    def of_user(self, model, rate):
        total = self._mean(model)
        length = float(np.linalg.norm(total.astype(np.float64)))
        return total, late(self.exposure.clip)(length)

    monkeypatch.setattr(Local, "_of_user", of_user)
    assert "is sent as one clip" in said(
        decor.audit(plan(), engine=decor.Peers(), canaries=FEW, steps=4)
    )


@pytest.mark.parametrize("seed", [0, None])
def test_records_that_are_clipped_too_late_are_found_out(monkeypatch, seed):
    """On the path of any module alone, which is one of three."""
    taken = modules.Modules.add_records

    def add(self, to, models, batch, users, clip, alpha):
        taken(self, to, models, batch, users, 1.2 * clip, alpha)

    monkeypatch.setattr(modules.Modules, "add_records", add)
    made = plan(decor.ring(4), **EXAMPLES)
    assert "is sent as one clip" in said(
        decor.audit(made, engine=decor.Vectorised(seed=seed), canaries=24_000, steps=16)
    )


def test_batches_of_all_users_that_are_drawn_together_are_found_out_by_those_who_know_their_own(
    monkeypatch,
):
    draw = batches._poisson

    def alike(rows, counts, starts, records, rates, names, *rest):
        return draw(rows, counts, starts, records, rates, 0 * names, *rest)

    monkeypatch.setattr(batches, "_poisson", alike)
    found = decor.audit(
        plan(decor.ring(4), **EXAMPLES),
        engine=decor.Vectorised(noise="edges"),
        canaries=12_000,
        steps=16,
    )
    failing = [attack for attack in found.wires[0].attacks if not attack.passed]
    assert {attack.kind for attack in failing} == {"own batch"} and {
        attack.by.adversary for attack in failing
    } >= {"curious"}
    assert "own batch attack" in said(found)


def test_records_that_can_be_taken_twice_are_found_out(monkeypatch):
    def twice(rows, scratch, starts, records, names, seeds, step):
        rng = np.random.default_rng([step, *seeds.tolist()])
        rows[:] = rng.integers(0, records[0], rows.shape) + np.repeat(starts, len(seeds))[:, None]

    monkeypatch.setattr(batches, "_fixed", twice)
    found = decor.audit(
        plan(decor.ring(4), **EXAMPLES, sampling="fixed"), canaries=24_000, steps=32
    )
    assert "more than its part of a batch" in said(found)


def test_keys_of_two_bytes_are_found_out(monkeypatch):
    def weak(identity, edge, random):
        return Agreement(identity, edge, lambda count: random(2) + bytes(count - 2))

    monkeypatch.setattr(session, "Agreement", weak)
    assert "has asked for 4 bytes for its keys with 2 neighbours" in said(
        decor.audit(plan(), engine=decor.Peers(), canaries=3_000, steps=2)
    )


def test_a_secret_of_two_bytes_is_found_out(monkeypatch):
    monkeypatch.setattr(
        vectorised, "Secret", lambda random: Secret(lambda count: random(2) + bytes(count - 2))
    )
    found = decor.audit(plan(), engine=decor.Vectorised(seed=None), canaries=3_000, steps=2)
    assert "was made from 2 bytes" in said(found)


def test_bytes_that_are_not_the_operating_systems_are_found_out(monkeypatch):
    made = Node.__post_init__

    def seeded(self):
        self.random = np.random.default_rng(list(self.identity.public)).bytes
        made(self)

    monkeypatch.setattr(Node, "__post_init__", seeded)
    found = decor.audit(plan(), engine=decor.Peers(), canaries=3_000, steps=2)
    assert "not the operating system's" in said(found)
    assert all(check.name == "entropy" for check in found.wires[0].checks if not check.passed), (
        "their law is right"
    )


def test_a_gradient_that_is_added_beside_the_grid_is_found_out(monkeypatch):
    """The first digits are as they should be; the last ones are the gradient's own."""
    noised = Grid.noised

    def beside(self, gradient, own_key, edges, factor=1.0, over=False):
        held = factor * gradient
        message, tags = noised(self, 0 * gradient, own_key, edges)
        return (message + held).astype(gradient.dtype if over else np.float64), tags

    monkeypatch.setattr(Grid, "noised", beside)
    found = decor.audit(plan(), engine=decor.Peers(), canaries=FEW, steps=4)
    assert "possible one, to the last bit" in said(found)
    assert {check.name for check in found.wires[0].checks if not check.passed} == {"support"}


def test_records_drawn_more_often_than_accounted_are_found_out(monkeypatch):
    draw = batches._poisson

    def often(rows, counts, starts, records, rates, *rest):
        return draw(rows, counts, starts, records, 2 * rates, *rest)

    monkeypatch.setattr(batches, "_poisson", often)
    assert "inclusion canaries" in said(
        decor.audit(plan(decor.ring(4), **EXAMPLES), canaries=24_000, steps=32)
    )


@pytest.mark.parametrize("factor", [0.8, 1.25])
def test_records_drawn_a_little_more_or_less_often_are_noticed(monkeypatch, factor):
    draw = batches._poisson
    monkeypatch.setattr(
        batches,
        "_poisson",
        lambda rows, n, at, records, rates, *rest: draw(
            rows, n, at, records, factor * rates, *rest
        ),
    )
    found = decor.audit(plan(decor.ring(4), **EXAMPLES), canaries=24_000, steps=32)
    assert "at their rate" in said(found)


def test_coordinates_at_the_end_without_noise_are_noticed(monkeypatch):
    draw = channel.Dense.noise

    def short(self, to, alpha, step, threads=1):
        kept = [block[..., -3:].clone() for block in to]
        draw(self, to, alpha, step, threads)
        for block, before in zip(to, kept, strict=True):
            block[..., -3:] = before

    monkeypatch.setattr(channel.Dense, "noise", short)
    assert "every coordinate has" in said(decor.audit(plan(), canaries=FEW, steps=8))


def test_what_a_weak_coalition_proves_is_not_told_as_a_strong_ones():
    """Everybody's epsilon is of the coalition that attacked: of the curious on a path some expose
    little.
    """
    made = decor.NoisePlan(
        decor.path(7), decor.Exposure(clip=0.7, steps=200), decor.Adversary.curious(), 1.0, 4.0
    )
    found = decor.audit(made, engine=decor.Vectorised(noise="edges"), canaries=3_000, steps=4)
    curious = next(row for row in found.rows if row.adversary == "curious")
    mus = [
        a.reached * 2 * 0.7 * (200 * a.by.leverage) ** 0.5
        for a in found.wires[0].attacks
        if a.by.adversary == "curious"
    ]
    assert curious.measured == pytest.approx(gaussian.epsilon(max(mus), 1e-5))


def test_one_message_too_many_is_noticed(monkeypatch):
    run = decor.Vectorised.run

    def once_more(self, task, settings, recipe, *rest):
        found = run(self, task, settings, recipe, *rest)
        if self.on_messages is not None:
            self.on_messages(
                settings[0].plan.exposure.steps,
                torch.zeros(task.users, len(settings), 1, task.parameters),
            )
        return found

    monkeypatch.setattr(decor.Vectorised, "run", once_more)
    assert "9 messages of everybody for 8 steps" in said(decor.audit(plan(), canaries=FEW, steps=8))


def test_what_cannot_be_audited_is_refused_with_a_way_out():
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


def test_the_outcome_is_plain_json_and_a_sentence():
    found = decor.audit(plan(), canaries=3_000, steps=4)
    data = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert (
        data["passed"] and data["statement"].startswith("PASS") and str(found) == data["statement"]
    )
    assert len(data["attacks"]) == sum(row["attacks"] for row in data["adversaries"])
    assert data["steps"] == 4 and data["steps_of_plan"] == 200
