"""Example level: correct sampling reaches the claim, and faults of clip and sampling are found."""

import numpy as np
import pytest
from small_audits import EXAMPLES, failed_checks, failures, plan, reached
from torch import nn
from torch.nn import functional
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import decor
from decor.auditing import example_level
from decor.auditing.canary_tasks import ExampleCanaries
from decor.learning import batches
from decor.learning.gradients import book_keeping, dense_layers, linear
from decor.learning.gradients.contributions import Bound, Convolution, Given


@pytest.mark.parametrize("relation", ["add-remove", "replace"])
def test_attacks_on_examples_reach_the_claim_and_no_more(relation):
    audit = decor.audit(
        plan(decor.ring(4), **EXAMPLES, relation=relation), canaries=24_000, steps=32
    )
    assert audit.passed, audit.failures
    assert all(0.8 < share <= 1 for share in reached(audit).values()), reached(audit)


def test_examples_are_attacked_on_every_gradient_path(monkeypatch):
    """Linear models and networks have gradient code of their own."""
    seen = {}
    for path in (book_keeping.BookKeeping, linear.Linear, dense_layers.Layers):

        def counted(self, to, *rest, own=path.add_clipped_examples):
            seen.setdefault(type(self).__name__, set()).update(
                tuple(block.shape[3:]) for block in to
            )
            own(self, to, *rest)

        monkeypatch.setattr(path, "add_clipped_examples", counted)
    audit = decor.audit(plan(decor.ring(4), **EXAMPLES), canaries=6_000, steps=4)
    assert audit.passed, audit.failures
    assert seen.keys() == {"BookKeeping", "Linear", "Layers"} and len(seen["Layers"]) == 2
    assert audit.to_json()["records_of"] == {
        wire.name: ["module", "linear", "network"] for wire in audit.wires
    }


class Convolving(nn.Module):
    def __init__(self, inputs):
        super().__init__()
        self.layer = nn.Conv1d(inputs, 1, 1, bias=False)

    def forward(self, x):
        return self.layer(x.transpose(1, 2)).sum(2)


class Attending(nn.Module):
    """Attention that looks at all tokens alike."""

    def __init__(self, inputs):
        super().__init__()
        self.layer = nn.Linear(inputs, 1, bias=False)

    def forward(self, x):
        values = self.layer(x)
        alike = 0 * values
        return functional.scaled_dot_product_attention(alike, alike, values).sum(1)


# one output of two tokens has its gradients themselves, which are no larger
KINDS = {"CNN": (Convolving, Convolution), "transformer": (Attending, Given)}


def attack_through(monkeypatch, layers):
    """The canaries of linear models, each spread over two places of such a model."""
    plain = ExampleCanaries.task

    def task(self):
        made = plain(self)
        model = layers(made.model.in_features)
        vector_to_parameters(parameters_to_vector(made.model.parameters()), model.parameters())
        shards = [(X.unsqueeze(1).repeat(1, 2, 1) / 2, y) for X, y in made.shards]
        return decor.Task(model, made.loss, shards, name=made.name)

    monkeypatch.setattr(example_level, "PATHS", ("linear",))
    monkeypatch.setattr(ExampleCanaries, "task", task)


@pytest.mark.parametrize("seed", [0, None])
@pytest.mark.parametrize("kind", KINDS)
def test_attacks_through_a_cnn_and_a_transformer_reach_no_more_than_the_claim(
    kind, seed, monkeypatch
):
    attack_through(monkeypatch, KINDS[kind][0])
    made = plan(decor.ring(4), **EXAMPLES)
    engine = decor.Vectorised(seed=seed)
    audit = decor.audit(made, engine=engine, canaries=4_000, steps=8)
    assert audit.passed, audit.failures
    # so few canaries measure the strongest adversary best
    assert 0.5 < max(reached(audit).values()) <= 1, reached(audit)


@pytest.mark.parametrize("kind", KINDS)
def test_a_length_of_a_cnn_or_a_transformer_that_is_too_short_is_detected(kind, monkeypatch):
    layers, contribution = KINDS[kind]
    attack_through(monkeypatch, layers)

    def half(self, own=contribution.bound):
        bound = own(self)
        return Bound(bound.length / 2, bound.size / 2)

    monkeypatch.setattr(contribution, "bound", half)
    audit = decor.audit(plan(decor.ring(4), **EXAMPLES), canaries=4_000, steps=8)
    assert not audit.passed


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_examples_are_attacked_with_large_edge_noise_and_unequal_data(dtype):
    exposure = decor.Exposure(
        clip=1.0, steps=100, unit="example", batch_size=10, records=(100, 100, 100, 2600)
    )
    made = decor.NoisePlan(
        decor.ring(4), exposure, decor.Adversary.curious(), sigma_cdp=1.0, sigma_cor=1e5
    )
    audit = decor.audit(made, engine=decor.Vectorised(dtype=dtype), canaries=6_000, steps=8)
    assert audit.passed, audit.failures
    assert all(share > 0.7 for share in reached(audit).values()), reached(audit)
    assert "network" in audit.wires[0].paths


