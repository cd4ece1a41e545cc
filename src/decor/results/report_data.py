"""The data of a report, from which the page, the figures and the terminal table are made.

`Report.to_json` is the file format "decor-report-1": report.json of a comparison, and one list of
outcomes for each file outcomes/*.json. In JSON an infinite epsilon is "inf", and a value that does
not exist (a seed that diverged) is null.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

from decor.errors import InputError
from decor.graph.topology import Topology

from .audit_summary import AuditSummary
from .graph_layout import places
from .json_dataclass import Epsilon, JsonRecord, Settings, from_json, wrong_value
from .signing import Signing

FORMAT = "decor-report-1"
MAX_DRAWN_USERS = 1500
"""Above this many users a graph is shown as the distribution of epsilons instead."""
MAX_DRAWN_EDGES = 20_000

MethodKind = Literal["decor", "central", "local", "none"]
"""DECOR, one of its two baselines (central DP, local DP), or training without privacy."""

NoiseOrigin = Literal["seed", "secret", "peers"]
"""Where the noise came from: a known seed (a simulation), a secret seed, or each peer's secrets.

Without a known seed the `seeds` of an outcome only number its runs.
"""

GridEnd = Literal["smallest", "largest"]
"""The end of the grid of learning rates at which the best one was found."""

Seeds = tuple[float | None, ...]
"""One value for each seed; None where the run diverged."""


@dataclass(frozen=True)
class Metric(JsonRecord):
    """What was measured; values of a metric in percent are stored as fractions of 1."""

    name: str
    label: str
    better: Literal["higher", "lower"]
    percent: bool = False

    optional_keys: ClassVar = frozenset({"percent"})

    @property
    def scale(self) -> float:
        """The factor from a stored value to the value that is shown."""
        return 100.0 if self.percent else 1.0

    @property
    def unit(self) -> str:
        return "%" if self.percent else ""

    @property
    def heading(self) -> str:
        """The name of a column or of an axis."""
        return f"{self.label}, %" if self.percent else self.label


@dataclass(frozen=True)
class Method(JsonRecord):
    """One of the compared methods; `graph` is the name of a `GraphDrawing` of the report."""

    name: str
    kind: MethodKind
    graph: str | None = None
    sentence: str = ""


@dataclass(frozen=True)
class SigmaRange(JsonRecord):
    """The smallest and the largest sigma of a plan whose edges or users differ."""

    low: float
    high: float


@dataclass(frozen=True)
class AdversaryEpsilon(JsonRecord):
    """Epsilon of the most exposed user against one adversary; an upper bound unless `exact`."""

    adversary: str
    epsilon: Epsilon
    exact: bool = True
    worst_user: int | None = None


@dataclass(frozen=True)
class Curve(JsonRecord):
    """Metrics over the steps: for each metric one row of values for each seed."""

    steps: tuple[float, ...]
    rows: dict[str, tuple[Seeds, ...]]

    # in JSON the steps stand among the metrics, under the name "step"
    def to_json(self) -> dict[str, Any]:
        rows = {name: [list(row) for row in rows] for name, rows in self.rows.items()}
        return {"step": list(self.steps), **rows}

    @classmethod
    def from_json(cls, value: object, where: str = "curve") -> Self:
        if not isinstance(value, dict):
            raise wrong_value(where, value, "an object")
        steps = from_json(tuple[float, ...], value.get("step"), f"{where}.step")
        rows = {name: item for name, item in value.items() if name != "step"}
        return cls(steps, from_json(dict[str, tuple[Seeds, ...]], rows, where))


@dataclass(frozen=True, kw_only=True)
class Outcome(JsonRecord):
    """What one method reached with one budget, and what it guarantees.

    Attributes:
        method: The name of the method.
        epsilon: The budget, the same number for all methods that are compared; None: no privacy.
        delta: The failure probability of the guarantee.
        noise: Where the noise came from.
        simulated: Whether the noise can be subtracted, because its seed is known.
        seeds: One seed for each run.
        learning_rate: The learning rate of all runs.
        clip: The clipping threshold; None where gradients are not clipped.
        sigma_cdp: The noise of each user.
        sigma_cor: The noise of each edge.
        steps: The smallest number of steps that a run took.
        planned_steps: The number of steps of the plan.
        stopped: Why a run ended early.
        final: The last value of each metric.
        curve: The metrics over the steps.
        guarantee: The guarantee as a sentence.
        per_user_epsilon: One epsilon for each user of the method's graph.
        adversaries: Epsilon against each adversary.
        spent: The epsilon that the plan really costs, which may be below the budget.
        edge: Set where the learning rate is at an end of its grid, so a better one may exist.
    """

    method: str
    epsilon: Epsilon | None = None
    delta: float | None = None
    noise: NoiseOrigin = "seed"
    simulated: bool | None = None
    seeds: tuple[int, ...]
    learning_rate: float | None = None
    clip: float | None = None
    sigma_cdp: float | SigmaRange | None = None
    sigma_cor: float | SigmaRange | None = None
    steps: int | None = None
    planned_steps: int | None = None
    stopped: str | None = None
    final: dict[str, Seeds]
    curve: Curve | None = None
    guarantee: str | None = None
    per_user_epsilon: tuple[Epsilon, ...] | None = None
    adversaries: tuple[AdversaryEpsilon, ...] = ()
    spent: Epsilon | None = None
    edge: GridEnd | None = None

    optional_keys: ClassVar = frozenset({"simulated", "spent"})


@dataclass(frozen=True)
class GraphDrawing(JsonRecord):
    """A graph, with the places of its users and its edges where it is small enough to draw."""

    name: str
    description: str = ""
    users: int | None = None
    places: tuple[tuple[float, float], ...] | None = None
    labels: tuple[str, ...] | None = None
    edges: tuple[tuple[int, int], ...] | None = None

    optional_keys: ClassVar = frozenset({"places", "labels", "edges"})

    @classmethod
    def of_topology(cls, topology: Topology, name: str) -> GraphDrawing:
        """Lays out a topology; a large one has no places, or places without edges."""
        users = topology.users
        # a layout of thousands of users takes minutes, and shows only a cloud
        if users > MAX_DRAWN_USERS:
            return cls(name, topology.description, users)
        # four digits are a hundredth of a pixel
        drawn = tuple((round(float(x), 4), round(float(y), 4)) for x, y in places(topology))
        labels = tuple(topology.name(user) for user in range(users))
        edges = None
        if topology.edge_count <= MAX_DRAWN_EDGES:
            edges = tuple((int(u), int(v)) for u, v in topology.edges)
        return cls(name, topology.description, users, drawn, labels, edges)

    @property
    def size(self) -> int:
        """The number of users; files may leave it to the number of places."""
        return self.users or len(self.places or ())

    def label(self, user: int) -> str:
        """The name of a user, or its number where the graph is too large to have names."""
        return self.labels[user] if self.labels and user < len(self.labels) else str(user)


@dataclass(frozen=True, kw_only=True)
class Tuning(JsonRecord):
    """How settings were chosen, and the warning that no epsilon counts the choice."""

    tuned: bool = True
    criterion: str = ""
    grid: Settings | None = None
    warning: str = ""


@dataclass(frozen=True, kw_only=True)
class Repeat(JsonRecord):
    """How to repeat the report."""

    command: str = ""
    versions: Settings | None = None
    machine: str | None = None
    seconds: float | None = None
    options: Settings | None = None
    files: Settings | None = None

    optional_keys: ClassVar = frozenset({"machine", "files"})


@dataclass(frozen=True, kw_only=True)
class Report(JsonRecord):
    """All data of a report. `metrics` starts with the main one; `made` is an ISO time.

    `audits` are the saved audits of the runs by name; None where the report is not about runs.
    `base_rate` is the accuracy of always guessing the most frequent class of the test data.
    `signing` is the last section of a report of runs; a comparison promises nothing, and has none.
    """

    title: str
    subtitle: str = ""
    made: str = ""
    metrics: tuple[Metric, ...]
    methods: tuple[Method, ...]
    outcomes: tuple[Outcome, ...]
    graphs: tuple[GraphDrawing, ...] = ()
    tuning: Tuning | None = None
    repeat: Repeat | None = None
    notes: tuple[str, ...] = ()
    audits: tuple[tuple[str, AuditSummary], ...] | None = None
    base_rate: float | None = None
    signing: Signing | None = None

    optional_keys: ClassVar = frozenset({"audits", "base_rate", "signing"})

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT, **super().to_json()}

    @classmethod
    def from_json(cls, value: object, where: str = "") -> Self:
        """Reads report.json of this or an earlier version; audits are not read back.

        Raises:
            InputError: If the file is of another format, or incomplete, or inconsistent.
        """
        found = value.get("format") if isinstance(value, dict) else type(value).__name__
        if not isinstance(value, dict) or found != FORMAT:
            raise InputError(
                f"this is not report data: its format is {found!r} where {FORMAT!r} is needed."
            )
        # audits belong to runs, and are read from their folders (load_audit)
        report = super().from_json({k: v for k, v in value.items() if k != "audits"}, where)
        _check(report)
        return report

    @property
    def epsilons(self) -> list[float]:
        """The budgets, in increasing order."""
        return sorted({o.epsilon for o in self.outcomes if o.epsilon is not None})

    @property
    def only_peers(self) -> bool:
        """Whether all runs were made by real peers, which have no seeds."""
        return all(outcome.noise == "peers" for outcome in self.outcomes)

    def kind(self, method: str) -> MethodKind:
        # always found: _check refuses outcomes of methods that are not listed
        return next(m.kind for m in self.methods if m.name == method)

    def outcome(self, method: str, epsilon: float | None) -> Outcome | None:
        """The outcome of a method at a budget; without privacy it is the same at every budget."""
        own = {o.epsilon: o for o in self.outcomes if o.method == method}
        # the budget's own outcome first
        return own.get(epsilon) or own.get(None)

    def graph(self, method: str) -> GraphDrawing | None:
        """The graph of a method, if the report has it."""
        wanted = next((m.graph for m in self.methods if m.name == method), None)
        return next((g for g in self.graphs if g.name == wanted), None)

    def metric(self, name: str) -> Metric:
        """The metric of this name; InputError lists the metrics where there is none."""
        for metric in self.metrics:
            if metric.name == name:
                return metric
        names = ", ".join(metric.name for metric in self.metrics)
        raise InputError(f"there is no metric {name!r}: choose from {names}.")

    @property
    def first_guarantee(self) -> Outcome | None:
        """The outcome whose guarantee is shown first: DECOR's, where there is one."""
        private = [outcome for outcome in self.outcomes if outcome.guarantee]
        # stable: among methods of one kind the first of the report comes first
        private.sort(key=lambda outcome: self.kind(outcome.method) != "decor")
        return private[0] if private else None


