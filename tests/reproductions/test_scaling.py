"""Scaling: local DP's error is as many times central DP's as there are users, and DECOR follows
central DP.
"""

import numpy as np
import pytest

import decor
from decor.graph.gossip import Gossip
from decor.reproductions import scaling


@pytest.fixture(scope="module")
def rows():
    return {
        (r["users"], r["method"]): r
        for users in (64, 256)
        for r in scaling.point(users, quick=True)
    }


def test_the_optimum_is_the_mean_and_no_gradient_is_cut_there():
    task = scaling.task_of(64)
    targets = np.stack([y.double().numpy().ravel() for _, y in task.shards])
    best = task.optimum.numpy()
    assert best == pytest.approx(targets.mean(axis=0), abs=1e-12)
    assert np.linalg.norm(best - targets, axis=1).max() < scaling.CLIP
    assert np.linalg.norm(targets, axis=1).mean() == pytest.approx(scaling.SPREAD, rel=0.1)


def test_noise_alone_predicts_as_many_times_as_users(rows):
    for users in (64, 256):
        assert rows[users, "central DP"]["predicted_gain"] == pytest.approx(users, rel=1e-6)
        assert 0.85 * users < rows[users, "DECOR random regular"]["predicted_gain"] < users


def test_the_gain_over_local_dp_grows_with_the_users(rows):
    for method in ("central DP", "DECOR random regular"):
        for users in (64, 256):
            assert 0.5 * users < rows[users, method]["gain"] < 2 * users
        assert 2 < rows[256, method]["gain"] / rows[64, method]["gain"] < 8


def test_decor_follows_central_dp_on_the_random_graph_only(rows):
    """The 64 users' plans share their Gaussians, so that they compare far better than their errors
    say.
    """
    central = rows[64, "central DP"]["value"]
    assert central < rows[64, "DECOR random regular"]["value"] < 1.1 * central
    assert rows[256, "DECOR ring"]["value"] > 4 * rows[256, "DECOR random regular"]["value"]


def test_gain_is_local_dps_value_over_ones_own(rows):
    for (users, _), r in rows.items():
        assert r["gain"] == pytest.approx(rows[users, "local DP"]["value"] / r["value"])
        assert r["value"] == pytest.approx(np.mean(r["values"]))


def test_everybody_is_as_far_as_the_average_model_and_the_disagreement_together(rows):
    for r in rows.values():
        assert 0 < r["average_model"] <= r["value"]
    assert rows[256, "DECOR ring"]["average_model"] < 0.9 * rows[256, "DECOR ring"]["value"]
    assert (
        rows[256, "DECOR random regular"]["average_model"]
        > 0.999 * rows[256, "DECOR random regular"]["value"]
    )


def test_every_row_keeps_its_budget(rows):
    assert all(
        0.99 * scaling.EPSILON < r["accounted_epsilon"] <= scaling.EPSILON for r in rows.values()
    )


def test_eight_designed_rounds_are_near_the_average_for_the_most_users():
    topology = decor.random_regular(max(scaling.USERS), scaling.DEGREE, seed=0)
    designed, chebyshev = (Gossip(8, accelerate) for accelerate in ("designed", True))
    assert designed.shrinkage(topology) < 0.2
    assert designed.residual(topology, 1.0) <= chebyshev.residual(topology, 1.0)
