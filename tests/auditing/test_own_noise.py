"""Plans with own noise per user: every engine sends the planned levels, and faults are found."""

from functools import partial

import numpy as np
import pytest
from small_audits import FEW, failed_checks, reached

import decor
from decor.auditing import peer_source
from decor.federation.peers_engine import split_by_user
from decor.federation.terms import Terms
from decor.training import channel, share

GRAPH = decor.from_edges(6, [(0, 1), (0, 2), (1, 2), (1, 3), (2, 3), (3, 4), (2, 4), (4, 5)])
"""User 5 has one neighbour, who leaves it with nothing but its own noise."""
OWN = (2.0, 3.0, 2.0, 4.0, 3.0, 14.0)


def plan(**exposure):
    made = decor.Exposure(clip=0.7, steps=200, **exposure)
    cor = np.linspace(5.0, 12.0, GRAPH.edge_count)
    return decor.NoisePlan(GRAPH, made, decor.Adversary.colluding(2), OWN, cor)


ENGINES = {
    "simulated": decor.Vectorised(),
    "by edges": decor.Vectorised(noise="edges"),
    "private": decor.Vectorised(seed=None),
    "group": decor.ProcessGroup(),
    "peers": decor.Peers(),
}


@pytest.mark.parametrize("name", ENGINES)
def test_every_attacker_reaches_the_claim_and_never_more(name):
    audit = decor.audit(plan(), engine=ENGINES[name], canaries=FEW, steps=6)
    assert audit.passed, audit.failures
    shares = reached(audit)
    assert {who for _, who in shares} == {"eavesdropper", "curious", "colluding:2", "everyone"}
    # all canaries have one length, which is best for none of the different victims
    assert all(share > 0.7 for share in shares.values()), shares


def swapped(levels):
    """User 5, who needs the most noise, gets user 3's."""
    changed = list(levels)
    changed[3], changed[5] = levels[5], levels[3]
    return type(levels)(changed) if isinstance(levels, tuple) else np.array(changed)


def swap_peers():
    right = Terms.own_multiple
    Terms.own_multiple = lambda self, number: right(self, {3: 5, 5: 3}.get(number, number))


def planted(fault, task):
    fault()
    return split_by_user(task)


@pytest.mark.parametrize("name", ENGINES)
def test_two_users_levels_swapped_are_found(name, monkeypatch):
    beyond, by_edges, beside = channel.beyond_least, channel.root.by_edges, share.own_noise
    match name:
        case "simulated":
            monkeypatch.setattr(channel, "beyond_least", lambda plan: swapped(beyond(plan)))
        case "by edges" | "group":
            monkeypatch.setattr(
                channel.root, "by_edges", lambda n, edges, s, c: by_edges(n, edges, swapped(s), c)
            )
        case "private":
            monkeypatch.setattr(share, "own_noise", lambda m, *rest: beside(swapped(m), *rest))
        case "peers":
            monkeypatch.setattr(peer_source, "split_by_user", partial(planted, swap_peers))
    audit = decor.audit(plan(), engine=ENGINES[name], canaries=FEW, steps=6)
    assert not audit.passed and "covariance" in failed_checks(audit)


def test_examples_are_attacked_too():
    made = plan(unit="example", batch_size=10, records=400)
    audit = decor.audit(made, engine=decor.Vectorised(seed=None), canaries=9_000, steps=8)
    assert audit.passed, audit.failures
    assert all(share > 0.3 for share in reached(audit).values()), reached(audit)
