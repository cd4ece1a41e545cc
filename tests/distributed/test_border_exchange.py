"""Which models travel between ranks; what they become is tested in test_process_group.py."""

import numpy as np

import decor
from decor.distributed.border_exchange import Subgraph
from decor.distributed.partition import partition


def test_every_rank_receives_the_ghosts_it_needs_and_nothing_else():
    topology, size = decor.erdos_renyi(60, 0.1, seed=2), 5
    part = partition(topology, size)
    shares = [Subgraph.of_rank(topology, part, rank) for rank in range(size)]
    W = topology.mixing.toarray()
    for rank, share in enumerate(shares):
        neighbours = {int(j) for i in share.users for j in np.flatnonzero(W[i])} - set(
            share.users.tolist()
        )
        assert set(share.ghosts.tolist()) == neighbours
        assert sorted([*share.interior, *share.border]) == list(range(len(share.users)))
        for other, which in share.ghost_slices.items():
            theirs = shares[other]
            sent = theirs.users[theirs.send_rows[rank].numpy()]
            assert sent.tolist() == share.ghosts[which].tolist()
