"""A rehearsal beside what real peers, and the simulator itself, do."""

import asyncio
import math
from dataclasses import replace

import numpy as np
import pytest
from federation.federation_files import COMMON, DATA, EXAMPLE, TEXT, with_section
from federation.party import Events
from ledgers import open_ledger

import decor
from decor.cli.main import main
from decor.errors import InputError
from decor.federation import rehearsal
from decor.federation.federation import Federation
from decor.federation.member_data import read_member_data
from decor.federation.node import Node
from decor.federation.rehearsal import Link, rehearse, traffic_of
from decor.federation.start_model import StartModel
from decor.federation.terms import Terms
from decor.net.identity import Identity

STEPS = 60


def test_the_predicted_bytes_are_what_real_peers_send(tmp_path, monkeypatch):
    """Within one step (a neighbour may be one ahead) and, in all, the handshake's few kB."""
    monkeypatch.chdir(tmp_path)
    new = (
        "federation new --task breast-cancer --users 3 --epsilon 10 --output trial --topology path"
    )
    assert main([*new.split(), "--steps", str(STEPS)]) == 0
    federation = Federation.read("trial/federation.toml")
    terms, counted = Terms.of(federation), {}

    def count(node):
        def on_step(step):
            for number, link in node.peer.links.items():
                counted[node.number, number, step] = link.conn.traffic.sent

        return on_step

    async def together():
        nodes = []
        for k, member in enumerate(federation.members):
            identity = Identity.load(f"trial/keys/{member.name}.key")
            shard = read_member_data(federation, f"trial/data/{member.name}.npz", None, k).shard
            ledger = open_ledger(tmp_path / f"{k}.ledger", identity.public)
            task = federation.task(shard, user=k)
            node = Node(terms, k, identity, task, ledger, Events())
            node.on_step = count(node)
            nodes.append(node)
        await asyncio.gather(*(node.train() for node in nodes))
        for node in nodes:
            node.ledger.close()
        return [link.conn.traffic.sent for node in nodes for link in node.peer.links.values()]

    sent, traffic = asyncio.run(together()), traffic_of(federation)
    edges = [(0, 1), (1, 0), (1, 2), (2, 1)]
    for edge in edges:
        between = counted[(*edge, STEPS - 10)] - counted[(*edge, 10)]
        # signs of life are eight bytes each
        assert between == pytest.approx((STEPS - 20) * traffic.step, abs=traffic.step + 200), edge
    assert traffic.total == 4 * (STEPS * traffic.step + traffic.final)
    assert traffic.total <= sum(sent) <= traffic.total + 4 * 8000
    assert traffic.user == traffic.total / 2  # the middle of a path sends half


def test_a_model_without_signal_gets_the_predicted_noise():
    """Features are zero, so that weights feel noise alone: two-sided, within five deviations."""
    federation = with_section(Federation.parse(TEXT), "model", features=2000)
    federation = with_section(federation, "training", steps=12, momentum=0.8, weight_decay=0.3)
    terms = Terms.of(federation)
    noise = rehearsal._noise(terms)
    nothing = {m.name: (np.zeros((4, 2000)), np.arange(4) % 2) for m in federation.members}
    module, loss = federation.load_module()
    task = decor.Task(module, loss, nothing)
    run = decor.train(
        task, federation.plan, federation.recipe, learning_rate=federation.learning_rate
    )
    measured = float(run.average_model["weight"].std())
    assert abs(measured / noise.parameter - 1) < 5 / math.sqrt(2 * 2000)
    assert noise.noise == pytest.approx(noise.parameter * math.sqrt(2001))


def test_the_largest_signal_is_reached_by_gradients_that_agree():
    """The rule of a step, taken with a gradient of the clip's length, in plain arithmetic."""
    federation = with_section(Federation.parse(TEXT), "training", steps=9, momentum=0.7)
    federation = with_section(federation, "training", weight_decay=0.1, schedule="cosine")
    terms, model, velocity = Terms.of(federation), 0.0, 0.0
    for rate in terms.rates:
        velocity = federation.training.clip + 0.7 * velocity
        model = (1 - rate * 0.1) * model - rate * velocity
    assert rehearsal._noise(terms).signal == pytest.approx(-model)


def test_what_a_crash_leaves_is_what_a_node_would_report():
    federation = Federation.parse(TEXT)
    terms, plan = Terms.of(federation), federation.plan
    noise, steps = rehearsal._noise(terms), federation.training.steps
    # two edges of a ring, beside the own noise of four users
    one = 2 * plan.sigma_cor**2 / (4 * plan.sigma_cdp**2)
    # the grid's noise is planned, or a little more
    assert noise.left_after_crash == pytest.approx(math.sqrt(1 + one / steps), rel=0.01)
    assert noise.left_without_user == pytest.approx(math.sqrt(1 + one), rel=0.01)
    assert terms.noise_left(0, {1: [5], 3: [5]}) == noise.left_after_crash
    assert terms.noise_left(0, {}) == 1


