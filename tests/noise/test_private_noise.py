"""Noise of a private run: the distribution and the exact sums of `Grid`, for many users at once."""

import copy
import hashlib
import hmac
import itertools
import pickle
import struct

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR
from scipy import stats

from decor.errors import InputError
from decor.noise import integer_gaussians, private_noise
from decor.noise.grid import Grid
from decor.noise.private_noise import GridNoise, RemoteEdge, Secret

VALUE = hashlib.sha256(b"a secret").digest()


def known(value=VALUE):
    return Secret(lambda count: value[:count])


def graph(name, users):
    if name == "ring":
        return [(i, (i + 1) % users) for i in range(users)]
    return list(itertools.combinations(range(users), 2)) if name == "complete" else []


def made(name, users, parameters, value=VALUE, width=None, **options):
    edges = graph(name, users)
    grid = Grid.of(
        0.5,
        [3.0] * len(edges),
        edges,
        users,
        2.0,
        parameters,
        100,
        words_per_key=private_noise.WORDS_PER_KEY,
    )
    width = width or private_noise.width_for(users, len(edges))
    return GridNoise(
        grid, known(value), users, np.array(edges), grid.multiples, width, **options
    ), edges


def messages(noise, step, gradients):
    out = gradients.copy()
    for chunk in noise.chunks(out.shape[1]):
        noise.add(step, out, 0, chunk)
    return out


def integers(noise, message):
    """A message in grid steps, without any rounding."""
    k = np.rint(message.astype(np.float64) / noise.grid.unit).astype(np.int64)
    assert ((k * noise.grid.unit).astype(message.dtype) == message).all()
    return k


def expected(noise, edges, step, parameters, value=VALUE):
    """(own [users, parameters], shared [edges, parameters]) from the definition: HMAC, AES,
    tables.
    """
    own, shared = (
        np.zeros((noise.users, parameters), np.int64),
        np.zeros((len(edges), parameters), np.int64),
    )
    for first, last in noise.chunks(parameters):
        wide = last - first
        for number, (users, some) in enumerate(noise._groups):
            key = hmac.digest(
                value, b"decor noise 2" + struct.pack("<3Q", step, first, number), "sha256"
            )
            count = wide * (3 * len(users) + 2 * len(some))
            words = np.frombuffer(
                Cipher(AES256(key), CTR(bytes(16))).encryptor().update(bytes(4 * count)), "<u4"
            )

            def tie_bits(start, place, key=key):
                block = (
                    Cipher(AES256(key), CTR((2**96 + start + place).to_bytes(16, "big")))
                    .encryptor()
                    .update(bytes(16))
                )
                return int.from_bytes(block[:12], "little")

            at = 0
            for rows, table, levels in (
                (users, own, integer_gaussians.OWN),
                (some, shared, integer_gaussians.SHARED),
            ):
                for row in rows:
                    mine = words[at : at + wide * len(levels)]
                    table[row, first:last] = integer_gaussians.values(
                        mine, levels, lambda place, at=at: tie_bits(at, place)
                    )  # noqa: B023
                    at += wide * len(levels)
            assert at == count <= private_noise.WORDS_PER_KEY
    return own, shared * np.array(noise.grid.multiples, np.int64).reshape(-1, 1)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "name, users, parameters, width",
    [
        ("ring", 5, 1, None),
        ("ring", 5, 5000, None),
        ("complete", 7, 700, 256),
        ("none", 3, 100, None),
        ("ring", 400, 300, 256),
    ],
)
def test_a_message_is_the_rounded_gradient_plus_own_noise_plus_signed_noise_of_the_edges(
    name, users, parameters, width, dtype
):
    noise, edges = made(name, users, parameters, width=width)
    gradients = np.random.default_rng(3).normal(size=(users, parameters)).astype(dtype) * 0.1
    own, shared = expected(noise, edges, 4, parameters)
    found = integers(noise, messages(noise, 4, gradients.astype(np.float64))) - own
    for (i, j), row in zip(edges, shared, strict=True):
        found[i] -= row
        found[j] += row
    # what is left is the gradient, rounded up or down
    assert (np.abs(found - gradients.astype(np.float64) / noise.grid.unit) < 1).all()
    assert np.array_equal(noise.edge_integers(4, parameters), shared)
    same = messages(noise, 4, gradients)
    assert same.dtype == dtype and np.array_equal(
        same, messages(noise, 4, gradients.astype(np.float64)).astype(dtype)
    )


