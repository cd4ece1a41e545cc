"""What real peers put on the wire and on disk: noise of the planned law, and no secret."""

import asyncio
import base64
import inspect
import os
import sys
from contextlib import ExitStack

import numpy as np
import pytest
from ledgers import open_ledger
from party import Events, make_terms, task_of_user, train_together
from proxy import Proxy, second_messages

import decor
from decor.federation.node import Node
from decor.learning.recipe import Recipe
from decor.net.addresses import free_ports
from decor.net.edge_keys import EdgeKeys
from decor.net.identity import Identity
from decor.net.messages import Model
from decor.net.peer import Peer
from decor.noise.agreement import EdgeSecret, key_id
from decor.noise.integer_gaussians import EDGE_SIGMA, OWN_SIGMA

USERS, STEPS, WIDE, RATE = 4, 250, 60, 0.5


@pytest.fixture(scope="module")
def transcript(tmp_path_factory):
    """[steps, users, parameters] as recorded between users 0 - 1 - 2 - 3, whose data give no
    gradient; and their terms.
    """
    folder = tmp_path_factory.mktemp("wire")
    shards = [(np.zeros((3, WIDE)), np.zeros(3)) for _ in range(USERS)]
    task = decor.Task(decor.models.linear(WIDE).double(), decor.losses.squared, shards)
    exposure = decor.Exposure(clip=1.0, steps=STEPS)
    plan = decor.NoisePlan(
        decor.path(USERS), exposure, decor.Adversary.eavesdropper(), sigma_cdp=1.0, sigma_cor=2.0
    )
    identities, ports = [Identity.new() for _ in range(USERS)], free_ports(USERS)
    terms = make_terms(task, plan, Recipe(gossip_rounds=1), identities, rate=RATE)

    async def together():
        nodes = []
        for i, identity in enumerate(identities):
            ledger, reach = (
                open_ledger(folder / f"{i}.ledger"),
                terms.reach(i, [f"127.0.0.1:{ports[i]}"]),
            )
            nodes.append(
                Node(terms, i, identity, task_of_user(task, i), ledger, Events(), reach=reach)
            )
        await asyncio.gather(*(node.train() for node in nodes))
        for node in nodes:
            assert not node.log.named("noise does not cancel")
            node.ledger.close()

    with ExitStack() as stack:
        proxies = []
        for i in range(USERS - 1):
            port = int(terms.members[i].address.rpartition(":")[2])
            names = (f"user-{i + 1}", f"user-{i}")
            size = 8 * task.parameters
            proxies.append(
                stack.enter_context(
                    Proxy(
                        identities[i + 1], identities[i], f"127.0.0.1:{ports[i]}", size, names, port
                    )
                )
            )
        asyncio.run(together())
        records = [record for proxy in proxies for record in proxy.messages()]
    assert not second_messages(records)
    seen = np.full((STEPS, USERS, WIDE), np.nan)
    for record in records:
        if (
            isinstance(record.message, Model)
            and record.message.round == 0
            and record.message.step < STEPS
        ):
            user = int(record.sender.removeprefix("user-"))
            seen[record.message.step, user] = np.frombuffer(record.message.values, "<f8")
    assert np.isfinite(seen).all()
    return seen, terms


@pytest.fixture(scope="module")
def noise(transcript):
    """[steps, users, parameters]: what each user added, computed from the messages alone."""
    seen, terms = transcript
    W = terms.plan.topology.mixing.toarray()
    before = np.concatenate([np.ones((1, USERS, WIDE)), np.einsum("ij,tjk->tik", W, seen[:-1])])
    return (before - seen) / RATE


