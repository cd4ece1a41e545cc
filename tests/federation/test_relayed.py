"""Federations whose users meet at a relay: real processes, real TLS, and a relay that fails."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import crowd
import numpy as np
import pytest
from crowd import write_crowd
from tampering import Tampering
from trial_federation import PATIENCE, Trial, until

from decor.net.addresses import free_ports
from decor.results.run import Run

SEED = 7
WHOLE = {
    "users": 3,
    "topology": "complete",
    "rounds": 2,
    "quorum": 1.0,
    "timeout": 30.0,
    "momentum": 0.5,
    "dtype": "float64",
    "proxied": False,
}
"""A run whose models do not depend on when and how often its users connect."""


class RelayProcess:
    """`decor relay`, to be killed and started again at the same port."""

    def __init__(self, fork_server, folder, files, port):
        self.fork_server, self.folder = fork_server, folder
        self.arguments = ["relay", *map(str, files), "--listen", f"127.0.0.1:{port}"]
        self.arguments += ["--log", str(folder / "relay.log")]
        self.pid = None

    def start(self):
        known = self.log().count("event=admits")
        out = self.folder / "relay.out"
        self.pid = self.fork_server.start({}, self.arguments, out, out)
        until(lambda: self.log().count("event=admits") > known, "the relay's start")

    def stop(self, number=signal.SIGKILL):
        os.kill(self.pid, number)
        until(lambda: self.fork_server.code(self.pid) is not None, "the relay's end")
        return self.fork_server.code(self.pid)

    def alive(self):
        return self.fork_server.code(self.pid) is None

    def log(self):
        file = self.folder / "relay.log"
        return file.read_text() if file.exists() else ""


@contextmanager
def relayed(folder, fork_server, port=None, through=None, files=(), **options):
    """A trial whose users have nothing but a relay, which runs; with `through` in front of it, and
    `files` of other federations.
    """
    port = port or free_ports(1)[0]
    address = f"relay://127.0.0.1:{through or port}"
    with Trial(folder, fork_server, addresses=lambda name: address, **options) as trial:
        relay = RelayProcess(fork_server, folder, [trial.file, *files], port)
        relay.start()
        try:
            yield trial, relay
        finally:
            with suppress(ProcessLookupError):
                os.kill(relay.pid, signal.SIGKILL)


def final_models(trial):
    """Each user's model at the end of a run that went as planned, without noise left."""
    for name in trial.names:
        code = trial.ended(name)
        assert code == 0, (code, trial.log(name)[-1500:], trial.errors(name)[-1500:])
    runs = [Run.load(trial.path(name, "run")) for name in trial.names]
    return [
        np.concatenate([value.numpy().ravel() for value in run.models.values()]) for run in runs
    ]


def direct(folder, fork_server, steps):
    """The models of the same run without a relay."""
    folder.mkdir()
    with Trial(folder, fork_server, steps=steps, **WHOLE) as trial:
        trial.start(seed=SEED)
        return final_models(trial)


def check_same(found, expected):
    for own, whole in zip(found, expected, strict=True):
        np.testing.assert_allclose(own, whole, rtol=1e-9, atol=1e-9)


def test_users_that_meet_at_a_relay_train_the_same_models(tmp_path, fork_server):
    with relayed(tmp_path, fork_server, steps=6, **WHOLE) as (trial, relay):
        trial.start("bonn", "ulm", seed=SEED)
        trial.logged("bonn", "neighbour=ulm epoch")
        trial.logged("bonn", 'neighbour=kiel why="is not at relay://')
        ways = {each["name"]: each["way"] for each in trial.status("bonn")["neighbours"]}
        assert ways == {"ulm": "relay", "kiel": None}
        trial.start("kiel", seed=SEED)
        found = final_models(trial)
        assert relay.log().count("event=joined") == 3
        assert relay.stop(signal.SIGTERM) == 130
    check_same(found, direct(tmp_path / "direct", fork_server, 6))


