"""The last bits: in simulations they nearly always show which data were used, in private runs no
more often than a coin.
"""

import low_bits
import numpy as np
import pytest
import torch

import decor
from decor.auditing.attackers import incidence
from decor.auditing.low_bits import LowBits, grid_integers
from decor.auditing.sources import RECIPE
from decor.noise import root
from decor.training.channel import GridChannel, SparseChannel
from decor.training.engine import Setting
from decor.training.mixer import choose_mixer
from decor.training.share import SingleProcess
from decor.training.simulation import Simulation
from decor.training.vectorised import draw_secret

TRIES, WIDE, RATE = 40, 120, 0.5
NEARLY, COIN = 38, 34
"""Right at least so often of 40; a coin is right more often than 34 times once in a million."""
ATTACKS = {
    "float64 dense": ("float64", None, decor.ring(6), low_bits.dense64),
    "float64 average": ("float64", None, decor.ring(6), low_bits.average64),
    "float32 dense": ("float32", None, decor.path(2), low_bits.dense32),
    "float32 edges": ("float32", "edges", decor.ring(4), low_bits.edges32),
}


ON_GRIDS = {"float64 lattice": ("float64", None, decor.ring(4), low_bits.lattice64)}
"""What would be right where noise is on the grid, and the gradient beside it."""


def tasks(users, rng):
    """Two that differ in one record of user 0."""
    shards = [(rng.normal(size=(5, WIDE)), rng.normal(size=5)) for _ in range(users)]
    X, y = shards[0]
    other = X.copy()
    other[0] = rng.normal(size=WIDE)
    return [
        decor.Task(decor.models.linear(WIDE), decor.losses.squared, [first, *shards[1:]])
        for first in ((X, y), (other, y))
    ]


def noisy(graph):
    """One step at (0.5, 1e-6), which a coin beats by little more than a fifth."""
    return decor.calibrate(
        graph, decor.Exposure(1.0, 1), decor.Adversary.eavesdropper(), decor.Budget(0.5, 1e-6)
    )


def silent(plan):
    return decor.NoisePlan(plan.topology, plan.exposure, plan.adversary, 0.0, 0.0)


def trained(task, plan, **engine):
    """(messages of the step, average model), as users receive and keep them."""
    heard = []
    engine = decor.Vectorised(
        **engine, on_messages=lambda step, messages: heard.append(messages[:, 0, 0].numpy().copy())
    )
    run = decor.train(task, plan, learning_rate=RATE, engine=engine)
    average = torch.cat([run.average_model[name].flatten() for name in run.models]).numpy()
    return heard[0], average


def of_edges(bare, plan, seed):
    """The simulator's edges' noise on what is sent: what all others together know."""
    blocks = [torch.from_numpy(bare.copy()).view(len(bare), 1, 1, -1)]
    known = decor.NoisePlan(plan.topology, plan.exposure, plan.adversary, 0.0, plan.sigma_cor)
    channel = SparseChannel(
        choose_mixer(plan.topology, False, torch.float32), [known], [seed], root.by_edges, len(bare)
    )
    channel.noise(blocks, torch.full((1, 1), -RATE), 0)
    return blocks[0].view(len(bare), -1).numpy()


def privately(task, plan, dtype):
    """A private run whose secret an auditor holds: (messages, average model, edges' noise at every
    user).
    """
    heard, settings = [], [Setting(plan, RATE, None)]
    engine = decor.Vectorised(
        seed=None, dtype=dtype, on_messages=lambda _, m: heard.append(m[:, 0, 0].numpy().copy())
    )
    simulation = Simulation(
        engine, SingleProcess(task, None, (), draw_secret(settings)), settings, RECIPE, None
    )
    assert isinstance(simulation.descent.channel, GridChannel)
    (run,), noise = simulation.run(), simulation.descent.channel.source
    edges = noise.grid.unit * noise.edge_integers(0, heard[0].shape[1])
    average = torch.cat([run.average_model[name].flatten() for name in run.models]).numpy()
    return heard[0], average, incidence(task.users, plan.topology.edges) @ edges


