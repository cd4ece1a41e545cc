"""The sampling that is accounted is the sampling that is done."""

from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
import torch
from scipy import stats

from decor.errors import DecorError, InputError
from decor.learning.batches import (
    Batches,
    CommonRate,
    check_size,
    choose,
    sample,
    secret_batch,
)

STEPS = 4000


def drawn(records, size, sampling, seeds=(0,), steps=STEPS):
    """[steps, users, seeds, all records]: how often a record was taken; the padding is left out."""
    batches = Batches(records, size, sampling, list(seeds))
    total = sum(records)
    taken = np.zeros((steps, len(records) * len(seeds), total + 1), dtype=np.int64)
    for step in range(steps):
        rows = batches.draw(step).rows.numpy()
        np.add.at(taken[step], (np.arange(len(rows))[:, None], rows), 1)
    return taken[..., :total].reshape(steps, len(records), len(seeds), total)


def own(taken, records):
    """Each user's own examples, after a check that it takes no others."""
    starts = np.concatenate([[0], np.cumsum(records)])
    found = []
    for u in range(len(records)):
        mine = taken[:, u, :, starts[u] : starts[u + 1]]
        assert mine.sum() == taken[:, u].sum(), f"user {u} takes its own records only"
        found.append(mine)
    return found


def flatly(values, expected, least=1e-4):
    """Counts as expected, by chi-square, with rare cells together."""
    keep = expected >= 5
    seen = np.append(values[keep], values[~keep].sum()) if (~keep).any() else values
    want = np.append(expected[keep], expected[~keep].sum()) if (~keep).any() else expected
    seen, want = (seen[:-1], want[:-1]) if want[-1] < 1e-9 else (seen, want)
    return stats.chisquare(seen, want * seen.sum() / want.sum()).pvalue > least


def rate_fits(taken, q):
    """Whether inclusions per record are Binomial(trials, q), on both sides and for every record."""
    trials = taken.shape[0]
    return (abs(taken.mean(0) - q) < 4.5 * np.sqrt(q * (1 - q) / trials)).all()


def test_without_a_size_each_user_takes_everything_with_its_own_weight():
    batch = Batches((3, 1, 4), None, "fixed", [0, 1]).draw(7)
    assert batch.rows.tolist() == [[0, 1, 2, 8], [3, 8, 8, 8], [4, 5, 6, 7]]
    assert batch.weights.tolist() == [[1 / 3] * 3 + [0], [1, 0, 0, 0], [0.25] * 4]
    alike = Batches((2, 2), None, "poisson", [0]).draw(0)
    assert alike.rows.tolist() == [[0, 1], [2, 3]] and alike.weights == 0.5


