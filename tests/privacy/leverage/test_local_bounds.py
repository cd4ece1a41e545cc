import numpy as np
import pytest

import decor
from decor.errors import CannotBound
from decor.privacy.leverage import coalition, local_bounds, solve
from decor.privacy.leverage.coalition import Phase, worst_leverages
from decor.privacy.leverage.solve import ScaledCovariance, leverages


@pytest.fixture
def pieces(monkeypatch):
    """Small pieces, so that a small graph has many."""
    monkeypatch.setattr(local_bounds, "_CORE", 6)
    monkeypatch.setattr(local_bounds, "_PIECE", 30)


GRAPHS = [
    decor.grid(8, 9),
    decor.random_regular(70, 4, seed=2),
    decor.erdos_renyi(60, 0.05, seed=1),
    decor.from_edges(5, [(0, 1)]),
]


@pytest.mark.parametrize("ratio", [0.5, 30.0, 1e6])
@pytest.mark.parametrize("topology", GRAPHS, ids=repr)
def test_a_piece_never_shows_less_than_the_whole(pieces, topology, ratio):
    noise = ScaledCovariance(topology, ratio)
    for colluders in (0, 1, 2):
        bound = local_bounds.upper_bounds(noise.network(), colluders)
        assert (bound <= 1 + 1e-9).all()
        whole = (
            worst_leverages((Phase(noise, 1.0),), colluders).per_user
            if colluders < 2
            else leverages(noise)
        )
        assert (bound >= whole * (1 - 1e-7)).all()


def test_with_little_screening_length_pieces_are_nearly_exact():
    topology = decor.from_edges(900, decor.torus(30, 30).edges)
    whole = leverages(ScaledCovariance(topology, 3.0))
    assert np.allclose(
        local_bounds.upper_bounds(ScaledCovariance(topology, 3.0).network(), 0), whole, rtol=1e-3
    )


def test_what_is_too_large_to_search_is_bounded_and_says_so(pieces, monkeypatch):
    topology = decor.random_regular(70, 4, seed=2)
    exact = worst_leverages((Phase(ScaledCovariance(topology, 5.0), 1.0),), 1)
    monkeypatch.setattr(coalition, "DENSE_LIMIT", 10)
    monkeypatch.setattr(coalition, "ENUMERATION_LIMIT", 0)
    worst_leverages.cache_clear()
    bound = worst_leverages((Phase(ScaledCovariance(topology, 5.0), 1.0),), 1)
    worst_leverages.cache_clear()
    assert exact.exact and not bound.exact and (bound.per_user >= exact.per_user * (1 - 1e-9)).all()
    assert bound.worst < 1


def test_a_graph_beyond_elimination_is_bounded_and_says_so(pieces, monkeypatch):
    from decor.privacy.leverage import sparse_order

    topology = decor.random_regular(70, 4, seed=3)
    monkeypatch.setattr(solve, "SMALL", 0)
    monkeypatch.setattr(solve, "DENSE", 40)  # pieces are dense, the whole is not
    monkeypatch.setattr(sparse_order, "CORE_LIMIT", 5)
    with pytest.raises(CannotBound):
        leverages(ScaledCovariance(topology, 5.0))
    worst_leverages.cache_clear()
    plan = decor.NoisePlan(
        topology, decor.Exposure(1.0, 10), decor.Adversary.eavesdropper(), 1.0, 5.0**0.5
    )
    guarantee = plan.guarantee(1e-5)
    worst_leverages.cache_clear()
    assert not guarantee.exact and "certified upper bound" in str(guarantee)
    monkeypatch.undo()
    assert guarantee.epsilon >= plan.guarantee(1e-5).epsilon