def test_the_noise_on_the_wire_has_the_plans_covariance_and_not_two_thirds_or_three_halves_of_it(
    noise, transcript
):
    plan = transcript[1].plan
    ends = plan.topology.edges
    K = np.zeros((USERS, len(ends)))
    for e, (i, j) in enumerate(ends):
        K[i, e], K[j, e] = 1, -1
    Sigma = plan.sigma_cdp**2 * np.eye(USERS) + plan.sigma_cor**2 * K @ K.T
    flat = noise.transpose(0, 2, 1).reshape(-1, USERS)
    found = flat.T @ flat / len(flat)
    error = 5 * np.sqrt((Sigma**2 + np.outer(Sigma.diagonal(), Sigma.diagonal())) / len(flat))
    assert (abs(found - Sigma) < error + 0.01 * abs(Sigma)).all()  # the grid adds a few thousandths
    for wrong in (4 / 9, 9 / 4):
        assert (abs(found - wrong * Sigma).diagonal() > error.diagonal()).all()
    total = flat.sum(1)
    # the edges' noise is gone from the sum
    assert total.var() == pytest.approx(USERS * plan.sigma_cdp**2, rel=0.05)


def test_the_noise_on_the_wire_has_no_memory(noise):
    for lag in (1, 2, 7):
        one, two = noise[:-lag].ravel(), noise[lag:].ravel()
        assert abs(np.corrcoef(one, two)[0, 1]) < 5 / np.sqrt(len(one))
    assert abs(noise.mean()) < 5 * noise.std() / np.sqrt(noise.size)


def test_the_noise_on_the_wire_is_whole_steps_of_the_grid(noise, transcript):
    """Nothing of a gradient's low bits is left, and edges' noise cancels exactly."""
    grid = transcript[1].grid
    steps = noise / grid.unit
    # sums of float64 in messages of this size carry some 1e-13 of rounding; a step of the grid is
    # 1.5e-6
    assert abs(steps - np.rint(steps)).max() < 1e-3
    own = np.rint(steps).sum(1)  # over users: whole numbers in which no edge is left
    assert own.std() == pytest.approx(np.sqrt(USERS) * OWN_SIGMA, rel=0.05)
    assert grid.multiples[0] * EDGE_SIGMA >= 2.0 * OWN_SIGMA * (1 - 1e-9)


def test_the_noise_of_an_absent_neighbours_edge_is_added_all_the_same(tmp_path):
    """Users 0 - 1, and a user 2 who never comes: user 1 has no secret with it, and draws that
    edge's noise by itself.
    """
    steps = 60
    task = decor.Task(
        decor.models.linear(WIDE).double(),
        decor.losses.squared,
        [(np.zeros((3, WIDE)), np.zeros(3))] * 3,
    )
    plan = decor.NoisePlan(
        decor.path(3), decor.Exposure(1.0, steps), decor.Adversary.eavesdropper(), 1.0, 2.0
    )
    identities = [Identity.new() for _ in range(3)]
    terms = make_terms(
        task, plan, Recipe(gossip_rounds=1), identities, rate=RATE, patience=1.0, timeout=3.0
    )

    async def together():
        nodes = []
        for i in (0, 1):
            ledger = open_ledger(tmp_path / f"{i}.ledger")
            nodes.append(
                Node(
                    terms,
                    i,
                    identities[i],
                    task_of_user(task, i),
                    ledger,
                    Events(),
                    recorder=Ears(),
                )
            )
        await asyncio.gather(*(node.train() for node in nodes))
        for node in nodes:
            node.ledger.close()

    seen = np.full((steps, 2, WIDE), np.nan)

    class Ears:
        def record_model(self, sender, step, round_, values):
            if round_ == 0 and step < steps:
                seen[step, sender] = np.frombuffer(values)

        def record_start(self, step, model):
            pass

        def record_keys(self, step, keys):
            pass

        def record_random(self, source, kind):
            return source

    asyncio.run(together())
    w = plan.topology.mixing[0, 1]
    mixed = np.einsum("ij,tjk->tik", [[1 - w, w], [w, 1 - w]], seen)
    noise = (np.concatenate([np.ones((1, 2, WIDE)), mixed[:-1]]) - seen) / RATE
    flat = noise.transpose(0, 2, 1).reshape(-1, 2)
    Sigma = np.array([[1.0 + 4, -4], [-4, 1 + 2 * 4]])
    error = 5 * np.sqrt((Sigma**2 + np.outer(Sigma.diagonal(), Sigma.diagonal())) / len(flat))
    assert (abs(flat.T @ flat / len(flat) - Sigma) < error + 0.01 * abs(Sigma)).all()