def test_a_relay_that_is_killed_and_started_again_costs_time_only(tmp_path, fork_server):
    with relayed(tmp_path, fork_server, steps=40, **WHOLE) as (trial, relay):
        trial.start(seed=SEED, slow=0.02)
        for step in (3, 10):
            trial.reached("bonn", step)
            relay.stop()
            trial.logged("bonn", "event=lost")
            assert trial.status("bonn")["step"] < 40
            relay.start()
        found = final_models(trial)
    check_same(found, direct(tmp_path / "direct", fork_server, 40))


def test_a_relay_that_tampers_with_bytes_causes_nothing_but_delay(tmp_path, fork_server):
    (port,) = free_ports(1)
    with (
        Tampering(port) as tampering,
        relayed(
            tmp_path, fork_server, port, tampering.port, steps=60, **WHOLE | {"timeout": 3.0}
        ) as (trial, _),
    ):
        # bytes that are lost before a connection is open are noticed by a timeout only
        shorter = {"transport.HANDSHAKE_SECONDS": 3.0, "relay_protocol.WAIT_SECONDS": 1.0}
        trial.start(seed=SEED, slow=0.02, seconds=shorter)
        for how in ("delay", "corrupt", "drop", "replay", "reorder"):
            trial.moving("bonn")
            known, tampering.how = tampering.pieces, how
            until(lambda known=known: tampering.pieces > known + 5, how)
            time.sleep(0.5)
            tampering.how = None
        assert trial.alive("bonn"), "all of it happened during the run"
        found = final_models(trial)
        logs = "".join(map(trial.log, trial.names)) + "".join(map(trial.errors, trial.names))
        assert "Traceback" not in logs and "noise does not cancel" not in logs
    check_same(found, direct(tmp_path / "direct", fork_server, 60))


