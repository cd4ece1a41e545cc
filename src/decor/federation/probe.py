"""A dry run of a federation: who reaches whom, how well, and whether all have the same.

Run at all members at the same time. It opens no ledger, agrees on no secret and sends no model, so
it spends nothing. What other members tell is shown, and decides nothing.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import metadata

from decor.errors import InputError
from decor.learning import model_code
from decor.net.connections import Connections, Log
from decor.net.identity import Identity
from decor.net.neighbour import Link, Neighbour
from decor.net.probe_messages import EdgeRow, ProbeHello, Report, Versions, printable
from decor.net.probe_session import FINISHED, Measurement, ProbeSession
from decor.net.reach import Reach
from decor.net.session import Event, Opened, difference
from decor.version import __version__

from .federation import Federation
from .member_graph import neighbours_of

CLOCK_SECONDS = 5.0
"""By which clocks may differ: logs of several members are read side by side."""
_PATIENCE = 4.0
"""The `timeout` of `Connections`: neighbours that are started in these seconds are found soon."""
_REPORT_SECONDS = 1.0
"""Between two reports of this member."""


@dataclass(frozen=True)
class Outcome:
    """What a probe has found.

    Attributes:
        user: This member.
        federation: The name of the federation.
        digest: Of its file, in hexadecimal.
        at: When the probe ended, seconds since 1970.
        reports: By member; this member's own is measured, others' are told.
        problems: Sentences; none: all edges of this member are there, and everything agrees.
        missing: Members that have sent no report.
        edges: All edges of the file, as pairs of members; those of two missing members are in no
            report.
    """

    user: str
    federation: str
    digest: str
    at: float
    reports: dict[str, Report]
    problems: tuple[str, ...]
    missing: tuple[str, ...]
    edges: tuple[tuple[str, str], ...]


def installation(federation: Federation) -> tuple[Versions, str]:
    """What is installed here, and what is wrong with the model's code ("": nothing).

    Nothing of torch or of the model's code is imported.

    Args:
        federation: The federation's file.
    """
    try:
        torch = metadata.version("torch")
    except metadata.PackageNotFoundError:
        torch = None
    code, problem, model = None, "", federation.model
    if model.code is not None:
        try:
            # as text: to import it would be to run it, and its reader may not have agreed
            code = model_code.hash_source(model.code)
            if model.code_sha256 is not None:
                model_code.verify(model.code, model.code_sha256)
        except InputError as wrong:
            problem = str(wrong)
    return Versions(__version__, platform.python_version(), torch, code), problem


@dataclass
class Probe:
    """One member's part in a dry run.

    Attributes:
        federation: The federation's file.
        number: This member, in the order of the file.
        identity: Its key.
        reach: Where to listen, and how to reach neighbours.
        log: Receives events.
        clock: This machine's clock, seconds since 1970.
    """

    federation: Federation
    number: int
    identity: Identity
    reach: Reach
    log: Log
    clock: Callable[[], float] = time.time
    _reports: dict[str, Report] = field(default_factory=dict, init=False)
    _sessions: dict[int, ProbeSession] = field(default_factory=dict, init=False)
    _measured: dict[int, Measurement] = field(default_factory=dict, init=False)
    _nodes: set[int] = field(default_factory=set, init=False)
    _refused: str = field(default="", init=False)

    def __post_init__(self) -> None:
        federation = self.federation
        self._names = [member.name for member in federation.members]
        self._versions, self._own_problem = installation(federation)
        self._hello = ProbeHello(federation.digest, federation.digests, self._versions)
        neighbours = neighbours_of(federation.topology, federation.members, self.number)
        self._links = {each.number: Link(each) for each in neighbours}

    async def run(self, seconds: float) -> Outcome:
        """Probes until all members have told everything, and at most so many seconds."""
        connections = Connections(
            self.identity,
            self._links,
            self.reach,
            _PATIENCE,
            self._log_event,
            self._new_session,
            self._handle_event,
            self._on_lost,
        )
        try:
            connections.open()
            until, told_at = time.monotonic() + seconds, -_REPORT_SECONDS
            while not self._is_complete() and (left := until - time.monotonic()) > 0:
                now = time.monotonic()
                # the last moment is for what could not be reached
                if now >= told_at + _REPORT_SECONDS or self._are_edges_complete():
                    told_at = now
                    self._tell()
                await connections.wait_for_change(min(left, _REPORT_SECONDS))
            self._tell()
            # after the last report: whoever reads this reason does not dial again
            await connections.disconnect_all(FINISHED)
        finally:
            await connections.close()
        return self._outcome()

    def _new_session(self, neighbour: Neighbour) -> ProbeSession:
        def keep(report: Report) -> None:
            self._receive(report, neighbour.number)

        session = ProbeSession(neighbour.name, self._hello, keep, self.clock)
        self._sessions[neighbour.number] = session
        return session

    def _handle_event(self, link: Link, event: Event) -> None:
        number = link.neighbour.number
        if isinstance(event, Opened):
            self._measured[number] = self._sessions[number].measured
            self.log("reached", neighbour=link.neighbour.name, way=self._way(link))
            for report in self._reports.values():
                self._send(link, report)

    def _on_lost(self, link: Link) -> None:
        number = link.neighbour.number
        session = self._sessions[number]
        if session.is_node:
            self._nodes.add(number)
        # neither is dialled again: a node that is at work must not be disturbed
        link.done = session.has_finished or number in self._nodes

    def _log_event(self, event: str, **facts: object) -> None:
        if event == "stranger refused":
            self._refused = f"; a connection was refused here: {facts['why']}"
        self.log(event, **facts)

    def _way(self, link: Link) -> str:
        way = link.conn.way
        # at a relay both ends call
        if self.reach.proxy is None or not (link.neighbour.dials or way == "relay"):
            return way
        return "proxy" if way == "direct" else "proxy, relay"

    # reports

    def _receive(self, report: Report, sender: int) -> None:
        """Keeps a report that is new, and passes it on."""
        known = self._reports.get(report.user)
        own = self._names[self.number]
        # a neighbour may make up members, or tell what this member is said to have found
        if report.user not in self._names or report.user == own:
            return
        # without this a report would go round a ring for ever
        if known is not None and known.version >= report.version:
            return
        self._reports[report.user] = report
        # its owner tells those itself that it has reached
        reached = {row.neighbour for row in report.rows if row.way is not None}
        for number, link in self._links.items():
            name = link.neighbour.name
            if number != sender and name != report.user and name not in reached:
                self._send(link, report)

    def _send(self, link: Link, report: Report) -> None:
        if (connection := link.open_connection) is not None:
            self._sessions[link.neighbour.number].send_report(report)
            connection.flush()

    def _tell(self) -> None:
        """Tells neighbours what this member has found, if there is anything new."""
        name = self._names[self.number]
        known = self._reports.get(name)
        rows = tuple(self._row(link) for link in self._links.values())
        is_complete = self._are_edges_complete()
        # each report goes through the whole graph, so what all know is not said again
        if known is not None and (known.rows, known.is_complete) == (rows, is_complete):
            return
        version = 0 if known is None else known.version + 1
        # a probe that is started again has more to tell than the one before
        version = max(version, int(self.clock()) % 2**30 if known is None else 0)
        report = Report(name, version, is_complete, self._versions, rows)
        self._reports[name] = report
        for link in self._links.values():
            self._send(link, report)

    def _row(self, link: Link) -> EdgeRow:
        measured = self._measured.get(link.neighbour.number)
        problems = self._edge_problems(link)
        problem = printable("; ".join(problems))
        if measured is None:
            return EdgeRow(link.neighbour.name, problem=problem)
        return EdgeRow(
            link.neighbour.name,
            self._way(link),
            measured.round_trip,
            measured.sent,
            measured.received,
            measured.clock,
            problem,
        )

    # what is wrong

    def _are_edges_complete(self) -> bool:
        found = [self._measured.get(number) for number in self._links]
        return all(each is not None and each.is_complete for each in found)

    def _is_complete(self) -> bool:
        reports = [self._reports.get(name) for name in self._names]
        return all(each is not None and each.is_complete for each in reports)

    def _edge_problems(self, link: Link) -> list[str]:
        """What is wrong with an edge, in the words that follow the neighbour's name."""
        number = link.neighbour.number
        if number in self._nodes:
            return ["runs its node; probe before nodes are started, or after they have ended"]
        measured = self._measured.get(number)
        if measured is None or measured.hello is None:
            # one that dials with a wrong key comes as a stranger
            return [link.conn.problem + ("" if link.neighbour.dials else self._refused)]
        problems = []
        if not measured.is_complete:
            problems.append("was reached, but not all measurements came to an end")
        if measured.clock is not None:
            off, way = abs(measured.clock), "ahead of" if measured.clock > 0 else "behind"
            # half of the round trip is the error of the estimate
            if off > CLOCK_SECONDS + (measured.round_trip or 0.0) / 2:
                problems.append(f"has a clock that is {off:.0f} s {way} this one")
        return problems + self._disagreements(measured.hello)

    def _disagreements(self, hello: ProbeHello) -> list[str]:
        """In what a neighbour differs from this member, or from what the file demands."""
        own, theirs, model = self._versions, hello.versions, self.federation.model
        problems = []
        if hello.federation != self._hello.federation:
            where = difference(self._hello.digests, hello.digests)
            problems.append(f"has another file: {where}")
        if theirs.decor != own.decor:
            problems.append(f"runs decor {theirs.decor}, and this member {own.decor}")
        if theirs.torch is None:
            problems.append("has no torch, which its node needs")
        expected = own.code if model.code_sha256 is None else model.code_sha256
        if model.code is not None and theirs.code != expected:
            found = "no code" if theirs.code is None else f"code {model_code.shorten(theirs.code)}"
            problems.append(
                f"has {found} of the model, and {model_code.shorten(expected or '')} is needed"
            )
        return problems

    def _outcome(self) -> Outcome:
        problems = [self._own_problem] if self._own_problem else []
        if self._versions.torch is None:
            problems.append("torch is not installed here, and a node needs it")
        for link in self._links.values():
            problems += [f"{link.neighbour.name} {each}" for each in self._edge_problems(link)]
        return Outcome(
            self._names[self.number],
            self.federation.name,
            self.federation.digest.hex(),
            self.clock(),
            self._reports,
            tuple(problems),
            tuple(name for name in self._names if name not in self._reports),
            tuple(
                (self._names[i], self._names[j]) for i, j in self.federation.topology.edges.tolist()
            ),
        )
