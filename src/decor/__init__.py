"""DECOR: private decentralised learning, with noise that cancels between neighbours.

Importing this never imports torch.
"""

from .errors import BudgetError, CannotBound, DecorError, FragileGraphWarning, GraphError, InputError
from .graph import (
    Topology,
    complete,
    erdos_renyi,
    from_edges,
    from_networkx,
    grid,
    hypercube,
    path,
    random_regular,
    read,
    ring,
    star,
    torus,
    write,
)
from .privacy import (
    Adversary,
    Budget,
    Couples,
    Exposure,
    Guarantee,
    NoisePlan,
    Phases,
    baselines,
    calibrate,
    couples,
    theory,
)

__version__ = "0.1.0"

__all__ = [
    "Adversary",
    "Budget",
    "BudgetError",
    "CannotBound",
    "Couples",
    "DecorError",
    "Exposure",
    "FragileGraphWarning",
    "GraphError",
    "Guarantee",
    "InputError",
    "NoisePlan",
    "Phases",
    "Topology",
    "baselines",
    "calibrate",
    "complete",
    "couples",
    "erdos_renyi",
    "from_edges",
    "from_networkx",
    "grid",
    "hypercube",
    "path",
    "random_regular",
    "read",
    "ring",
    "star",
    "theory",
    "torus",
    "write",
]