def test_fixed_batches_have_their_size_and_no_record_twice():
    records, seeds = (5, 9, 3, 64), (3, 8)
    batches = Batches(records, 3, "fixed", seeds)
    starts = np.concatenate([[0], np.cumsum(records)])
    for step in range(200):
        batch = batches.draw(step)
        assert (
            batch.rows.shape == (8, 3)
            and batch.rows.dtype == torch.int64
            and batch.weights == 1 / 3
        )
        for k, row in enumerate(batch.rows.tolist()):
            assert len(set(row)) == 3 and all(starts[k // 2] <= r < starts[k // 2 + 1] for r in row)


@pytest.mark.parametrize(("m", "b"), [(5, 2), (4, 3), (6, 1), (7, 3)])
def test_every_subset_is_equally_likely(m, b):
    taken = (
        own(drawn((2, m), b, "fixed", seeds=(1, 2)), (2, m))[1]
        if b <= 2
        else own(drawn((m, m), b, "fixed", (1, 2)), (m, m))[1]
    )
    code = (taken.reshape(-1, m) * 2 ** np.arange(m)).sum(1)
    subsets = [sum(2**k for k in chosen) for chosen in combinations(range(m), b)]
    counts = np.array([(code == s).sum() for s in subsets])
    assert counts.sum() == len(code)
    assert stats.chisquare(counts).pvalue > 1e-4


def test_the_order_within_a_fixed_batch_is_chance_too():
    batches = Batches((6,), 2, "fixed", [5])
    pairs = [tuple(batches.draw(step).rows[0].tolist()) for step in range(6000)]
    counts = np.array([pairs.count((i, j)) for i in range(6) for j in range(6) if i != j])
    assert stats.chisquare(counts).pvalue > 1e-4


def test_a_fixed_batch_of_everything_is_everything():
    batches = Batches((4, 4), 4, "fixed", [0])
    for step in range(20):
        assert [sorted(row) for row in batches.draw(step).rows.tolist()] == [
            [0, 1, 2, 3],
            [4, 5, 6, 7],
        ]


RECORDS, SIZE = (8, 16, 40), 4


@pytest.fixture(scope="module")
def poisson():
    return own(drawn(RECORDS, SIZE, "poisson", seeds=(0, 1, 99)), RECORDS)


def test_every_record_is_taken_at_its_users_rate(poisson):
    for m, taken in zip(RECORDS, poisson, strict=True):
        q = SIZE / m
        together = taken.reshape(-1, m)
        assert set(np.unique(together)) == {0, 1}, "no record twice"
        assert (
            rate_fits(together, q)
            and not rate_fits(together, q * 2 / 3)
            and not rate_fits(together, min(1, q * 3 / 2))
        )
        assert flatly(together.sum(0), np.full(m, together.sum() / m)), (
            "no place in the shard is favoured"
        )


def test_the_size_of_a_poisson_batch_is_binomial(poisson):
    for m, taken in zip(RECORDS, poisson, strict=True):
        sizes = taken.reshape(-1, m).sum(1)
        counts = np.bincount(sizes, minlength=m + 1)
        law = stats.binom(m, SIZE / m).pmf(np.arange(m + 1))
        assert flatly(counts, law * len(sizes))
        assert not flatly(counts, stats.poisson(SIZE).pmf(np.arange(m + 1)) * len(sizes)), (
            "nor a Poisson number of records"
        )


def test_records_are_taken_independently(poisson):
    for m, taken in zip(RECORDS, poisson, strict=True):
        together = taken.reshape(-1, m).astype(float)
        correlation = np.corrcoef(together.T)[np.triu_indices(m, 1)] * np.sqrt(len(together))
        assert abs(correlation).max() < 5.2 and abs((correlation**2).mean() - 1) < 6 / np.sqrt(
            len(correlation)
        )


@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
def test_users_seeds_and_steps_draw_independently(sampling):
    records = (6, 6, 6)
    # step, user, seed, record
    taken = np.stack(own(drawn(records, 2, sampling, seeds=(0, 1, 2**62)), records), 1).astype(
        float
    )
    bound = 5 / np.sqrt(len(taken))

    def related(a, b):
        table = (a - a.mean(0)).T @ (b - b.mean(0)) / len(a) / (a.std() * b.std())
        return abs(table).max()

    assert (
        related(taken[:, 0, 0], taken[:, 1, 0]) < bound
        and related(taken[:, 1, 0], taken[:, 2, 0]) < bound
    )
    assert (
        related(taken[:, 0, 0], taken[:, 0, 1]) < bound
        and related(taken[:, 0, 1], taken[:, 0, 2]) < bound
    )
    for lag in (1, 2, 7):
        assert related(taken[:-lag, 0, 0], taken[lag:, 0, 0]) < bound
        assert related(taken[:-lag, 0, 0], taken[lag:, 1, 0]) < bound
        assert related(taken[lag:, 0, 0], taken[:-lag, 1, 0]) < bound
        assert related(taken[lag:, 0, 0], taken[:-lag, 0, 1]) < bound
        assert related(taken[:-lag, 0, 0], taken[lag:, 0, 1]) < bound
    assert related(taken[:, 0, 1], taken[:, 1, 0]) < bound
    whole = taken.reshape(len(taken), -1)
    assert len(np.unique(whole, axis=0)) > 0.99 * min(len(whole), 3000), "steps are not repeated"


def test_a_rate_of_one_takes_everything():
    batches = Batches((4, 4), 4, "poisson", [0, 1])
    for step in range(10):
        batch = batches.draw(step)
        assert batch.rows.tolist() == [[0, 1, 2, 3]] * 2 + [[4, 5, 6, 7]] * 2
        assert torch.equal(batch.weights, torch.full((4, 4), 0.25, dtype=torch.float64))
    mixed = Batches((4, 400), 4, "poisson", [0])
    assert all(mixed.draw(step).rows[0, :4].tolist() == [0, 1, 2, 3] for step in range(50))


def test_weights_are_one_over_the_expected_size_and_padding_weighs_nothing():
    batches, sizes = Batches((10, 30), 5, "poisson", [0, 4]), set()
    for step in range(300):
        batch = batches.draw(step)
        assert batch.rows.shape == batch.weights.shape and len(batch.rows) == 4
        null = batch.rows == 40
        assert (batch.weights[null] == 0).all() and (batch.weights[~null] == 1 / 5).all()
        count = (~null).sum(1)
        assert batch.rows.shape[1] == max(1, int(count.max())), "no wider than the largest batch"
        assert all(
            not row[:k].any() and row[k:].all() for row, k in zip(null, count.tolist(), strict=True)
        ), "padding comes last"
        sizes |= set(count.tolist())
    assert len(sizes) > 6, "realised sizes differ, the weight does not"


def test_an_empty_batch_is_a_batch():
    batches = Batches((200,), 1, "poisson", [0])
    empty = [
        batch for batch in (batches.draw(step) for step in range(30)) if not batch.weights.any()
    ]
    assert empty, "with one record expected, a third of the batches are empty"
    assert all(batch.rows.shape[1] >= 1 for batch in empty)


@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
def test_a_batch_is_a_function_of_seed_step_and_user(sampling):
    def taken(batches, step, row):
        rows = batches.draw(step).rows[row]
        return rows[rows < batches.null].tolist()

    several = Batches((9, 20, 9), 4, sampling, [7, 3])
    again = Batches((9, 20, 9), 4, sampling, [7, 3])
    alone = Batches((9, 20, 9), 4, sampling, [3])
    for step in (5, 0, 1000, 5, 2**40):
        for user in range(3):
            assert (
                taken(several, step, 2 * user + 1)
                == taken(alone, step, user)
                == taken(again, step, 2 * user + 1)
            )
    fewer = Batches((9, 20), 4, sampling, [3])
    assert taken(fewer, 12, 0) == taken(alone, 12, 0) and taken(fewer, 12, 1) == taken(alone, 12, 1)
    np.random.seed(0), torch.manual_seed(0)
    state, torchs = np.random.get_state()[1].copy(), torch.get_rng_state()
    taken(several, 3, 0)
    assert (np.random.get_state()[1] == state).all() and torch.equal(torchs, torch.get_rng_state())


def test_a_batch_that_does_not_fit_is_drawn_again_with_room():
    """Rarer than 1 in 10^30 steps, so it is forced. Dropping examples would change the law."""
    tight, wide = (Batches((30, 50), 10, "poisson", [1, 2]) for _ in range(2))
    tight._rows = np.empty((4, 1), dtype=np.int64)
    for step in range(20):
        one, two = tight.draw(step), wide.draw(step)
        assert torch.equal(one.rows, two.rows) and torch.equal(one.weights, two.weights)


def test_room_for_a_poisson_batch_does_not_grow_with_the_shard():
    batches = Batches((1_000_000,), 64, "poisson", [0])
    assert batches._rows.shape[1] < 300
    assert 30 < batches.draw(0).rows.shape[1] < 130


@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
def test_a_batch_larger_than_a_shard_names_the_user_and_the_way_out(sampling):
    with pytest.raises(
        InputError,
        match=r"batch_size 6 is larger than the shard of user 1, 5 examples; lower it, "
        r"or leave it out",
    ):
        Batches((8, 5, 4), 6, sampling, [0])
    Batches((8, 5, 4), 4, sampling, [0]).draw(0)


def secret_batches(records, size, sampling, draws=STEPS):
    """[draws, examples]: what a real user takes with its own bytes; checks every weight."""
    random = np.random.default_rng(7).bytes
    taken = np.zeros((draws, records), dtype=np.int64)
    for k in range(draws):
        batch = secret_batch(records, size, sampling, random)
        (rows,) = batch.rows.tolist()
        if rows == [records]:  # none: the row after the last, which weighs nothing
            assert sampling == "poisson" and float(batch.weights) == 0.0
            continue
        assert batch.weights == 1 / size, "by the expected size, never the realised one"
        np.add.at(taken[k], rows, 1)
    return taken


def test_a_real_users_poisson_batches_take_every_record_at_its_rate_independently():
    taken = secret_batches(40, 3, "poisson")
    assert taken.max() == 1 and rate_fits(taken, 3 / 40)
    sizes = taken.sum(1)
    assert (
        flatly(
            np.bincount(sizes, minlength=12)[:12],
            STEPS * stats.binom.pmf(np.arange(12), 40, 3 / 40),
        )
        and sizes.min() == 0
    )
    assert abs(np.corrcoef(taken[1:].ravel(), taken[:-1].ravel())[0, 1]) < 5 / np.sqrt(taken.size)


def test_a_real_users_fixed_batches_have_their_size_and_every_record_alike():
    taken = secret_batches(9, 4, "fixed")
    assert taken.max() == 1 and (taken.sum(1) == 4).all() and rate_fits(taken, 4 / 9)
    chosen = np.array([sum(1 << int(r) for r in np.flatnonzero(row)) for row in taken])
    subsets = [sum(1 << r for r in some) for some in combinations(range(9), 4)]
    counts = np.array([(chosen == subset).sum() for subset in subsets])
    assert flatly(counts, np.full(len(subsets), STEPS / len(subsets)))


def private(records, size, sampling, steps=STEPS):
    """([steps, examples], batches) of a private run, with words of the cipher."""

    def words(step, count):
        return np.random.default_rng([8, step]).integers(0, 2**32, count, np.uint32)

    batches = Batches(records, size, sampling, [0], words=words)
    taken = np.zeros((steps, sum(records) + 1), dtype=np.int64)
    for step in range(steps):
        batch = batches.draw(step)
        rows, weights = batch.rows.numpy(), batch.weights
        assert (
            weights == 1 / size
            if isinstance(weights, float)
            else set(weights.unique().tolist()) <= {0.0, 1 / size}
        )
        for user, row in enumerate(rows):
            mine = row[row < sum(records)]
            first = sum(records[:user])
            assert ((mine >= first) & (mine < first + records[user])).all(), (
                "a user takes its own records only"
            )
        np.add.at(taken[step], rows.ravel(), 1)
    return taken[:, :-1]


def test_a_private_runs_poisson_batches_take_every_record_at_its_users_rate_independently():
    taken = private([40, 12, 3], 3, "poisson")
    assert taken.max() == 1 and (taken[:, 52:] == 1).all()
    for first, last in ((0, 40), (40, 52)):
        assert rate_fits(taken[:, first:last], 3 / (last - first))
        sizes = taken[:, first:last].sum(1)
        law = stats.binom.pmf(np.arange(12), last - first, 3 / (last - first))
        assert flatly(np.bincount(sizes, minlength=12)[:12], STEPS * law)
    # users draw from words of their own
    joint = np.corrcoef(taken[:, 0:40].sum(1), taken[:, 40:52].sum(1))[0, 1]
    assert abs(joint) < 5 / np.sqrt(STEPS)


def test_a_private_runs_fixed_batches_are_every_subset_alike_for_every_user():
    taken = private([9, 6], 4, "fixed")
    for first, last in ((0, 9), (9, 15)):
        mine = taken[:, first:last]
        assert mine.max() == 1 and (mine.sum(1) == 4).all()
        chosen = mine @ (1 << np.arange(last - first))
        subsets = [sum(1 << r for r in some) for some in combinations(range(last - first), 4)]
        counts = np.array([(chosen == subset).sum() for subset in subsets])
        assert flatly(counts, np.full(len(subsets), STEPS / len(subsets)))
    assert abs(np.corrcoef(taken[:, 0], taken[:, 9])[0, 1]) < 5 / np.sqrt(STEPS)


@pytest.mark.parametrize("held", [0, 1, 3])
def test_more_examples_than_there_are_cannot_be_chosen(held):
    """What is compiled does not look where an array ends."""
    with pytest.raises(ValueError, match=f"4 of {held} examples"):
        choose(np.zeros(64, np.uint32), held, np.arange(held), np.empty(4, np.int64))


def test_words_that_would_favour_some_records_are_rejected():
    """2^64 mod 5, 4 and 3 is 1, 0 and 1: word 0 is rejected at the first and third place."""
    words = np.array([0, 2**64 - 1, 0, 0, 7], np.uint64).view(np.uint32)
    taken, scratch = np.empty(3, np.int64), np.arange(5)
    choose(words, 5, scratch, taken)
    # 2^64 - 1 mod 5 is 0; then 0 mod 4; then 0 is rejected, and 7 mod 3 is 1: the second of those
    # left
    assert taken.tolist() == [0, 1, 3] and scratch.tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(DecorError, match="ran out"):
        choose(np.zeros(10, np.uint32), 5, scratch, taken)


def test_a_rate_is_never_above_the_planned_one():
    """A third of 2^32 is not whole: the word at its floor is not taken."""
    limit = (1 << 32) // 3
    words = np.array([limit - 1, limit, limit + 1], np.uint32)
    assert sample(words, 1).tolist() == [0]
    assert sample(words, 3).tolist() == [0, 1, 2]


COMMON = CommonRate(0.2, 100_000)


def test_with_a_common_rate_users_of_any_size_take_each_example_at_that_rate():
    records = (5, 400, 1)
    batches = Batches(records, 30, "poisson", [3], common=COMMON)
    taken, rows = np.zeros(sum(records)), []
    for step in range(STEPS):
        batch = batches.draw(step)
        assert batch.planned == COMMON.largest
        inside = batch.rows < batches.null
        assert set(batch.weights[inside].tolist()) <= {1 / 30}
        np.add.at(taken, batch.rows[inside].numpy(), 1)
        rows.append(inside.sum(1).tolist())
    assert stats.binomtest(int(taken[5:405].sum()), 400 * STEPS, 0.2).pvalue > 1e-6
    assert stats.binomtest(int(taken[:5].sum()), 5 * STEPS, 0.2).pvalue > 1e-6
    sizes = np.array(rows)[:, 1]
    assert flatly(np.bincount(sizes, minlength=401), STEPS * stats.binom.pmf(range(401), 400, 0.2))


def test_a_real_users_examples_are_taken_at_most_at_the_common_rate():
    limit = int(Fraction(0.2) * 2**32)
    words = np.array([limit - 1, limit, limit + 1], np.uint32)
    assert sample(words, 1, COMMON).tolist() == [0]
    assert sample(words, 1, CommonRate(1.0, 3)).tolist() == [0, 1, 2]
    random = np.random.default_rng(0).bytes
    sizes = [len(secret_batch(9, 50, "poisson", random, COMMON).rows[0]) for _ in range(2000)]
    # an empty batch is one row of padding
    assert np.mean(sizes) == pytest.approx(9 * 0.2 + 0.8**9, abs=0.15)


def test_a_batch_beyond_the_allowance_for_rounding_is_refused():
    for common, said in (
        (CommonRate(0.5, 100_000), "too large to be summed"),
        (CommonRate(0.5, 40), "more than batch_size"),
    ):
        with pytest.raises(InputError, match=said):
            check_size([5, 300_000], 20, common)
        check_size([5, 80], 20, common)
    assert CommonRate.of(None, 3) is None and CommonRate.of(0.1, 3, 4).largest == 12
    assert CommonRate.of(0.1, 3).largest == CommonRate.of(0.1, 3, 10**9).largest == 100_000
