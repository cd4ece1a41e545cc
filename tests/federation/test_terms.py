"""Terms: who dials whom, and by how much each user takes an edge's noise."""

from dataclasses import replace

import numpy as np
import pytest
from federation_files import TEXT, TOWNS, users
from party import make_terms, train_together

import decor
from decor.errors import InputError
from decor.federation.federation import Federation
from decor.federation.terms import Terms
from decor.federation.vector_kernels import LARGEST
from decor.learning.recipe import Recipe
from decor.net.identity import Identity
from decor.noise.integer_gaussians import EDGE_LARGEST, OWN_LARGEST


def terms_of(text=TEXT):
    return Terms.of(Federation.parse(text))


@pytest.mark.parametrize("addressless", [(), ("bonn",), ("jena",), ("bonn", "kiel")])
def test_of_two_neighbours_exactly_one_dials_and_it_can(addressless):
    terms = terms_of(TEXT.replace(users(), users(addressless=addressless)))
    every = {number: terms.neighbours(number) for number in range(len(TOWNS))}
    for number, neighbours in every.items():
        for neighbour in neighbours:
            (back,) = [n for n in every[neighbour.number] if n.number == number]
            assert neighbour.dials != back.dials and neighbour.is_lower != back.is_lower
            assert neighbour.address or not neighbour.dials


def test_both_ends_take_an_edges_noise_with_opposite_signs():
    terms = terms_of()
    every = [terms.multiples(number) for number in range(len(TOWNS))]
    for number, multiples in enumerate(every):
        assert set(multiples) == {n.number for n in terms.neighbours(number)}
        for other, multiple in multiples.items():
            assert multiple == -every[other][number] != 0
            assert (multiple > 0) == (number < other)


def test_the_terms_are_the_files_and_the_promise_is_the_whole_plans():
    federation = Federation.parse(TEXT)
    terms = Terms.of(federation)
    assert (terms.digest, terms.delta, terms.parameters) == (federation.digest, 1e-5, 31)
    assert terms.promise.epsilon == federation.guarantee().epsilon <= 3.0
    assert terms.guarantee_after(100).epsilon < terms.guarantee_after(200).epsilon <= 3.0
    length = terms.run_length
    assert [length.rounds_of(step) for step in (0, 199, 200)] == [1, 1, 0]


def test_a_federation_without_gossip_is_refused():
    with pytest.raises(InputError, match="round of gossip"):
        replace(terms_of(), recipe=Recipe(gossip_rounds=0))


@pytest.mark.parametrize("unit", ("user", "example"))
def test_no_honest_model_exceeds_the_largest_parameter_and_a_larger_one_is_refused(tmp_path, unit):
    """Noise as large as tables allow is rare: the bound is compared with what users reach."""
    rng = np.random.default_rng(0)
    shards = [(100 * rng.normal(size=(6, 4)), rng.normal(size=6)) for _ in range(3)]
    task = decor.Task(decor.models.linear(4).double(), decor.losses.squared, shards)
    more = {} if unit == "user" else {"unit": "example", "batch_size": 2, "records": 6}
    plan = decor.NoisePlan(
        decor.ring(3), decor.Exposure(1.0, 12, **more), decor.Adversary.eavesdropper(), 1.0, 3.0
    )
    nodes, runs = train_together(
        task, plan, Recipe(gossip_rounds=1, momentum=0.5), tmp_path, rate=0.5
    )
    terms, node = nodes[0].terms, nodes[0]
    largest = [terms.largest_parameter(step, node._start_size) for step in range(12)]
    assert largest == sorted(largest) and largest[-1] < 1e6
    reached = max(float(value.abs().max()) for run in runs for value in run.models.values())
    assert 0 < reached <= largest[-1]
    inside, outside = (np.full(4, k * largest[3]) for k in (0.999, 1.001))
    assert node._check_values(3, inside.tobytes()) is None
    assert "which no user can reach" in node._check_values(3, outside.tobytes())
    assert node._check_values(4, outside.tobytes()) is None, "a step later it can be"


def test_the_largest_parameter_is_what_the_extremes_add_up_to():
    """All tables at their ends, all gradients as long as the clip, in the same direction."""
    task = decor.Task(
        decor.models.linear(2).double(), decor.losses.squared, [(np.ones((1, 2)), np.ones(1))] * 3
    )
    plan = decor.NoisePlan(
        decor.ring(3), decor.Exposure(2.0, 3), decor.Adversary.eavesdropper(), 1.0, 3.0
    )
    identities = [Identity.new() for _ in range(3)]
    terms = make_terms(task, plan, Recipe(gossip_rounds=1, momentum=0.25), identities, rate=0.5)
    noise = terms.grid.unit * (
        OWN_LARGEST + sum(map(abs, terms.multiples(0).values())) * EDGE_LARGEST
    )
    x, velocity = 7.0, 0.0
    for step in range(3):
        velocity = 2.0 + noise + 0.25 * velocity
        x += 0.5 * velocity
        assert x <= terms.largest_parameter(step, 7.0) < 1.4 * x


def test_accelerated_rounds_are_no_averages_and_have_no_such_bound():
    task = decor.Task(
        decor.models.linear(2).double(), decor.losses.squared, [(np.ones((1, 2)), np.ones(1))] * 3
    )
    plan = decor.NoisePlan(
        decor.ring(3), decor.Exposure(2.0, 3), decor.Adversary.eavesdropper(), 1.0, 3.0
    )
    recipe = Recipe(gossip_rounds=3, accelerate="chebyshev")
    terms = make_terms(task, plan, recipe, [Identity.new() for _ in range(3)])
    assert terms.largest_parameter(0, 1.0) == LARGEST