def test_ties_of_a_long_run_are_settled_as_the_tables_say():
    """One word in 2^20 ties: eight million words have some, in users' rows and in edges'."""
    noise, edges = made("ring", 16, 100_000)
    own, shared = expected(noise, edges, 0, 100_000)
    found = integers(noise, messages(noise, 0, np.zeros((16, 100_000))))
    assert np.array_equal(found.sum(0), own.sum(0))  # edges cancel to the last integer
    for e, (i, j) in enumerate(edges):
        own[i] += shared[e]
        own[j] -= shared[e]
    assert np.array_equal(found, own)


def test_ties_are_settled_in_every_kind_of_row(monkeypatch):
    """Tables made to tie in a quarter of all cells: without settling, most values would be
    wrong.
    """
    changed = {}
    for name in ("rounded", "discrete"):
        cells, rest = (
            integer_gaussians.table(name).cells.copy(),
            list(integer_gaussians.table(name).rest),
        )
        changed[name] = integer_gaussians.Table(cells, rest)
    noise, edges = made("ring", 5, 300)
    for number, (users, some) in enumerate(noise._groups):
        words, _ = noise._words(2, 0, number, 300)
        for at in range(0, 3 * 300 * len(users) + 2 * 300 * len(some), 7):
            word = int(words[at])
            name = "rounded" if at < 3 * 300 * len(users) and at % 3 == 0 else "discrete"
            changed[name].cells[word >> 20] = (word & 0xFFFFF) << 12 | (word * 5 & 4095)
            changed[name].rest[word >> 20] = 1 << 95
    monkeypatch.setattr(integer_gaussians, "table", changed.__getitem__)
    monkeypatch.setattr(private_noise, "table", changed.__getitem__)
    own, shared = expected(noise, edges, 2, 300)
    for e, (i, j) in enumerate(edges):
        own[i] += shared[e]
        own[j] -= shared[e]
    assert np.array_equal(integers(noise, messages(noise, 2, np.zeros((5, 300)))), own)
    monkeypatch.setattr(private_noise, "corrections", lambda *_: [])
    assert not np.array_equal(integers(noise, messages(noise, 2, np.zeros((5, 300)))), own)


def test_the_covariance_is_the_planned_one_and_steps_know_nothing_of_each_other():
    noise, edges = made("ring", 5, 200_000)
    found = [messages(noise, step, np.zeros((5, 200_000))) for step in (0, 1)]
    K = np.zeros((5, 5))
    for i, j in edges:
        K[i, i], K[j, j], K[i, j], K[j, i] = K[i, i] + 1, K[j, j] + 1, K[i, j] - 1, K[j, i] - 1
    unit, multiple = noise.grid.unit, noise.grid.multiples[0]
    sigma = (unit * integer_gaussians.OWN_SIGMA) ** 2 * np.eye(5) + (
        unit * multiple * integer_gaussians.EDGE_SIGMA
    ) ** 2 * K
    scale = np.sqrt(np.multiply.outer(sigma.diagonal(), sigma.diagonal()))
    error = 5 * np.sqrt(2 / 200_000)
    for each in found:
        assert (np.abs(each @ each.T / 200_000 - sigma) < error * scale).all()
        assert not (np.abs(each @ each.T / 200_000 - 1.02 * sigma) < error * scale).all()
        white = each[0] / np.sqrt(sigma[0, 0])
        assert stats.kstest(white, "norm").pvalue > 1e-4
    assert (np.abs(found[0] @ found[1].T / 200_000) < error * scale).all()


