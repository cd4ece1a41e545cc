"""Mixers choose by the graph, and their threads survive a fork."""

import subprocess
import sys

import pytest
import torch

import decor
from decor.graph.gossip import Gossip
from decor.training import mixer


@pytest.mark.parametrize(
    "topology",
    [decor.ring(5), decor.star(9), decor.complete(4), decor.torus(9, 8), decor.complete(70)],
    ids=repr,
)
@pytest.mark.parametrize("rounds", [0, 1, 3])
def test_every_mixer_multiplies_by_the_gossip_matrix(topology, rounds):
    x = torch.randn(topology.users, 2, 3, 4, generator=torch.Generator().manual_seed(0)).double()
    gossip = Gossip(rounds, False)
    P = torch.from_numpy(gossip.matrix(topology))
    chosen = mixer.choose_mixer(topology, False, torch.float64)
    (mixed,) = chosen.mix([x.clone()], gossip)
    assert torch.allclose(mixed.flatten(1), P @ x.flatten(1), atol=1e-12)
    server = mixer.choose_mixer(topology, True, torch.float64)
    (mixed,) = server.mix([x.clone()], gossip)
    assert torch.allclose(mixed, x.mean(0).expand_as(x) if rounds else x, atol=1e-12)


def test_a_fork_trains_on_threads_of_its_own():
    """A forked child has none of its parent's threads, and must not wait for them."""
    code = (
        "import os, sys\n"
        "from decor.training.mixer import run_on_columns\n"
        "run_on_columns(2, 10**5, lambda left, right: None)\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    run_on_columns(2, 10**5, lambda left, right: None)\n"
        "    os._exit(7)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    assert subprocess.run([sys.executable, "-W", "ignore", "-c", code], timeout=240).returncode == 7
