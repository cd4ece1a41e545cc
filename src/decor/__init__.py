"""DECOR: private decentralised learning, with noise that cancels between neighbours.

Importing this never imports torch: what trains (`Task`, `train`, `tasks`, ...) is loaded when it is
first named.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from decor.errors import (
    BudgetError,
    CannotBound,
    DecorError,
    DivergenceWarning,
    FragileGraphWarning,
    GraphError,
    InputError,
    MissingExtra,
    UnsharedWarning,
)
from decor.graph import (
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
from decor.privacy import (
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
    gossip_for,
    theory,
)
from decor.version import __version__ as __version__

if TYPE_CHECKING:
    from decor.auditing.audit import audit
    from decor.auditing.findings import Audit
    from decor.auditing.function_audit import FunctionAudit, audit_function
    from decor.distributed.process_group import ProcessGroup
    from decor.federation.member import join
    from decor.federation.peers_engine import Peers
    from decor.learning import features, losses, models, optimizer, schedule, shards, tasks
    from decor.learning.columns import (
        CategoryColumn,
        Label,
        NumberColumn,
        PlainColumn,
        Preparation,
    )
    from decor.learning.recipe import Recipe
    from decor.learning.splitting import split
    from decor.learning.task import Task
    from decor.results.comparison import ComparisonResult
    from decor.results.run import Run
    from decor.training.compare import compare
    from decor.training.engine import Moment
    from decor.training.simulate import simulate
    from decor.training.sweep import Sweep, Tuned, sweep, tune
    from decor.training.train import train
    from decor.training.vectorised import Vectorised

_TRAINING = {
    "Audit": "auditing.findings",
    "CategoryColumn": "learning.columns",
    "ComparisonResult": "results.comparison",
    "FunctionAudit": "auditing.function_audit",
    "Label": "learning.columns",
    "Moment": "training.engine",
    "NumberColumn": "learning.columns",
    "Peers": "federation.peers_engine",
    "PlainColumn": "learning.columns",
    "Preparation": "learning.columns",
    "ProcessGroup": "distributed.process_group",
    "Recipe": "learning.recipe",
    "Run": "results.run",
    "Sweep": "training.sweep",
    "Task": "learning.task",
    "Tuned": "training.sweep",
    "Vectorised": "training.vectorised",
    "audit": "auditing.audit",
    "audit_function": "auditing.function_audit",
    "compare": "training.compare",
    "features": "learning",
    "join": "federation.member",
    "losses": "learning",
    "models": "learning",
    "optimizer": "learning",
    "schedule": "learning",
    "shards": "learning",
    "simulate": "training.simulate",
    "split": "learning.splitting",
    "sweep": "training.sweep",
    "tasks": "learning",
    "train": "training.train",
    "tune": "training.sweep",
}
"""Public names that are loaded when they are first named, and where they are."""


def __getattr__(name: str) -> object:
    if name not in _TRAINING:
        raise AttributeError(f"module 'decor' has no attribute {name!r}")
    try:
        room = import_module(f".{_TRAINING[name]}", __name__)
        found = (
            import_module(f".{name}", room.__name__)
            if _TRAINING[name] == "learning"
            else getattr(room, name)
        )
    except ModuleNotFoundError as problem:
        extra = {"torch": "train", "safetensors": "train", "cryptography": "all"}.get(
            str(problem.name).partition(".")[0]
        )
        if extra is not None:
            raise MissingExtra.of(
                f"decor.{name} needs {problem.name}", extra, problem.name
            ) from None
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
    "CategoryColumn",
    "ComparisonResult",
    "Couples",
    "DecorError",
    "DivergenceWarning",
    "Exposure",
    "FragileGraphWarning",
    "FunctionAudit",
    "GraphError",
    "Guarantee",
    "InputError",
    "Label",
    "MissingExtra",
    "Moment",
    "NoisePlan",
    "NumberColumn",
    "Peers",
    "Phases",
    "PlainColumn",
    "Preparation",
    "ProcessGroup",
    "Recipe",
    "Run",
    "Sweep",
    "Task",
    "Topology",
    "Tuned",
    "UnsharedWarning",
    "Vectorised",
    "audit",
    "audit_function",
    "baselines",
    "calibrate",
    "compare",
    "complete",
    "couples",
    "erdos_renyi",
    "features",
    "from_edges",
    "from_networkx",
    "gossip_for",
    "grid",
    "hypercube",
    "join",
    "losses",
    "models",
    "optimizer",
    "path",
    "random_regular",
    "read",
    "ring",
    "schedule",
    "shards",
    "simulate",
    "split",
    "star",
    "sweep",
    "tasks",
    "theory",
    "torus",
    "train",
    "tune",
    "write",
]
