"""Own loops beside a node: what they share is clipped, whatever it is, and engines agree."""

import threading

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from own_loops import one_step
from party import train_together
from test_contract import IRREGULAR, RECIPES, STEPS, USERS, Bytes, compare, keys, replayed, small

import decor
from decor.errors import InputError
from decor.federation.loop_updates import LoopClosed, LoopUpdates

__all__ = ["keys"]  # a fixture
CLIP = 0.7


def updates_of(dtype="float64", clip=CLIP):
    exposure = decor.Exposure(clip=clip, steps=5)
    return LoopUpdates(decor.models.mlp(3, 2, 2), decor.losses.cross_entropy, exposure, dtype)


def sent(updates, shared, rate=0.5, model=None):
    """The difference over the step size as a message has it."""
    updates.answer(shared)
    gradient, factor = updates.gradient(updates.start() if model is None else model, rate, 2)
    return factor * gradient.astype(np.float64)


VALUES = st.floats(width=64)


@given(
    st.lists(VALUES, min_size=14, max_size=14),
    st.sampled_from(["float32", "float64"]),
    st.sampled_from([1e-30, 0.01, 1.0, 1e30]),
)
def test_no_difference_is_longer_than_the_clip_whatever_is_shared(values, dtype, rate):
    updates = updates_of(dtype)
    shared = torch.tensor(values, dtype=torch.float64)
    difference = sent(updates, shared, rate)
    assert np.isfinite(difference).all()
    # in exact arithmetic: fractions of the products' factors
    assert float(np.linalg.norm(difference)) <= CLIP * (1 + 1e-15)


def test_a_short_difference_is_sent_as_it_is_and_a_long_one_in_its_direction():
    updates, step = updates_of(), torch.zeros(14, dtype=torch.float64)
    start = torch.from_numpy(updates.start())
    step[3], step[8] = 0.1, -0.2
    assert np.allclose(sent(updates, start - step, 0.5), step.numpy() / 0.5, atol=1e-15)
    offer = updates.offers.get_nowait()
    assert (offer.step, offer.rate) == (2, 0.5) and torch.equal(offer.model, start)
    long = sent(updates, start - 100 * step, 0.5)
    assert np.linalg.norm(long) == pytest.approx(CLIP, rel=1e-12)
    assert np.allclose(long / CLIP, step.numpy() / np.linalg.norm(step), atol=1e-12)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf, 1e308])
def test_what_is_not_finite_counts_as_zero(wrong):
    updates = updates_of("float32")
    shared = torch.full((14,), wrong, dtype=torch.float64)
    assert not sent(updates, shared, 0.5).any()


def test_nothing_shared_and_a_step_size_of_zero_are_zero():
    updates = updates_of()
    assert not sent(updates, None).any()
    assert not sent(updates, torch.ones(14, dtype=torch.float64), 0.0).any()


def test_a_closed_loop_gives_no_gradient():
    updates = updates_of()
    updates.close()
    with pytest.raises(LoopClosed):
        updates.gradient(updates.start(), 0.5, 0)


def test_example_level_is_refused():
    exposure = decor.Exposure(clip=1.0, steps=5, unit="example", batch_size=5, records=20)
    with pytest.raises(InputError, match='plan with unit="user"'):
        LoopUpdates(decor.models.logistic(3), None, exposure, "float32")


@pytest.mark.parametrize(
    ("kind", "recipe", "graph"),
    [("mlp", recipe, decor.ring(USERS)) for recipe in RECIPES]
    + [(kind, "momentum", IRREGULAR) for kind in ("linear", "logistic", "module")],
    ids=lambda value: value if isinstance(value, str) else value.description.split(",")[0],
)
def test_own_loops_of_real_peers_train_the_simulators_models(kind, recipe, graph, keys, tmp_path):
    """The contract of the engines, with every user's gradient computed in a loop of its own."""
    task, how = small(kind), RECIPES[recipe]
    plan = decor.calibrate(
        graph,
        decor.Exposure(clip=0.3, steps=STEPS),
        decor.Adversary.eavesdropper(),
        decor.Budget(5.0, 1e-5),
        ratio=30.0,
    )
    loops = [LoopUpdates(task.model, task.loss, plan.exposure, "float64") for _ in range(USERS)]

    def follow(user):
        for offer in iter(loops[user].offers.get, None):
            start = loops[user].flat.module(offer.model)
            model = one_step(task, user, start, offer.rate, how.local_steps)
            loops[user].answer(loops[user].read(model))

    threads = [threading.Thread(target=follow, args=(user,)) for user in range(USERS)]
    for thread in threads:
        thread.start()
    sources = [Bytes(i) for i in range(USERS)]
    try:
        nodes, runs = train_together(
            task, plan, how, tmp_path, random=sources.__getitem__, tasks=loops
        )
    finally:
        for each, thread in zip(loops, threads, strict=True):
            each.offers.put(None)
            thread.join()
    own = [[drawn for drawn in source.drawn if len(drawn) == 32] for source in sources]
    compare(replayed(task, plan, how, nodes, keys, own), runs, 1e-10)
