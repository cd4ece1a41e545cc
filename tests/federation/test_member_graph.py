"""The graph of a federation's file."""

import pytest
from federation_files import TEXT, users

import decor
from decor.federation.federation import Federation


def test_edges_may_come_in_any_order_and_direction():
    edges = 'edges = [["bonn", "ulm"], ["ulm", "kiel"], ["kiel", "jena"], ["jena", "bonn"]]'
    other = 'edges = [["jena", "kiel"], ["bonn", "jena"], ["kiel", "ulm"], ["ulm", "bonn"]]'
    one, two = (
        Federation.parse(TEXT.replace('topology = "ring"', text)) for text in (edges, other)
    )
    assert one == two and one.digest == two.digest
    assert (
        one.plan.sigma_cor == Federation.parse(TEXT).plan.sigma_cor
        and one.digest != Federation.parse(TEXT).digest
    )


GRAPHS = [
    ("path", 4),
    ("star", 4),
    ("complete", 4),
    ("hypercube", 4),
    ("grid", 4),
    ("torus", 4),
    ("torus", 9),
    ("path", 2),
]


@pytest.mark.parametrize(("name", "count"), GRAPHS)
def test_every_family_is_found_by_its_name(name, count):
    text = TEXT.replace('"ring"', f'"{name}"').replace(
        users(), users([f"u{k}" for k in range(count)])
    )
    federation = Federation.parse(text.replace('"curious"', '"eavesdropper"'))
    side = {4: 2, 9: 3, 2: 1}[count]
    sizes = {
        "torus": (side, side),
        "grid": (side, side),
        "hypercube": (count.bit_length() - 1,),
    }.get(name, (count,))
    assert federation.topology.edges.tolist() == getattr(decor, name)(*sizes).edges.tolist()
    assert Federation.parse(federation.to_toml()) == federation
