"""A relay's files and signals; whom it joins is tested in tests/net/test_relay.py."""

import asyncio
import errno
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from command_server import decor_command
from federation_files import KEYS, TEXT
from prometheus_client.parser import text_string_to_metric_families
from trial_federation import until

from decor.errors import InputError, RemoteProtocolError
from decor.federation import relay_service
from decor.federation.federation import Federation
from decor.federation.relay_service import read_admissions
from decor.learning.model_code import hash_source
from decor.net.addresses import Address, free_ports
from decor.net.identity import Identity, line_of
from decor.net.reach import Reach
from decor.net.relay_protocol import relay_id


def write(path, text=TEXT):
    path.write_text(text)
    return Federation.parse(text)


def test_neighbours_of_each_file_are_admitted_by_its_digest(tmp_path):
    first = write(tmp_path / "a.toml")
    second = write(tmp_path / "b.toml", TEXT.replace("steps = ", "steps = 1"))
    admitted = read_admissions([tmp_path])
    assert set(admitted) == {first.digest, second.digest}
    admission = admitted[first.digest]
    assert set(admission.users.values()) == {member.name for member in first.members}
    expected = {
        (first.members[a].public, first.members[b].public)
        for i, j in first.topology.edges.tolist()
        for a, b in ((i, j), (j, i))
    }
    assert admission.pairs == expected
    assert read_admissions([tmp_path / "a.toml"]) == {first.digest: admission}


CODE = """
import pathlib
(pathlib.Path(__file__).parent / "ran").touch()
def model():
    raise RuntimeError
"""