def right(name, private):
    """How often of TRIES the attack says which data were used."""
    dtype, noise, graph, attack = (ATTACKS | ON_GRIDS)[name]
    rng, plan, found = np.random.default_rng(7), noisy(graph), 0
    for seed in range(TRIES):
        both = tasks(graph.users, rng)
        bare = [trained(task, silent(plan), dtype=dtype) for task in both]
        truth = int(rng.integers(2))
        if private:
            messages, average, edges = privately(both[truth], plan, dtype)
        else:
            messages, average = trained(both[truth], plan, dtype=dtype, noise=noise, seed=seed)
        if attack is low_bits.average64:
            seen, hypotheses = average, [one for _, one in bare]
        elif attack is low_bits.edges32:
            known = [
                one - RATE * edges if private else of_edges(one, plan, seed) for one, _ in bare
            ]
            seen, hypotheses = messages[0], [one[0].astype(np.float32) for one in known]
        else:
            seen, hypotheses = messages, [one for one, _ in bare]
        score = lambda hypothesis: attack(seen, hypothesis, plan, RATE)  # noqa: E731, B023
        found += low_bits.guess(score, hypotheses, rng) == truth
    return found


@pytest.mark.parametrize("name", ATTACKS)
def test_the_last_bits_of_a_simulation_say_which_data_were_used(name):
    assert right(name, private=False) >= NEARLY


@pytest.mark.parametrize("name", [*ATTACKS, *ON_GRIDS])
def test_the_last_bits_of_a_private_run_say_nothing(name):
    assert TRIES - COIN <= right(name, private=True) <= COIN


# what the audit looks at

UNIT = 3.0 * 2.0**-22


def on_grid(k, dtype, before):
    return (before.astype(np.float64) - (UNIT * k).astype(dtype)).astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_messages_on_the_grid_are_possible_and_give_their_integers_back(dtype):
    rng = np.random.default_rng(0)
    k, before = np.rint(rng.normal(size=(4, 5000)) * 6e5), rng.normal(size=(4, 5000)).astype(dtype)
    messages = on_grid(k, dtype, before)
    found = grid_integers(before, messages, UNIT, lambda steps: on_grid(steps, dtype, before))
    assert found.known.mean() > 0.2 and found.possible[found.known].all()
    assert (found.steps[found.known] == k[found.known]).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("wrong", ["a gradient beside the grid", "floating-point noise"])
def test_messages_off_the_grid_are_not_possible(dtype, wrong):
    rng = np.random.default_rng(0)
    k, before = np.rint(rng.normal(size=(4, 5000)) * 6e5), np.zeros((4, 5000), dtype)
    if wrong == "floating-point noise":
        messages = (UNIT * 6e5 * rng.normal(size=k.shape)).astype(dtype)
    else:
        messages = (on_grid(k, dtype, before) - dtype_of(dtype)(0.3 * UNIT)).astype(dtype)
    found = grid_integers(before, messages, UNIT, lambda steps: on_grid(steps, dtype, before))
    assert found.possible[found.known].mean() < 0.4


def dtype_of(name):
    return np.dtype(name).type


@pytest.mark.parametrize("low", ["uniform", "even", "of the sign"])
def test_low_bits_that_are_not_uniform_or_tell_the_sign_are_detected(low):
    rng = np.random.default_rng(1)
    signs = rng.random((4, 20_000)) < 0.5
    k = np.rint(rng.normal(size=signs.shape) * 6e5).astype(np.int64)
    k = {"uniform": k, "even": 2 * k, "of the sign": 2 * k + signs}[low]
    before = np.zeros(k.shape)
    found = grid_integers(
        before, on_grid(k, "float64", before), UNIT, lambda steps: on_grid(steps, "float64", before)
    )
    low_bits_law = LowBits()
    low_bits_law.add(found, signs)
    possible, bits = low_bits_law.checks(1e-6)
    assert possible.passed and bits.passed == (low == "uniform")