def test_the_time_grows_with_a_slower_link():
    federation = with_section(Federation.parse(TEXT), "training", steps=20)
    fast, slow = (
        rehearse(federation, link=Link(*link), seeds=1).duration
        for link in ((1000, 0.0), (0.01, 0.5))
    )
    bytes_of_step = 2 * traffic_of(federation).step
    assert fast.network == pytest.approx(bytes_of_step / 125e6)
    assert slow.network == pytest.approx(bytes_of_step / 1250 + 0.5)
    assert slow.total == pytest.approx(20 * (slow.gradient + slow.network))


DIGITS = '"multinomial"\nclasses = 10', 64
LUMPS = '"logistic"', 30


@pytest.mark.parametrize(
    ("data", "model", "epsilon"),
    [("digits", DIGITS, 3), ("digits", DIGITS, 29), ("breast_cancer", LUMPS, 10)],
)
def test_no_real_data_beat_the_ceiling(data, model, epsilon, tmp_path):
    task, path = getattr(decor.tasks, data)(4), tmp_path / "public.npz"
    X, y = (np.concatenate([shard[k].numpy() for shard in task.shards]) for k in (0, 1))
    np.savez(path, X=X, y=y)
    text = TEXT.replace('"logistic"', model[0]).replace("features = 30", f"features = {model[1]}")
    federation = with_section(Federation.parse(text), "training", steps=30)
    federation = with_section(federation, "privacy", epsilon=float(epsilon))
    real, planted = rehearse(federation, path).score, rehearse(federation).score
    assert real.is_forecast and not planted.is_forecast
    assert real.figure == np.mean(real.values) < planted.figure
    assert real.trained + real.tested == len(y) and real.worst_user <= max(real.values)
    if epsilon >= 10:
        # not by guessing
        assert real.base_rate < real.figure and not real.is_useless


@pytest.mark.parametrize("text", [EXAMPLE, COMMON])
def test_examples_are_planted_and_drawn_in_the_planned_numbers(text, tmp_path):
    text = text.replace("features = 30\n", "") + DATA
    federation = with_section(Federation.parse(text), "training", steps=10)
    rng, path = np.random.default_rng(0), tmp_path / "public.csv"
    rows = [f"{rng.integers(100)},north,{'yes' if k % 3 else 'no'}" for k in range(60)]
    path.write_text("\n".join(["age,ward,sick", *rows]))
    found = rehearse(federation, path, seeds=2)
    records = 120 if federation.privacy.rate is None else 400  # 20 / 0.05
    assert found.duration.records == records and len(found.score.values) == 2
    assert found.score.most_frequent == "yes" and found.score.base_rate == pytest.approx(2 / 3)
    assert rehearse(federation, seeds=1).duration.records == records


def test_a_number_is_rehearsed_by_its_loss():
    text = TEXT.replace('"logistic"', '"linear"').replace("epsilon = 3.0", "epsilon = 50.0")
    score = rehearse(Federation.parse(text), seeds=1).score
    assert score.metric == "test_loss" and score.base_rate is None and not score.is_useless
    assert math.isfinite(score.mean)


def test_a_federation_that_begins_with_a_trained_model_is_rehearsed_from_it(tmp_path):
    X = np.random.default_rng(0).normal(size=(400, 30))
    np.savez(tmp_path / "public.npz", X=X, y=(X[:, 0] > 0).astype(int))
    weight = np.zeros((1, 30), dtype=np.float32)
    weight[0, 0] = 1e4
    start = StartModel({"weight": weight, "bias": np.zeros(1, dtype=np.float32)})
    new = with_section(Federation.parse(TEXT), "training", steps=5)
    renewed = with_section(new, "model", start_sha256=start.sha256)
    score = rehearse(renewed, tmp_path / "public.npz", start=start, seeds=1).score
    assert score.figure > 0.98 > rehearse(new, tmp_path / "public.npz", seeds=1).score.figure
    # no ceiling: it is good already, whatever planted records teach it
    with pytest.raises(InputError, match="begins with a trained model"):
        rehearse(renewed, start=start)


def test_samples_that_do_not_fit_are_refused(tmp_path):
    federation = Federation.parse(TEXT.replace("features = 30\n", "") + DATA)
    path = tmp_path / "public.csv"
    path.write_text("age,ward,sick\n1,north,no\n2,north,yes\n")
    with pytest.raises(InputError, match="too few to train 4 users"):
        rehearse(federation, path)
    path.write_text("age,sick\n1,no\n")
    with pytest.raises(InputError, match="has no column 'ward'"):
        rehearse(federation, path)
    with pytest.raises(InputError, match="is no file"):
        rehearse(federation, "own.data:read")
    with pytest.raises(InputError, match="may not be run"):
        code = TEXT.replace('kind = "logistic"', 'code = "own:model"')
        code = Federation.parse(code.replace("features = 30\n", ""))
        rehearse(replace(code, run_code=False))
