"""DECOR: private decentralised learning, with noise that cancels between neighbours.

Importing this never imports torch: what trains (`Task`, `train`, `tasks`, ...) is loaded when it is first named.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from .errors import (
    BudgetError,
    CannotBound,
    DecorError,
    DivergenceWarning,
    FragileGraphWarning,
    GraphError,
    InputError,
    MissingExtra,
)
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

if TYPE_CHECKING:
    from .auditing.audit import audit
    from .auditing.findings import Audit
    from .engines.process_group import ProcessGroup
    from .engines.sweep import Sweep, Tuned, sweep, tune
    from .engines.training import train
    from .engines.vectorised import Vectorised
    from .federation.peers import Peers
    from .learning import losses, models, schedule, shards, tasks
    from .learning.recipe import Recipe
    from .learning.task import Task
    from .results.run import Run

__version__ = "0.1.0"

_TRAINING = {
    "Audit": "auditing.findings",
    "Peers": "federation.peers",
    "ProcessGroup": "engines.process_group",
    "Recipe": "learning.recipe",
    "Run": "results.run",
    "Sweep": "engines.sweep",
    "Task": "learning.task",
    "Tuned": "engines.sweep",
    "Vectorised": "engines.vectorised",
    "audit": "auditing.audit",
    "losses": "learning",
    "models": "learning",
    "schedule": "learning",
    "shards": "learning",
    "sweep": "engines.sweep",
    "tasks": "learning",
    "train": "engines.training",
    "tune": "engines.sweep",
}
"""Public names that need torch, and where they are."""


def __getattr__(name: str) -> object:
    if name not in _TRAINING:
        raise AttributeError(f"module 'decor' has no attribute {name!r}")
    try:
        room = import_module(f".{_TRAINING[name]}", __name__)
        found = import_module(f".{name}", room.__name__) if _TRAINING[name] == "learning" else getattr(room, name)
    except ModuleNotFoundError as problem:
        extra = {"torch": "train", "safetensors": "train", "cryptography": "all"}.get(str(problem.name).partition(".")[0])
        if extra is not None:
            raise MissingExtra.told(f"decor.{name} needs {problem.name}", extra, problem.name) from None
        raise
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__


__all__ = [
    "Adversary",
    "Audit",
    "Budget",
    "BudgetError",
    "CannotBound",
    "Couples",
    "DecorError",
    "DivergenceWarning",
    "Exposure",
    "FragileGraphWarning",
    "GraphError",
    "Guarantee",
    "InputError",
    "MissingExtra",
    "NoisePlan",
    "Peers",
    "Phases",
    "ProcessGroup",
    "Recipe",
    "Run",
    "Sweep",
    "Task",
    "Topology",
    "Tuned",
    "Vectorised",
    "audit",
    "baselines",
    "calibrate",
    "complete",
    "couples",
    "erdos_renyi",
    "from_edges",
    "from_networkx",
    "grid",
    "hypercube",
    "losses",
    "models",
    "path",
    "random_regular",
    "read",
    "ring",
    "schedule",
    "shards",
    "star",
    "sweep",
    "tasks",
    "theory",
    "torus",
    "train",
    "tune",
    "write",
]