def test_a_users_own_randomness_is_the_operating_systems():
    """A generator with a state would be the same at every user that `decor up` forks."""
    assert Node.__dataclass_fields__["random"].default is os.urandom


def test_no_secret_is_on_disk_or_in_a_log(tmp_path, monkeypatch):
    """Ids of keys and tags of noise are in the ledger; no key is, nor what one follows from."""
    secrets, keys = set(), set()
    init, key = EdgeSecret.__init__, EdgeSecret.key

    def noted_init(self, chain, confirmation, sealing, *rest):
        secrets.update((bytes(chain), bytes(confirmation), bytes(sealing)))
        init(self, chain, confirmation, sealing, *rest)

    def noted_key(self, step):
        found = key(self, step)
        keys.add(found)
        secrets.update((found, bytes(self._chain)))
        return found

    monkeypatch.setattr(EdgeSecret, "__init__", noted_init)
    monkeypatch.setattr(EdgeSecret, "key", noted_key)

    rng = np.random.default_rng(5)
    shards = [(rng.normal(size=(20, 5)), rng.integers(0, 2, 20)) for _ in range(3)]
    task = decor.Task(decor.models.logistic(5).double(), decor.losses.logistic, shards)
    plan = decor.NoisePlan(
        decor.ring(3), decor.Exposure(1.0, 8), decor.Adversary.eavesdropper(), 1.0, 3.0
    )
    own = []

    def noted_random(_):
        def drawn(count):
            own.append(np.random.bytes(count))
            return own[-1]

        return drawn

    nodes, runs = train_together(task, plan, Recipe(gossip_rounds=1), tmp_path, random=noted_random)
    for k, run in enumerate(runs):
        run.save(tmp_path / f"run-{k}")
    secrets.update(own)
    for node in nodes:
        secrets.add(node.identity.key.private_bytes_raw())
    assert len(secrets) > 3 * 8
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    written += [repr(node.log.lines).encode() for node in nodes] + [
        repr(vars(node)).encode() for node in nodes
    ]
    data = [X.tobytes()[:40] for X, _ in shards]
    # the search finds what is there: also what belongs to the keys
    assert any(runs[0].manifest["federation"].encode() in held for held in written)
    used = {key_id(each) for each in keys}
    assert len(used) == 3 * 8 and all(any(each in held for held in written) for each in used)
    for held in written:
        for secret in secrets | set(data):
            for form in (
                secret,
                secret.hex().encode(),
                base64.b64encode(secret)[:40],
                repr(secret)[2:-1].encode(),
            ):
                assert form not in held


def test_no_key_of_a_step_outlives_its_message_in_a_node(tmp_path, monkeypatch):
    """Only the state of the edge has the last one: what is seized while a step's rounds last is
    that.
    """
    keys, seen = set(), []
    take, exchange = EdgeKeys.take, Peer.exchange

    def noted_take(self, *given):
        key = take(self, *given)
        keys.add(key)
        return key

    async def searched_exchange(self, step, *more):
        frame = sys._getframe()
        while (frame := frame.f_back) is not None:
            if frame.f_code.co_filename != inspect.getfile(Node):
                continue
            seen.append(frame.f_code.co_name)
            local = repr(frame.f_locals)
            assert not any(repr(key)[2:-1] in local for key in keys), frame.f_code.co_name
        return await exchange(self, step, *more)

    monkeypatch.setattr(EdgeKeys, "take", noted_take)
    monkeypatch.setattr(Peer, "exchange", searched_exchange)
    shards = [(np.ones((4, 2)), np.arange(4.0) % 2) for _ in range(3)]
    task = decor.Task(decor.models.logistic(2).double(), decor.losses.logistic, shards)
    plan = decor.NoisePlan(
        decor.ring(3), decor.Exposure(1.0, 4), decor.Adversary.eavesdropper(), 1.0, 3.0
    )
    train_together(task, plan, Recipe(gossip_rounds=1), tmp_path)
    assert len(keys) == 3 * 4 and {"_take_step", "_gossip"} <= set(seen)
