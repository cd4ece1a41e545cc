"""Terms: who dials whom, and by how much each user takes an edge's noise."""

from dataclasses import replace

import pytest
from federation_files import TEXT, TOWNS, users

from decor.errors import InputError
from decor.federation.federation import Federation
from decor.federation.terms import Terms
from decor.learning.recipe import Recipe


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
