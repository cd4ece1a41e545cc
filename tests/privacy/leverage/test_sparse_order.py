"""The order is right if the inverse is (test_sparse_inverse.py); here, where the core begins."""

import numpy as np
import pytest

from decor.errors import CannotBound
from decor.privacy.leverage import sparse_order
from decor.privacy.leverage.network import Network
from decor.privacy.leverage.sparse_inverse import diagonal
from decor.privacy.leverage.sparse_order import analyse

from .test_sparse_inverse import MEDIUM, edges_of, network_of


def test_a_hub_waits_for_the_core_even_if_nothing_else_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sparse_order, "_CORE_SHARE", 1.0)
    analysis = analyse(len(MEDIUM["hub"]), edges_of(MEDIUM["hub"]))
    assert analysis.core == 1
    assert analysis.order[-1] == max(MEDIUM["hub"], key=MEDIUM["hub"].degree)


@pytest.mark.parametrize("share", [0.05, 0.2, 0.7, 1.0])
def test_result_does_not_depend_on_where_the_core_begins(
    share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = network_of(MEDIUM["torus"], ratio=1e8, spread=4)
    expected, _ = diagonal(network)
    monkeypatch.setattr(sparse_order, "_CORE_SHARE", share)
    np.testing.assert_allclose(diagonal(network)[0], expected, rtol=1e-13)


def test_a_core_too_large_for_memory_is_refused_before_it_is_allocated() -> None:
    nodes = 60_000
    rng = np.random.default_rng(0)
    rings = [(cycle := rng.permutation(nodes), np.roll(cycle, 1)) for _ in range(2)]
    edges = np.unique(np.sort(np.column_stack(np.concatenate(rings, axis=1)), axis=1), axis=0)
    with pytest.raises(CannotBound, match=f"{nodes} nodes .* at most {sparse_order.CORE_LIMIT}"):
        diagonal(Network(np.ones(nodes), edges, np.ones(len(edges))))
