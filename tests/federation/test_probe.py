"""Dry runs of real federations: who sees what, and what is said where something is wrong."""

import asyncio
import json
import sys
from dataclasses import replace

import pytest
from test_relayed import RelayProcess
from trial_federation import Trial, until
from tunnels import serve_tunnels

from decor.federation import probe as probe_module
from decor.federation.federation import Federation
from decor.federation.member_graph import reach_of
from decor.federation.probe import Probe, installation
from decor.net.addresses import free_ports
from decor.net.http_proxy import HttpProxy
from decor.net.identity import Identity

SECONDS = 150
"""For members that are all there: nobody waits so long, but the machine may be busy."""
SHORT = 6
"""For probes that wait for a member in vain."""


class Probes:
    """`decor federation probe` at members of a trial, as real processes."""

    def __init__(self, trial):
        self.trial, self.pids = trial, {}

    def start(self, *names, seconds=SECONDS, file=None, fault=None):
        for name in names:
            words = ["federation", "probe", file or self.trial.file, "--json"]
            words += ["--identity", self.trial.path(name, "key"), "--seconds", seconds]
            places = (self.trial.path(name, f"probe.{each}") for each in ("out", "err"))
            self.pids[name] = self.trial.fork_server.start(
                fault or {}, [str(word) for word in words], *places
            )

    def ended(self, name):
        """(exit code, what was printed as JSON, standard error)."""
        server, pid = self.trial.fork_server, self.pids[name]
        until(lambda: server.code(pid) is not None, f"the end of {name}'s probe")
        errors = self.trial.path(name, "probe.err").read_text()
        assert "Traceback" not in errors, errors
        return server.code(pid), json.loads(self.trial.path(name, "probe.out").read_text()), errors


@pytest.fixture
def trial(tmp_path, fork_server):
    with Trial(tmp_path, fork_server, proxied=False) as trial:
        yield trial


def edges_of(answer):
    return {
        frozenset((name, row["neighbour"])): row
        for name, report in answer["reports"].items()
        for row in report["rows"]
    }


def test_all_members_see_the_whole_table_also_of_two_behind_a_relay(tmp_path, fork_server):
    # bonn and jena, who are neighbours, have the relay alone
    relay_port, *ports = free_ports(3)
    direct = dict(zip(("ulm", "kiel"), ports, strict=True))

    def address(name):
        met = f"relay://127.0.0.1:{relay_port}"
        return f"127.0.0.1:{direct[name]} {met}" if name in direct else met

    with Trial(tmp_path, fork_server, proxied=False, addresses=address) as trial:
        relay = RelayProcess(fork_server, tmp_path, [trial.file], relay_port)
        relay.start()
        probes = Probes(trial)
        probes.start(*trial.names)
        for name in trial.names:
            code, answer, errors = probes.ended(name)
            assert code == 0, (answer, errors)
            assert answer["problems"] == [] and answer["missing"] == [] and answer["agrees"]
            assert set(answer["reports"]) == set(trial.names)
            found = edges_of(answer)
            assert len(found) == 4
            for edge, row in found.items():
                assert row["round_trip"] > 0 and row["sent"] > 0 and row["received"] > 0
                assert abs(row["clock"]) < 5 and row["way"] is not None, edge
            assert found[frozenset(("bonn", "jena"))]["way"] == "relay"
        relay.stop()
        assert not list(tmp_path.glob("*.ledger"))


def test_a_missing_member_is_named_by_its_neighbours_with_the_reason(trial):
    probes = Probes(trial)
    probes.start("bonn", "ulm", "jena", seconds=SHORT)
    code, bonn, _ = probes.ended("bonn")
    assert code == 0 and bonn["missing"] == ["kiel"], "kiel is no neighbour of bonn"
    pairs = trial.federation.topology.edges.tolist()
    assert bonn["edges"] == [[trial.names[i], trial.names[j]] for i, j in pairs]
    told = edges_of(bonn)[frozenset(("ulm", "kiel"))]
    assert told["way"] is None and told["problem"] == "has not been reached yet"
    code, ulm, _ = probes.ended("ulm")
    assert code == 1 and ulm["problems"] == ["kiel has not been reached yet"]
    code, jena, _ = probes.ended("jena")
    assert code == 1 and len(jena["problems"]) == 1
    assert "kiel cannot be reached at 127.0.0.1" in jena["problems"][0]