def _check(report: Report) -> None:
    """Refuses a file whose parts do not fit together, before anything is drawn from it."""
    if not report.title.strip():
        raise wrong_value("title", report.title, "text")
    for part in ("metrics", "methods", "outcomes"):
        if not getattr(report, part):
            raise wrong_value(part, [], "a list with at least one entry")
    for part in ("metrics", "methods", "graphs"):
        _check_unique([entry.name for entry in getattr(report, part)], f"{part}[].name")
    # a method with a budget is one panel of the page, and one row to choose
    _check_unique([(o.method, o.epsilon) for o in report.outcomes], "outcomes[].epsilon")
    # graphs before outcomes, whose numbers of users are compared with them
    for k, graph in enumerate(report.graphs):
        _check_graph(graph, f"graphs[{k}]")
    graphs, methods = [g.name for g in report.graphs], [m.name for m in report.methods]
    for k, method in enumerate(report.methods):
        # a report without graphs may still name them
        if graphs and method.graph is not None and method.graph not in graphs:
            raise wrong_value(f"methods[{k}].graph", method.graph, f"one of {', '.join(graphs)}")
    for k, outcome in enumerate(report.outcomes):
        where = f"outcomes[{k}]"
        if outcome.method not in methods:
            raise wrong_value(f"{where}.method", outcome.method, f"one of {', '.join(methods)}")
        _check_outcome(outcome, report.metrics, where)
        users = outcome.per_user_epsilon
        drawing = report.graph(outcome.method)
        if users is not None and drawing is not None:
            _check_length(users, drawing.size, f"{where}.per_user_epsilon", "users")