def test_a_thousand_idle_and_two_hundred_hostile_connections_change_nothing(tmp_path, fork_server):
    (port,) = free_ports(1)
    file = write_crowd(tmp_path, port)
    command = [sys.executable, crowd.__file__, str(tmp_path), str(port), "--hostile", "200"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with relayed(tmp_path, fork_server, port, files=[file], steps=30, **WHOLE) as (trial, relay):
        with subprocess.Popen(command, **pipes, text=True) as others:
            try:
                assert others.stdout.readline() == "ready\n"
                trial.start(seed=SEED)
                found = final_models(trial)
                counts = json.loads(others.communicate("", PATIENCE)[0])
            finally:
                others.kill()
        assert relay.alive()
    assert "event=lost" not in "".join(map(trial.log, trial.names))
    # they were there, and did what they could
    assert counts.pop("idle_lost", 0) == 0 and len(counts) == 9
    assert sum(counts.values()) > 200, counts
    check_same(found, direct(tmp_path / "direct", fork_server, 30))


def test_a_direct_address_is_preferred_and_the_relay_used_where_it_fails(tmp_path, fork_server):
    """bonn and ulm have both; at ulm's direct address nobody answers. kiel has the relay alone."""
    relay_port, of_bonn, of_ulm, elsewhere = free_ports(4)
    met = f"relay://127.0.0.1:{relay_port}"
    addresses = {"bonn": f"127.0.0.1:{of_bonn} {met}", "ulm": f"127.0.0.1:{of_ulm} {met}"}

    with Trial(
        tmp_path, fork_server, addresses=lambda name: addresses.get(name, met), steps=6, **WHOLE
    ) as trial:
        relay = RelayProcess(fork_server, tmp_path, [trial.file], relay_port)
        relay.start()
        trial.start("bonn", seed=SEED)
        # it has opened its port by then; before, the relay would be used
        trial.logged("bonn", 'neighbour=kiel why="is not at relay://')
        trial.start("kiel", seed=SEED)
        trial.start("ulm", seed=SEED, more=["--listen", f"127.0.0.1:{elsewhere}"])
        found = final_models(trial)
        log = relay.log()
        relay.stop()
    assert "bonn" not in log, "it is reached directly"
    assert 'users="kiel and ulm"' in log
    check_same(found, direct(tmp_path / "direct", fork_server, 6))


def test_a_final_model_is_fetched_through_a_relay(tmp_path, fork_server):
    with relayed(tmp_path, fork_server, steps=4, **WHOLE | {"timeout": 2.0}) as (trial, _):
        trial.start(more=["--serve"])
        trial.logged("bonn", "event=finished")
        for name in ("ulm", "kiel"):
            trial.logged(name, "event=finished")
        trial.kill("kiel")
        shutil.rmtree(trial.path("kiel", "run"))
        key, output = trial.path("kiel", "key"), trial.path("kiel", "run")
        code, said = trial.decor(
            "fetch", trial.file, "--identity", key, "--output", output, "--patience", PATIENCE
        )
        assert code == 0, said
        assert Run.load(output).manifest["engine"]["fetched_from"] in ("bonn", "ulm")


@pytest.mark.slow
def test_what_a_relay_costs_can_still_be_measured():
    """`make bench` is not run by CI, and a new default has broken it before."""
    root = Path(__file__).parents[2]
    work = "import relay; users, own = relay.federation_cpu(2, True); assert users > own > 0"
    own = os.environ.get("PYTHONPATH", "")
    paths = os.pathsep.join(map(str, (root / "benchmarks", own or root / "src")))
    done = subprocess.run(
        [sys.executable, "-c", work],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]


# members that cannot reach each other

LINKS = (("bonn", "10.9.1"), ("ulm", "10.9.2"))
RELAY = "10.9.0.1"


def run_ip(*words):
    return subprocess.run(["ip", *words], capture_output=True, text=True, check=True).stdout


@pytest.fixture
def namespaces():
    """Three hosts: bonn and ulm, each with a cable to the relay, which forwards no packets."""
    names = {each: f"decor-{os.getpid()}-{each}" for each in ("bonn", "ulm", "relay")}
    with ExitStack() as stack:
        try:
            for name in names.values():
                run_ip("netns", "add", name)
                stack.callback(subprocess.run, ["ip", "netns", "delete", name])
                run_ip("-n", name, "link", "set", "lo", "up")
            run_ip("-n", names["relay"], "address", "add", RELAY, "dev", "lo")
            for user, net in LINKS:
                ends = (names[user], "cable", f"{net}.2/24"), (names["relay"], user, f"{net}.1/24")
                link_locals = "fe80::2/64", "fe80::1/64"
                run_ip(
                    "link",
                    "add",
                    "cable",
                    "netns",
                    names[user],
                    "type",
                    "veth",
                    "peer",
                    "name",
                    user,
                    "netns",
                    names["relay"],
                )
                for (name, device, address), link_local in zip(ends, link_locals, strict=True):
                    run_ip("-n", name, "address", "add", address, "dev", device)
                    run_ip("-n", name, "address", "add", link_local, "dev", device, "nodad")
                    run_ip("-n", name, "link", "set", device, "up")
                run_ip("-n", names[user], "route", "add", RELAY, "via", f"{net}.1")
        except (OSError, subprocess.CalledProcessError) as problem:
            pytest.skip(f"network namespaces cannot be made here: {problem}")
        yield names


ENDLESS = {
    "users": 2,
    "topology": "complete",
    "steps": 100_000,
    "quorum": 1.0,
    "timeout": 2.0,
    "proxied": False,
}
"""Two users that go on until they are stopped, and not one step without each other."""


def within(name):
    return ["ip", "netns", "exec", name]


def test_members_that_cannot_reach_each_other_train_through_a_relay_that_is_cut_off_for_a_while(
    tmp_path, fork_server, namespaces
):
    place = dict(LINKS)
    with (
        Trial(
            tmp_path,
            fork_server,
            addresses=lambda name: f"relay://{RELAY}:7500",
            **ENDLESS,
        ) as trial,
        ExitStack() as stack,
    ):
        bonn, ulm = namespaces["bonn"], namespaces["ulm"]
        probe = ["ping", "-c", "1", "-W", "1", f"{place['ulm']}.2"]
        with suppress(FileNotFoundError):  # without ping the routes say it
            assert subprocess.run([*within(bonn), *probe], capture_output=True).returncode != 0
        assert place["ulm"] not in run_ip("-n", bonn, "route")
        command = [sys.executable, "-m", "decor", "relay", str(trial.file), "--listen", ":7500"]
        relay = stack.enter_context(
            subprocess.Popen([*within(namespaces["relay"]), *command], stderr=subprocess.PIPE)
        )
        stack.callback(relay.kill)
        trial.start("bonn", real=True, before=within(bonn))
        trial.start("ulm", real=True, before=within(ulm))
        trial.reached("bonn", 5)
        run_ip("-n", namespaces["relay"], "link", "set", "bonn", "down")
        trial.logged("ulm", "event=lost")
        stopped = trial.status("ulm")["step"]
        run_ip("-n", namespaces["relay"], "link", "set", "bonn", "up")
        trial.reached("ulm", stopped + 5)
        check_interrupted(trial)
        assert relay.poll() is None


def check_interrupted(trial):
    """Ends a run that is in its middle, in good order."""
    for name in trial.names:
        trial.signal(name, signal.SIGINT)
    for name in trial.names:
        assert trial.ended(name) == 130, trial.errors(name)
        assert "Traceback" not in trial.log(name) + trial.errors(name)


def test_a_user_is_reached_by_ipv4_and_by_a_link_local_address_of_ipv6(
    tmp_path, fork_server, namespaces
):
    """bonn listens at both, and loses the first in mid-run; its neighbour tries both."""
    both = "10.9.1.2:7400 [fe80::2%bonn]:7400", "127.0.0.1:7400"
    places = dict(zip(("bonn", "ulm"), both, strict=True))
    with Trial(tmp_path, fork_server, addresses=places.get, **ENDLESS) as trial:
        # the interface has another name at the other end
        listen = ["--listen", "10.9.1.2:7400", "--listen", "[fe80::2%cable]:7400"]
        trial.start("bonn", real=True, before=within(namespaces["bonn"]), more=listen)
        trial.start("ulm", real=True, before=within(namespaces["relay"]))
        trial.reached("bonn", 5)
        run_ip("-n", namespaces["bonn"], "address", "delete", "10.9.1.2/24", "dev", "cable")
        trial.logged("ulm", "event=lost")
        stopped = trial.status("ulm")["step"]
        trial.reached("ulm", stopped + 5)
        check_interrupted(trial)


@pytest.mark.skipif(shutil.which("tinyproxy") is None, reason="tinyproxy is not installed")
def test_a_user_whose_only_way_out_is_an_http_proxy_trains(tmp_path, fork_server, namespaces):
    config = tmp_path / "tinyproxy.conf"
    config.write_text("Port 3128\nListen 10.9.2.1\nAllow 10.9.2.2\n")
    os.chmod(tmp_path, 0o755)
    command = [*within(namespaces["relay"]), "tinyproxy", "-d", "-c", str(config)]
    places = {"bonn": "10.9.1.2:7400", "ulm": "10.9.2.2:7400"}
    with (
        Trial(tmp_path, fork_server, addresses=places.get, **ENDLESS) as trial,
        subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as proxy,
    ):
        try:
            trial.start("bonn", real=True, before=within(namespaces["bonn"]))
            trial.start("ulm", real=True, before=within(namespaces["ulm"]))
            trial.logged("ulm", 'neighbour=bonn why="cannot be reached at 10.9.1.2:7400')
            trial.signal("ulm", signal.SIGINT)
            trial.ended("ulm")
            more = ["--proxy", "http://10.9.2.1:3128"]
            trial.start("ulm", real=True, before=within(namespaces["ulm"]), more=more)
            trial.reached("ulm", 5)
            check_interrupted(trial)
        finally:
            proxy.terminate()
