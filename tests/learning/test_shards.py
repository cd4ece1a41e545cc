import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from decor.errors import InputError
from decor.learning import shards

LABELS = np.repeat(np.arange(10), 100)


@st.composite
def datasets(draw):
    labels = draw(st.lists(st.integers(-2, 4), min_size=1, max_size=60))
    return np.array(labels), draw(st.integers(1, len(labels))), draw(st.integers(0, 2**63 - 1))


def assert_dealt(parts, users, records):
    assert len(parts) == users
    assert sorted(np.concatenate(parts).tolist()) == list(range(records)), (
        "every record has one owner"
    )
    assert all(part.dtype == np.int64 for part in parts)


@given(datasets())
def test_every_record_has_exactly_one_owner(case):
    labels, users, seed = case
    for parts in (shards.iid(labels, users, seed), shards.by_label(labels, users, seed)):
        assert_dealt(parts, users, len(labels))
        sizes = [len(part) for part in parts]
        assert max(sizes) - min(sizes) <= 1, "equal sizes, within one"


@given(datasets(), st.floats(0.1, 1000), st.integers(0, 2))
def test_every_record_has_exactly_one_owner_and_nobody_too_few_by_dirichlet(case, alpha, least):
    labels, users, seed = case
    try:
        parts = shards.dirichlet(labels, users, alpha, seed, least=least)
    except InputError as problem:
        assert "users" in str(problem) and least > 0
    else:
        assert_dealt(parts, users, len(labels))
        assert min(len(part) for part in parts) >= least


@pytest.mark.parametrize(
    "deal", [shards.iid, shards.by_label, lambda y, n, s: shards.dirichlet(y, n, 1.0, s)]
)
def test_shards_follow_their_seed(deal):
    def flat(seed):
        return [part.tolist() for part in deal(LABELS, 7, seed)]

    assert flat(3) == flat(3) != flat(4)
    np.random.seed(1)
    before = np.random.get_state()[1].copy()
    flat(5)
    assert (np.random.get_state()[1] == before).all(), "numpy's global random state is left alone"


def test_iid_takes_a_number_of_records_and_gives_every_user_every_label():
    assert_dealt(shards.iid(10, 3), 3, 10)
    assert [part.tolist() for part in shards.iid(1000, 4, 2)] == [
        part.tolist() for part in shards.iid(LABELS, 4, 2)
    ]
    chi2 = [
        stats.chisquare(np.bincount(LABELS[part], minlength=10)).pvalue
        for part in shards.iid(LABELS, 4)
    ]
    assert min(chi2) > 1e-4, "labels are spread as by chance"
    owners = [
        next(u for u, part in enumerate(shards.iid(8, 4, seed)) if 0 in part) for seed in range(800)
    ]
    assert stats.chisquare(np.bincount(owners, minlength=4)).pvalue > 1e-4, (
        "record 0 is as likely to go to any user"
    )


def test_by_label_gives_contiguous_pieces_of_the_sorted_labels():
    labels = np.random.default_rng(0).permutation(LABELS)
    parts = shards.by_label(labels, 16)
    assert np.concatenate([np.sort(labels[part]) for part in parts]).tolist() == sorted(labels), (
        "user after user, labels rise"
    )
    assert max(len(np.unique(labels[part])) for part in parts) == 2
    assert all(len(np.unique(labels[part])) == 1 for part in shards.by_label(labels, 10)), (
        "ten users, ten labels: one each"
    )


def proportions(alpha, users=8, classes=300, each=2000):
    """[label, user]: the part of a label's records that a user got."""
    labels = np.tile(np.arange(classes), each)
    parts = shards.dirichlet(labels, users, alpha, seed=5)
    return np.stack([np.bincount(labels[part], minlength=classes) for part in parts], axis=1) / each


@pytest.mark.parametrize("alpha", [0.3, 1.0, 10.0])
def test_the_parts_of_a_label_follow_the_dirichlet_law(alpha):
    """Means, variances and the whole law; the same checks refuse 2/3 and 3/2 of alpha."""
    n = 8
    parts = proportions(alpha)
    one = parts[:, 2]
    assert np.allclose(parts.sum(axis=1), 1)
    assert abs(parts.mean(axis=0) - 1 / n).max() < 4.5 * parts.std() / np.sqrt(len(parts)), (
        "no user is favoured"
    )

    def fits(a):
        variance = (1 / n) * (1 - 1 / n) / (n * a + 1)
        return 0.85 < ((parts - 1 / n) ** 2).mean() / variance < 1.18

    assert fits(alpha) and not fits(alpha * 2 / 3) and not fits(alpha * 3 / 2)
    assert stats.kstest(one, stats.beta(alpha, (n - 1) * alpha).cdf).pvalue > 1e-3


def test_labels_are_dealt_independently_and_one_users_gain_is_anothers_loss():
    parts = proportions(1.0)
    across_labels = np.corrcoef(parts[:-1, 0], parts[1:, 0])[0, 1]
    assert abs(across_labels) < 4 / np.sqrt(len(parts))
    between_users = np.corrcoef(parts[:, 0], parts[:, 1])[0, 1]
    assert abs(between_users + 1 / 7) < 0.2, "Dirichlet parts of n users correlate by -1/(n - 1)"


def test_a_label_with_fewer_records_than_users_goes_to_anybody():
    """Cutting at rounded places would always give the only record of a label to the same user."""
    owners = [_owner_of_the_rare_record(seed) for seed in range(500)]
    assert stats.chisquare(np.bincount(owners, minlength=5)).pvalue > 1e-4