@pytest.mark.parametrize("split", [False, True])
def test_users_draw_their_own_levels_in_one_process_and_in_two(split):
    own, d = (0.5, 2.0, 0.5, 6.0), 60_000
    grid = Grid.of(own, [], [], 4, 2.0, d, 10, words_per_key=private_noise.WORDS_PER_KEY)
    width, none = private_noise.width_for(4, 0), np.empty((0, 2))
    parts = []
    for users in ((0, 1), (2, 3)) if split else ((0, 1, 2, 3),):
        secret = Secret()
        beside = private_noise.own_noise(grid.own_multiples, np.array(users), secret)
        assert [(edge.user, edge.multiple) for edge in beside] == [
            (k, grid.own_multiples[user]) for k, user in enumerate(users) if own[user] > 0.5
        ]
        parts.append(GridNoise(grid, secret, len(users), none, [], width, beside))
    sent = [
        np.concatenate([messages(part, step, np.zeros((part.users, d))) for part in parts])
        for step in (0, 1)
    ]
    for each in sent:
        assert np.allclose(each.std(axis=1), own, rtol=0.03)
        assert abs(np.corrcoef(each) - np.eye(4)).max() < 5 / np.sqrt(d), "nothing is shared"
    assert abs(np.corrcoef(*(each[3] for each in sent))[0, 1]) < 5 / np.sqrt(d), "steps are fresh"


def test_no_key_serves_twice(monkeypatch):
    """All keys of several steps: noise, dither, batches, and models' own randomness."""
    keys = []
    monkeypatch.setattr(
        private_noise.hmac,
        "digest",
        lambda key, message, how: keys.append(message) or hmac.new(key, message, how).digest(),
    )
    noise, _ = made("complete", 40, 2000, width=256)
    assert len(noise._groups) > 1
    for step in range(3):
        messages(noise, step, np.zeros((40, 2000)))
        noise._secret.batch_words(step, 10)
        noise._secret.local_words(step, 10)
    # one dither a step serves every chunk
    noises = [message for message in keys if not message.startswith(b"decor dither")]
    assert len(noises) > 30 and len(set(noises)) == len(noises)
    assert len({message[:8] for message in keys}) == 4


def test_an_edge_between_two_processes_cancels_as_one_inside_does():
    """Users 0, 1 here and 2, 3 there on a ring: edges 1-2 and 0-3 cross."""
    edges, d = [(0, 1), (1, 2), (2, 3), (0, 3)], 3000
    grid = Grid.of(0.5, [3.0] * 4, edges, 4, 2.0, d, 10, words_per_key=private_noise.WORDS_PER_KEY)
    m = grid.multiples[0]
    shared = {edge: hashlib.sha256(repr(edge).encode()).digest() for edge in ((1, 2), (0, 3))}

    def ends(*rows):
        return [RemoteEdge(user, sign * m, known(shared[edge])) for user, sign, edge in rows]

    width, one = private_noise.width_for(4, 4), np.array([(0, 1)])
    here = GridNoise(grid, Secret(), 2, one, [m], width, ends((1, 1, (1, 2)), (0, 1, (0, 3))))
    there = GridNoise(grid, Secret(), 2, one, [m], width, ends((0, -1, (1, 2)), (1, -1, (0, 3))))
    all_users = np.concatenate([messages(part, 3, np.zeros((2, d))) for part in (here, there)])
    own = (grid.unit * integer_gaussians.OWN_SIGMA) * np.sqrt(4)
    assert abs(all_users.sum(0).std() / own - 1) < 0.1
    assert all_users.std(1).min() > 5 * own / 2
    alone = GridNoise(grid, Secret(), 2, one, [m], width, ends((1, 1, (1, 2))))
    assert (messages(alone, 3, np.zeros((2, d))).sum(0)).std() > 3 * own


def test_a_secret_is_256_bits_of_the_operating_system_and_is_not_written():
    asked = []
    drawn = Secret(lambda count: asked.append(count) or bytes(range(count)))
    assert asked == [32] and repr(drawn) == "Secret()"
    with pytest.raises(InputError, match="32 bytes, not 2"):
        Secret(lambda count: b"ab")
    for write in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError, match="must not be written"):
            write(drawn)
    first, second = Secret(), Secret()
    assert first.key(b"x", 1) != second.key(b"x", 1) and len(first.key(b"x")) == 32
    assert first.key(b"x", 1) == hmac.digest(
        first._value, b"x" + (1).to_bytes(8, "little"), "sha256"
    )


def test_two_private_runs_draw_unrelated_secrets():
    """A secret of 12 bits would repeat within a hundred draws."""
    drawn = {Secret()._value for _ in range(2000)}
    assert len(drawn) == 2000
    bits = np.unpackbits(np.frombuffer(b"".join(sorted(drawn)), np.uint8)).reshape(2000, 256)
    assert (np.abs(bits.mean(0)[16:] - 0.5) < 6 * 0.5 / np.sqrt(2000)).all()