def test_another_file_is_named_by_its_fields(trial):
    other = replace(trial.federation, training=replace(trial.federation.training, steps=31))
    file = trial.folder / "other.toml"
    file.write_text(other.to_toml())
    probes = Probes(trial)
    probes.start("bonn", "kiel", "jena")
    probes.start("ulm", file=file)
    for name, wrong in (("bonn", "ulm"), ("kiel", "ulm"), ("ulm", "bonn")):
        code, answer, _ = probes.ended(name)
        said = [each for each in answer["problems"] if each.startswith(f"{wrong} has another file")]
        assert code == 1 and "training.steps" in said[0], answer["problems"]
    assert probes.ended("jena")[0] == 0, "its neighbours have its file"


def probe_of(trial, name, proxy=None):
    """A member's probe, for a process of several members."""
    federation, number = trial.federation, trial.names.index(name)
    reach = reach_of(federation.digest, federation.members[number], None, proxy)
    return Probe(federation, number, trial.identities[name], reach, lambda *_, **__: None)


def test_a_member_that_dials_by_a_proxy_says_so(trial):
    async def run_all():
        server, tunnels = await serve_tunnels()
        proxy = HttpProxy("127.0.0.1", server.sockets[0].getsockname()[1])
        probes = [probe_of(trial, name, proxy if name == "jena" else None) for name in trial.names]
        outcomes = await asyncio.gather(*(each.run(SECONDS) for each in probes))
        server.close()
        return outcomes, tunnels

    outcomes, tunnels = asyncio.run(run_all())
    for outcome in outcomes:
        assert outcome.problems == ()
        ways = {
            name: {row.neighbour: row.way for row in report.rows}
            for name, report in outcome.reports.items()
        }
        assert ways["jena"] == {"bonn": "proxy", "kiel": "proxy"}
        assert ways["bonn"] == {"ulm": "direct", "jena": "direct"}
    assert sorted(tunnels) == sorted(trial.ports[name] for name in ("bonn", "kiel"))


def test_a_clock_that_is_wrong_is_told_with_its_error(trial):
    """kiel's clock is ahead: the probe is given another clock, in a process of four members."""
    probes = [probe_of(trial, name) for name in trial.names]
    now = probes[2].clock
    probes[2].clock = lambda: now() + 94

    async def run_all():
        return await asyncio.gather(*(each.run(SECONDS) for each in probes))

    bonn, ulm, kiel, jena = asyncio.run(run_all())
    assert bonn.problems == ()
    for one in (ulm, jena):
        assert one.problems == ("kiel has a clock that is 94 s ahead of this one",)
    assert {each.split(" has ")[1] for each in kiel.problems} == {
        "a clock that is 94 s behind this one"
    }


def test_other_versions_and_a_missing_torch_are_told_by_neighbours_and_at_home(trial, monkeypatch):
    """kiel has another decor and no torch: its probe is given another installation."""
    versions, problem = installation(trial.federation)
    other = replace(versions, decor="0.0.1", torch=None)

    def probe(name):
        found = (other if name == "kiel" else versions), problem
        monkeypatch.setattr(probe_module, "installation", lambda federation: found)
        return probe_of(trial, name)

    probes = [probe(name) for name in trial.names]

    async def run_all():
        return await asyncio.gather(*(each.run(SECONDS) for each in probes))

    bonn, ulm, kiel, jena = asyncio.run(run_all())
    assert bonn.problems == (), "kiel is no neighbour of bonn"
    for one in (ulm, jena):
        assert one.problems == (
            f"kiel runs decor 0.0.1, and this member {versions.decor}",
            "kiel has no torch, which its node needs",
        )
    assert kiel.problems[0] == "torch is not installed here, and a node needs it"
    assert set(kiel.problems[1:]) == {
        f"{name} runs decor {versions.decor}, and this member 0.0.1" for name in ("ulm", "jena")
    }
    # the table of every member shows it
    assert {each.reports["kiel"].versions for each in (bonn, ulm, kiel, jena)} == {other}