def _owner_of_the_rare_record(seed):
    parts = shards.dirichlet(np.array([1] + [0] * 50), 5, 10.0, seed)
    return next(user for user, part in enumerate(parts) if 0 in part)


def test_which_records_of_a_label_a_user_gets_is_chance():
    first = sum(
        np.isin(np.arange(20), shards.dirichlet(np.zeros(20, int), 2, 1e12, seed)[0])
        for seed in range(400)
    )
    assert stats.chisquare(first).pvalue > 1e-4


def test_parts_that_fall_short_of_one_by_rounding_lose_no_record(monkeypatch):
    class Short(np.random.Generator):
        def dirichlet(self, alpha):
            return np.full(len(alpha), 0.9 / len(alpha))

    monkeypatch.setattr(np.random, "default_rng", lambda seed: Short(np.random.PCG64(seed)))
    assert_dealt(shards.dirichlet(np.zeros(50, int), 4, 1.0), 4, 50)


def test_a_users_number_of_records_is_its_part_within_one_record():
    labels = np.zeros(1000, dtype=int)
    sizes = [len(part) for part in shards.dirichlet(labels, 3, 1e12)]
    assert set(sizes) <= {333, 334}, "infinite alpha: all users the same"


def test_redraws_end_with_the_way_out():
    labels = np.repeat([0, 1], 20)
    for seed in range(3):
        assert min(len(part) for part in shards.dirichlet(labels, 6, 0.5, seed, least=3)) >= 3
    with pytest.raises(
        InputError,
        match=r"alpha=0.001\) over 10 users .* 1 of the 40 examples.*larger alpha, "
        r"fewer users, or iid",
    ):
        shards.dirichlet(labels, 10, 1e-3)


def test_holding_out_takes_the_fraction_of_every_label():
    kept, out = shards.hold_out(LABELS, 0.2, seed=1)
    assert sorted([*kept, *out]) == list(range(1000))
    assert np.bincount(LABELS[out]).tolist() == [20] * 10
    again, other = shards.hold_out(LABELS, 0.2, seed=1), shards.hold_out(LABELS, 0.2, seed=2)
    assert (again[1] == out).all() and not (other[1] == out).all()
    chosen = sum(
        np.isin(np.arange(20), shards.hold_out(np.zeros(20, int), 0.5, seed)[1])
        for seed in range(400)
    )
    assert stats.chisquare(chosen).pvalue > 1e-4, "any record may be held out"


def test_many_users_are_dealt_out():
    labels = np.random.default_rng(0).integers(0, 10, 200_000)
    for parts in (
        shards.iid(labels, 50_000),
        shards.by_label(labels, 50_000),
        shards.dirichlet(labels, 50_000, 10.0, least=0),
    ):
        assert len(parts) == 50_000


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (
            lambda: shards.iid(3, 4),
            "3 examples cannot give 4 users at least 1 each; take at most 3 users",
        ),
        (lambda: shards.by_label([0, 1], 3), "take at most 2 users"),
        (lambda: shards.dirichlet([0, 1, 1], 2, 10.0, least=2), "take at most 1 users"),
        (lambda: shards.iid([], 1), "0 examples"),
        (lambda: shards.iid(3, 0), "users must be .*not 0"),
        (lambda: shards.iid(3, 1.0), "not 1.0"),
        (lambda: shards.iid(3, True), "not True"),
        (lambda: shards.iid(-3, 1), "not -3"),
        (lambda: shards.iid(3, 1, seed=-1), "seed must be a whole number from 0, not -1"),
        (lambda: shards.iid(3, 1, seed=2**63), "seed"),
        (lambda: shards.iid(3, 1, seed=None), "seed"),
        (lambda: shards.by_label([[0, 1]], 1), r"flat list.*\(1, 2\)"),
        (lambda: shards.dirichlet(LABELS, 4, 0), "alpha must be a number from 1e-6 to 1e12, not 0"),
        (lambda: shards.dirichlet(LABELS, 4, float("nan")), "not nan"),
        (lambda: shards.dirichlet(LABELS, 4, 10**400), "alpha must"),
        (lambda: shards.dirichlet(LABELS, 4, "10"), "not '10'"),
        (lambda: shards.dirichlet(LABELS, 4, 1.0, least=-1), "least"),
        (
            lambda: shards.split("random", LABELS, 4),
            "one of iid, dirichlet, by-label, not 'random'",
        ),
        (lambda: shards.split("dirichlet", LABELS, 4), "alpha must be a number .* not None"),
        (
            lambda: shards.split("iid", LABELS, 4, alpha=10.0),
            "alpha=10.0 changes nothing for iid shards",
        ),
        (lambda: shards.hold_out(LABELS, 1.5), "between 0 and 1, not 1.5"),
    ],
)
def test_impossible_shards_say_what_to_do_instead(build, said):
    with pytest.raises(InputError, match=said):
        build()


def test_ways_by_name_are_the_functions():
    def lists(parts):
        return [part.tolist() for part in parts]

    assert lists(shards.split("iid", LABELS, 4, 1)) == lists(shards.iid(LABELS, 4, 1))
    assert lists(shards.split("by-label", LABELS, 4, 1)) == lists(shards.by_label(LABELS, 4, 1))
    assert lists(shards.split("dirichlet", LABELS, 4, 1, 2)) == lists(
        shards.dirichlet(LABELS, 4, 2.0, 1)
    )