def test_the_models_code_is_never_run_at_a_relay(tmp_path, monkeypatch):
    """Its operator is a third party, and has agreed to no code."""
    (tmp_path / "modelatrelay.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(tmp_path))
    text = TEXT.replace(
        'kind = "logistic"\nfeatures = 30',
        f'code = "modelatrelay:model"\ncode_sha256 = "{hash_source("modelatrelay:model")}"',
    )
    (tmp_path / "a.toml").write_text(text)
    read, admit = [], relay_service._admission
    monkeypatch.setattr(
        relay_service, "_admission", lambda each: (read.append(each), admit(each))[1]
    )
    admitted = read_admissions([tmp_path])
    (federation,) = read
    assert set(admitted) == {federation.digest}
    # nor could anything that the relay comes to ask of the file run it
    with pytest.raises(InputError, match="its code is not run"):
        _ = federation.parameters
    assert not (tmp_path / "ran").exists() and "modelatrelay" not in sys.modules


def relayed_text(*hosts):
    """A federation's file whose users are met at relays of these hosts."""
    federation = Federation.parse(TEXT)
    places = " ".join(f"relay://{host}:7500" for host in hosts)
    users = tuple(replace(member, address=places) for member in federation.members)
    return replace(federation, members=users).to_toml()


def test_a_relay_is_the_one_that_the_file_names(tmp_path):
    federation = write(tmp_path / "a.toml", relayed_text("one.example.org"))
    admission = read_admissions([tmp_path])[federation.digest]
    assert admission.relays == {relay_id(Address("ONE.example.org", 7500, is_relay=True))}


def test_where_a_file_names_several_relays_each_must_know_its_own_address(tmp_path):
    write(tmp_path / "a.toml", relayed_text("one.example.org", "two.example.org"))
    (port,) = free_ports(1)
    command = [*decor_command(), "relay", "a.toml", "--listen", f"127.0.0.1:{port}"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2 and "name 2 relays; say which one this is: --address" in done.stderr
    command += ["--address", "two.example.org:7500"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, cwd=tmp_path) as relay:
        try:
            assert b"event=admits" in relay.stderr.readline()
        finally:
            relay.kill()


def test_a_folder_without_files_and_a_file_that_is_none_are_refused(tmp_path):
    with pytest.raises(InputError, match="holds no federation file"):
        read_admissions([tmp_path])
    (tmp_path / "x.toml").write_text("nothing")
    with pytest.raises(InputError, match=r"x\.toml"):
        read_admissions([tmp_path])


def test_files_are_read_again_on_a_signal_and_a_wrong_one_changes_nothing(tmp_path):
    folder = tmp_path / "files"
    folder.mkdir()
    write(folder / "a.toml")
    name = Federation.parse(TEXT).name
    (port,) = free_ports(1)
    log = tmp_path / "log"
    command = [*decor_command(), "relay", str(folder), "--log", str(log)]
    with subprocess.Popen([*command, "--listen", f"127.0.0.1:{port}"]) as relay:

        def lines():
            return log.read_text().splitlines() if log.exists() else []

        try:
            until(lambda: len(lines()) == 1, "the start")
            write(folder / "b.toml", TEXT.replace(f'"{name}"', '"another"', 1))
            os.kill(relay.pid, signal.SIGHUP)
            until(lambda: len(lines()) == 2, "the second reading")
            (folder / "b.toml").write_text("nothing")
            os.kill(relay.pid, signal.SIGHUP)
            until(lambda: len(lines()) == 3, "the third reading")
            os.kill(relay.pid, signal.SIGTERM)
            assert relay.wait(240) == 130
        finally:
            relay.kill()
    first, second, third, last = lines()
    assert f"federations={name} " in first and f'federations="another, {name}"' in second
    assert 'event="files not read again"' in third and "b.toml" in third
    assert "event=stopped" in last


def test_a_log_that_was_renamed_is_begun_anew_and_no_line_is_lost(tmp_path):
    folder, log, old = tmp_path / "files", tmp_path / "log", tmp_path / "log.1"
    folder.mkdir()
    write(folder / "a.toml")
    (port,) = free_ports(1)
    command = [*decor_command(), "relay", str(folder), "--log", str(log)]
    with subprocess.Popen([*command, "--listen", f"127.0.0.1:{port}"]) as relay:
        try:
            until(lambda: log.exists() and "event=admits" in log.read_text(), "the start")
            before = log.read_text()
            log.rename(old)
            os.kill(relay.pid, signal.SIGHUP)
            until(lambda: log.exists() and "event=admits" in log.read_text(), "a new log")
            os.kill(relay.pid, signal.SIGTERM)
            assert relay.wait(240) == 130
        finally:
            relay.kill()
    assert old.read_text() == before and "event=stopped" in log.read_text()


@pytest.mark.parametrize("to_file", [True, False], ids=["file", "standard error"])
def test_a_log_in_json_has_an_object_in_each_line_also_after_a_hangup(tmp_path, to_file):
    write(tmp_path / "a.toml")
    (port,) = free_ports(1)
    listen, log = f"127.0.0.1:{port}", tmp_path / "log"
    command = [*decor_command(), "relay", "a.toml", "--listen", listen]
    command += ["--log-format", "json", *(["--log", str(log)] if to_file else [])]
    errors = tmp_path / "errors"
    written = log if to_file else errors

    def lines():
        text = written.read_text() if written.exists() else ""
        # the command's own last word, on standard error, is no event
        events = [line for line in text.splitlines() if line != "decor: interrupted"]
        return [json.loads(line) for line in events]

    with (
        errors.open("w") as to,
        subprocess.Popen(command, stderr=to, cwd=tmp_path) as relay,
    ):
        try:
            until(lambda: len(lines()) == 1, "the start")
            os.kill(relay.pid, signal.SIGHUP)
            until(lambda: len(lines()) == 2, "the second reading")
            os.kill(relay.pid, signal.SIGTERM)
            assert relay.wait(240) == 130
        finally:
            relay.kill()
    first, second, last = lines()
    assert first.pop("time") <= second.pop("time")
    facts = {"federations": Federation.parse(TEXT).name, "at": listen}
    assert first == second == {"user": "relay", "event": "admits", **facts}
    assert (last["user"], last["event"], last["why"]) == ("relay", "stopped", "by its operator")


def open_if_read(pipe):
    """The end for writing of a pipe, once a process reads it."""
    try:
        return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    except OSError as problem:
        assert problem.errno == errno.ENXIO
        return None


def test_a_hangup_does_not_end_a_relay_that_is_still_starting(tmp_path):
    file = tmp_path / "a.toml"
    # a relay that reads it goes no further until it is written
    os.mkfifo(file)
    (port,) = free_ports(1)
    command = [*decor_command(), "relay", str(file)]
    command += ["--listen", f"127.0.0.1:{port}"]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as relay:
        try:
            pipe = until(lambda: open_if_read(file), "a relay that reads its file")
            os.kill(relay.pid, signal.SIGHUP)
            file.unlink()
            write(file, TEXT.replace('"heart"', '"another"', 1))
            os.write(pipe, TEXT.encode())
            os.close(pipe)
            # what it was told to read meanwhile is read as well
            assert b"event=admits federations=another " in relay.stderr.readline()
        finally:
            relay.kill()


def test_a_relay_that_runs_has_loaded_nothing_that_trains(tmp_path):
    """A small server: torch alone would take three times the memory of all the rest."""
    write(tmp_path / "a.toml")
    (port,) = free_ports(1)
    command = [*decor_command(), "relay", "a.toml", "--listen", f"127.0.0.1:{port}"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, cwd=tmp_path) as relay:
        try:
            assert b"event=admits" in relay.stderr.readline()
            assert "libtorch" not in Path(f"/proc/{relay.pid}/maps").read_text()
        finally:
            relay.kill()


def test_without_a_file_for_its_log_a_hangup_makes_none(tmp_path):
    write(tmp_path / "a.toml")
    (port,) = free_ports(1)
    command = [*decor_command(), "relay", "a.toml", "--listen", f"127.0.0.1:{port}"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, cwd=tmp_path) as relay:
        try:
            assert b"event=admits" in relay.stderr.readline()
            os.kill(relay.pid, signal.SIGHUP)
            assert b"event=admits" in relay.stderr.readline()
        finally:
            relay.kill()
    assert [each.name for each in tmp_path.iterdir()] == ["a.toml"]


def federation_of(keys):
    """The text of a federation whose first users have these keys."""
    text = TEXT
    for old, identity in zip(KEYS, keys, strict=False):
        text = text.replace(old, line_of(identity.public))
    return text


@contextmanager
def watched_relay(folder):
    """A relay with metrics: where users call it, and where it is asked."""
    port, metrics = free_ports(2)
    command = [*decor_command(), "relay", str(folder), "--metrics", str(metrics)]
    command += ["--address", f"127.0.0.1:{port}"]
    with subprocess.Popen([*command, "--listen", f"127.0.0.1:{port}"]) as relay:
        try:
            until(lambda: is_up(port), "the relay")
            yield port, metrics
        finally:
            relay.kill()


def is_up(port):
    try:
        socket.create_connection(("127.0.0.1", port), timeout=60).close()
    except ConnectionRefusedError:
        return False
    return True


def fetch(port, page):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{page}", timeout=60) as answer:
        return answer.read().decode()


def samples(port):
    """(name, values of labels) -> value."""
    return {
        (sample.name.removeprefix("decor_relay_"), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(fetch(port, "/metrics"))
        for sample in family.samples
    }


def test_a_relay_counts_connections_pairs_bytes_and_refusals(tmp_path):
    keys = [Identity.new() for _ in range(2)]
    federation = write(tmp_path / "a.toml", federation_of(keys))

    async def use(port, metrics):
        loop, relay = asyncio.get_running_loop(), Address("127.0.0.1", port, is_relay=True)

        def meet(own, other, digest=federation.digest):
            return Reach(digest).meet(relay, own.key, other.public, None, lambda: None)

        async def reached(*name, value):
            async with asyncio.timeout(180):
                while (await asyncio.to_thread(samples, metrics))[name] != value:
                    await asyncio.sleep(0.05)

        with pytest.raises(RemoteProtocolError):
            await meet(*keys, digest=bytes(32))
        waiting = asyncio.create_task(meet(*keys))
        await reached("waiting_connections", value=1)
        with await meet(keys[1], keys[0]) as two, await waiting as one:
            for sender, receiver in ((one, two), (two, one)):
                await loop.sock_sendall(sender, bytes(1000))
                got = 0
                while got < 1000:
                    got += len(await loop.sock_recv(receiver, 1000))
            await reached("joined_pairs", value=1)
            # the one that was refused has ended
            await reached("open_connections", value=2)
            found = await asyncio.to_thread(samples, metrics)
        await reached("joined_pairs", value=0)
        await reached("open_connections", value=0)
        return found

    with watched_relay(tmp_path) as (port, metrics):
        found = asyncio.run(use(port, metrics))
        assert fetch(metrics, "/healthz") == "alive\n" and fetch(metrics, "/readyz") == "ready\n"
        assert json.loads(fetch(metrics, "/status"))["passed_bytes"] == 2000
        text, status = fetch(metrics, "/metrics"), fetch(metrics, "/status")
    assert found["passed_bytes_total",] == 2000 and found["joins_total",] == 1
    # one to see that it is up, one refused, two joined
    assert found["accepted_connections_total",] == 4 and found["waiting_connections",] == 0
    refused = {key[1]: n for key, n in found.items() if key[0] == "refusals_total" and n}
    assert refused == {"unknown_federation": 1} and found["federations",] == 1
    page = (Path(__file__).parents[2] / "docs" / "deploy.md").read_text()
    listed = re.findall(r"^\| `(decor_relay_\w+)", page, flags=re.M)
    served = re.findall(r"^# TYPE (\w+)", text, flags=re.M)
    assert sorted([*listed, "decor_build_info"]) == sorted(served)
    # whom it serves is not for everyone who can reach the port
    for member in federation.members:
        for known in (member.name, member.public.hex(), line_of(member.public), federation.name):
            assert known not in text + status
    if shutil.which("promtool") is not None:
        subprocess.run(["promtool", "check", "metrics"], input=text.encode(), check=True)
