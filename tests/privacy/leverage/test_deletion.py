import itertools

import numpy as np
import pytest

import decor
from decor.privacy.leverage import coalition, deletion
from decor.privacy.leverage.coalition import Phase, worst_leverages
from decor.privacy.leverage.solve import ScaledCovariance


def test_low_rank_deletion_is_never_below_starting_from_scratch_on_any_weights():
    rng = np.random.default_rng(7)
    for _ in range(400):
        n, density, spread = int(rng.integers(4, 14)), rng.uniform(0.2, 0.8), rng.uniform(0, 25)
        edges = [pair for pair in itertools.combinations(range(n), 2) if rng.random() < density]
        weights = 10.0 ** rng.uniform(-spread, spread, len(edges)) * (rng.random(len(edges)) > 0.1)
        noise = ScaledCovariance(decor.from_edges(n, edges), tuple(weights.tolist()))
        result = coalition._single_deletions((Phase(noise, 1.0),))
        truth = np.max([deletion.from_scratch(noise.network(), [v]) for v in range(n)], axis=0)
        assert (result.per_user >= truth * (1 - 1e-12)).all() and result.exact


@pytest.mark.parametrize("ratio", [0.5, 30.0, 1e6])
def test_the_flow_bound_is_never_below_the_worst_coalition(ratio):
    for topology in (decor.grid(3, 4), decor.random_regular(12, 4, seed=2), decor.complete(7)):
        noise = ScaledCovariance(decor.from_edges(topology.users, topology.edges), ratio)
        for colluders in (2, 3):
            bound = deletion.bounds_within(noise.network(), colluders, np.arange(topology.users))
            assert (
                bound >= worst_leverages((Phase(noise, 1.0),), colluders).per_user * (1 - 1e-9)
            ).all()
            assert ratio > 100 or topology.users != 7 or (bound < 1).all(), (
                "and it does say something"
            )