def test_a_stranger_cannot_take_part(trial, tmp_path):
    Identity.new().save(tmp_path / "rome.key")
    code, said = trial.decor(
        "federation", "probe", trial.file, "--identity", tmp_path / "rome.key", "--seconds", 1
    )
    assert code == 2 and "key" in said
    # one that claims to be kiel, with its own file: its neighbours have another key of kiel
    forged = Identity.new()
    members = [
        replace(each, public=forged.public) if each.name == "kiel" else each
        for each in trial.federation.members
    ]
    file = trial.folder / "forged.toml"
    file.write_text(replace(trial.federation, members=tuple(members)).to_toml())
    trial.path("kiel", "key").unlink()
    forged.save(trial.path("kiel", "key"))
    probes = Probes(trial)
    probes.start("kiel", file=file, seconds=SHORT)
    probes.start("ulm", "jena", seconds=SHORT)
    wrong = "its certificate is not the one of the key in the federation's file"
    code, jena, _ = probes.ended("jena")  # it dials kiel
    said = [each for each in jena["problems"] if each.startswith("kiel cannot be reached at")]
    assert code == 1 and len(said) == 1 and said[0].endswith(wrong), jena["problems"]
    code, ulm, _ = probes.ended("ulm")  # which kiel dials
    refused = f"kiel has not been reached yet; a connection was refused here: {wrong}"
    assert code == 1 and refused in ulm["problems"], ulm["problems"]
    assert "kiel" in ulm["missing"] and "kiel" in jena["missing"]


def test_a_running_node_is_not_disturbed_by_a_probe(tmp_path, fork_server):
    # a long timeout: neighbours that wait for jena do not give each other up
    with Trial(tmp_path, fork_server, proxied=False, steps=40, quorum=1.0, timeout=60) as trial:
        trial.start("bonn", "ulm", "kiel")
        trial.logged("bonn", "event=connected neighbour=ulm")
        probes = Probes(trial)
        probes.start("jena", seconds=SHORT)
        code, jena, _ = probes.ended("jena")
        assert code == 1
        for neighbour in ("bonn", "kiel"):
            said = f"{neighbour} runs its node; probe before nodes are started"
            assert any(each.startswith(said) for each in jena["problems"]), jena["problems"]
        line = trial.logged("bonn", "neighbour=jena why=.*decor federation probe")
        assert "start its node" in line
        # no quarantine: jena's node is admitted at once, and the run ends as planned
        trial.start("jena")
        for name in trial.names:
            assert trial.ended(name) == 0, trial.log(name)[-1500:]
        assert "broke the rules" not in "".join(map(trial.log, trial.names))
        assert trial.log("bonn").count("event=lost neighbour=ulm") == 0


CODE = """
import pathlib
(pathlib.Path(__file__).parent / "ran").touch()
def model():
    raise RuntimeError
"""


def test_the_models_code_is_compared_and_not_run(trial, tmp_path, monkeypatch):
    (tmp_path / "ownmodel.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(tmp_path))
    model = replace(
        trial.federation.model,
        kind=None,
        features=None,
        classes=None,
        code="ownmodel:model",
        code_sha256="0" * 64,
    )
    federation = replace(trial.federation, model=model, run_code=False)
    versions, problem = installation(federation)
    assert "model.code_sha256" in problem and len(versions.code) == 64
    matching = replace(federation, model=replace(model, code_sha256=versions.code))
    assert installation(matching) == (versions, "")
    assert not (tmp_path / "ran").exists() and "ownmodel" not in sys.modules


def test_versions_are_those_that_are_installed():
    import torch

    import decor

    versions = own_versions()
    assert (versions.decor, versions.torch) == (decor.__version__, torch.__version__)


def own_versions():
    from federation_files import TEXT

    return installation(Federation.parse(TEXT))[0]