def test_examples_of_very_many_users_are_not_one_hot():
    audit = decor.audit(
        plan(decor.ring(300), unit="example", batch_size=1, records=100), canaries=3_000, steps=2
    )
    assert audit.passed and all(wire.paths == ("module",) for wire in audit.wires)


def test_batches_of_a_fixed_size_are_attacked_too():
    audit = decor.audit(
        plan(decor.ring(4), **EXAMPLES, sampling="fixed"), canaries=12_000, steps=32
    )
    assert audit.passed and all(share > 0.4 for share in reached(audit).values()), reached(audit)


@pytest.mark.parametrize("seed", [0, None])
def test_examples_that_are_clipped_too_late_are_detected(monkeypatch, seed):
    """Only the path for any module is wrong, one of three."""
    taken = book_keeping.BookKeeping.add_clipped_examples

    def add(self, to, models, batch, users, clip, alpha):
        taken(self, to, models, batch, users, 1.2 * clip, alpha)

    monkeypatch.setattr(book_keeping.BookKeeping, "add_clipped_examples", add)
    made = plan(decor.ring(4), **EXAMPLES)
    audit = decor.audit(made, engine=decor.Vectorised(seed=seed), canaries=24_000, steps=16)
    assert "clip" in failed_checks(audit)


def test_related_batches_are_detected_by_users_who_know_their_own(monkeypatch):
    draw = batches._draw_poisson

    def alike(rows, counts, starts, records, rates, names, *rest):
        return draw(rows, counts, starts, records, rates, 0 * names, *rest)

    monkeypatch.setattr(batches, "_draw_poisson", alike)
    audit = decor.audit(
        plan(decor.ring(4), **EXAMPLES),
        engine=decor.Vectorised(noise="edges"),
        canaries=12_000,
        steps=16,
    )
    failing = [attack for attack in audit.wires[0].attacks if not attack.passed]
    assert {attack.kind for attack in failing} == {"own batch"} and {
        attack.attacker.adversary for attack in failing
    } >= {"curious"}
    assert "own batch attack" in failures(audit)


def test_examples_that_can_be_sampled_twice_are_detected(monkeypatch):
    def twice(rows, scratch, starts, records, names, seeds, step):
        rng = np.random.default_rng([step, *seeds.tolist()])
        rows[:] = rng.integers(0, records[0], rows.shape) + np.repeat(starts, len(seeds))[:, None]

    monkeypatch.setattr(batches, "_draw_fixed", twice)
    audit = decor.audit(
        plan(decor.ring(4), **EXAMPLES, sampling="fixed"), canaries=24_000, steps=32
    )
    assert "share" in failed_checks(audit)


def test_examples_sampled_more_often_than_accounted_are_detected(monkeypatch):
    draw = batches._draw_poisson

    def often(rows, counts, starts, records, rates, *rest):
        return draw(rows, counts, starts, records, 2 * rates, *rest)

    monkeypatch.setattr(batches, "_draw_poisson", often)
    assert "inclusion canaries" in failures(
        decor.audit(plan(decor.ring(4), **EXAMPLES), canaries=24_000, steps=32)
    )


@pytest.mark.parametrize("factor", [0.8, 1.25])
def test_examples_sampled_a_little_more_or_less_often_are_detected(monkeypatch, factor):
    draw = batches._draw_poisson
    monkeypatch.setattr(
        batches,
        "_draw_poisson",
        lambda rows, n, at, records, rates, *rest: draw(
            rows, n, at, records, factor * rates, *rest
        ),
    )
    audit = decor.audit(plan(decor.ring(4), **EXAMPLES), canaries=24_000, steps=32)
    assert "rate" in failed_checks(audit)


@pytest.mark.parametrize("relation", ["add-remove", "replace"])
def test_attacks_on_examples_drawn_at_a_common_rate_reach_the_claim_and_no_more(relation):
    common = {"unit": "example", "rate": 0.025, "batch_size": 10, "relation": relation}
    audit = decor.audit(plan(decor.ring(4), **common), canaries=24_000, steps=32)
    assert audit.passed, audit.failures
    assert all(0.8 < share <= 1 for share in reached(audit).values()), reached(audit)


def test_a_higher_rate_than_the_common_one_is_detected(monkeypatch):
    drawn = batches._draw_poisson

    def often(rows, counts, starts, records, rates, *rest):
        return drawn(rows, counts, starts, records, np.minimum(1, 1.2 * rates), *rest)

    monkeypatch.setattr(batches, "_draw_poisson", often)
    common = {"unit": "example", "rate": 0.025, "batch_size": 10}
    found = failed_checks(decor.audit(plan(decor.ring(4), **common), canaries=24_000, steps=32))
    assert "rate" in found