def _check_graph(graph: GraphDrawing, where: str) -> None:
    if graph.size < 1:
        raise wrong_value(f"{where}.users", graph.users, "the number of users (or their places)")
    for name, values in (("places", graph.places), ("labels", graph.labels)):
        if values is not None:
            _check_length(values, graph.size, f"{where}.{name}", "users")
    for edge in graph.edges or ():
        if not all(0 <= user < graph.size for user in edge):
            raise wrong_value(f"{where}.edges", edge, f"two users from 0 to {graph.size - 1}")


def _check_outcome(outcome: Outcome, metrics: Sequence[Metric], where: str) -> None:
    # figures have epsilon on a logarithmic axis
    if outcome.epsilon is not None and outcome.epsilon <= 0:
        raise wrong_value(f"{where}.epsilon", outcome.epsilon, "a number above 0 (null: none)")
    if not outcome.seeds:
        raise wrong_value(f"{where}.seeds", [], "a list with at least one entry")
    for metric in metrics:
        # other metrics than the common ones may be there, and are not shown
        values = outcome.final.get(metric.name, ())
        _check_length(values, len(outcome.seeds), f"{where}.final.{metric.name}", "seeds")
    curve = outcome.curve or Curve((), {})
    if any(after <= before for before, after in zip(curve.steps, curve.steps[1:], strict=False)):
        raise wrong_value(f"{where}.curve.step", list(curve.steps), "steps that grow")
    for name, rows in curve.rows.items():
        _check_length(rows, len(outcome.seeds), f"{where}.curve.{name}", "seeds")
        for row in rows:
            _check_length(row, len(curve.steps), f"{where}.curve.{name}", "steps")


def _check_length(values: Sequence[object], length: int, where: str, what: str) -> None:
    if len(values) != length:
        raise wrong_value(where, list(values), f"one entry for each of {length} {what}")


def _check_unique(names: Sequence[object], where: str) -> None:
    for name, count in Counter(names).items():
        if count > 1:
            raise wrong_value(where, name, "a name that no other entry has")
