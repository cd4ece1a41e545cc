"""Strangers, scanners and misbehaving neighbours, against real nodes: they are refused by name, and
all other users go on.
"""

import datetime
import re
import shutil
import signal
import socket
import ssl
import struct
import time
import urllib.request
from contextlib import ExitStack, suppress

import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from federation_files import BASES, CHANGES, ELSEWHERE, TEXT
from rogue import Rogue
from trial_federation import PATIENCE, Trial, until

from decor.errors import RemoteProtocolError
from decor.federation.federation import Federation
from decor.net import addresses, transport
from decor.net.edge_keys import NO_KEY
from decor.net.identity import Identity
from decor.net.ledger import Ledger
from decor.net.messages import HEADER, Hello, Model, SignedReceipt, encode
from decor.net.receipts import Receipt
from decor.net.session import Session, SessionConfig

STEPS = 20_000
"""More than a test takes."""
CALLS = {
    "STRANGERS_SECONDS": 0.0,
    "OPENING_SECONDS": 4.0,
    "LONGEST_QUARANTINE": 0.0,
    "CALLS": 1000,
}
"""Of a node that many tests misbehave to, one after the other."""


@pytest.fixture(scope="module")
def running(tmp_path_factory, fork_server):
    """bonn and ulm at work, on a ring of three; a test decides what the third, kiel, does."""
    with Trial(
        tmp_path_factory.mktemp("trial"),
        fork_server,
        3,
        steps=STEPS,
        timeout=1.0,
        patience=0.0,
        pace=0.02,
    ) as trial:
        trial.start("bonn", "ulm", calls=CALLS)
        trial.reached("bonn", 1)
        yield trial
        trial.moving("bonn", "ulm")
        for name in ("bonn", "ulm"):
            trial.signal(name, signal.SIGTERM)
        assert [trial.ended(name) for name in ("bonn", "ulm")] == [130, 130]
        trial.check(codes={"bonn": 130, "ulm": 130})


def model(step, values=None, round_=0, count=5):
    return Model(step, round_, np.zeros(count, np.float32).tobytes() if values is None else values)


DEEDS = {
    "garbage": (lambda r: r.say(b"\xde\xad\xbe\xef" * 50), "sent a frame of an unknown kind"),
    "too much": (
        lambda r: r.say(HEADER.pack(Model.kind, 2**32 - 1)),
        "sent a Model of 4,294,967,295 bytes",
    ),
    "a second hello": (lambda r: r.say(Hello(bytes(32), (), 1, 0)), "sent a Hello while"),
    "another shape": (
        lambda r: r.say(model(r.step(), count=4)),
        "sent a model of 16 bytes instead of 20",
    ),
    "not a number": (
        lambda r: r.say(model(r.step(), np.full(5, np.nan, np.float32).tobytes())),
        "not finite",
    ),
    "infinity": (
        lambda r: r.say(model(r.step(), np.full(5, -np.inf, np.float32).tobytes())),
        "not finite",
    ),
    "a step twice": (
        lambda r: r.say(model(r.step()), model(r.step() - 1)),
        "an old or a repeated one",
    ),
    "a step beyond the run": (
        lambda r: r.say(model(STEPS + 1)),
        f"of step {STEPS + 1}, round 0, which this run does not have",
    ),
    "a round too many": (
        lambda r: r.say(model(r.step(), round_=7)),
        "round 7, which this run does not have",
    ),
    "nothing": (lambda r: None, "was silent for 1 s"),
    "goodbye": (
        lambda r: (r.session.close("tired"), r.say(r.session.outgoing())),
        "said goodbye: tired",
    ),
    "half a message": (
        lambda r: (r.say(encode(model(r.step()))[:-7]), r.line.close()),
        "hung up|reset",
    ),
}


@pytest.mark.parametrize("deed", DEEDS)
def test_a_neighbour_that_misbehaves_is_refused_by_name_and_the_others_go_on(running, deed):
    act, said = DEEDS[deed]
    with Rogue(running).opened() as rogue:
        act(rogue)
        rogue.refused(said)


def test_a_neighbour_that_says_old_steps_is_heard_and_not_believed(running):
    """What is late is counted, and changes nothing."""
    before = running.status("bonn")["late"]
    with Rogue(running).opened() as rogue:
        rogue.say(model(0), model(1))
        until(lambda: running.status("bonn").get("late", 0) == before + 2, "two late messages")
    running.moving("bonn", "ulm")


def test_a_neighbour_that_goes_on_misbehaving_cannot_stop_the_others(running):
    count, end = 0, time.monotonic() + PATIENCE
    # more than once after it was left unanswered for a while
    while count <= 3 and time.monotonic() < end:
        with suppress(OSError, RemoteProtocolError), Rogue(running).opened() as rogue:
            rogue.say(model(rogue.step(), np.full(5, np.nan, np.float32).tobytes()))
            count += 1
            with suppress(OSError):
                while rogue.line.recv(1 << 16):
                    pass
    assert count > 3
    running.moving("bonn", "ulm")


def certificate(identity, first, last):
    """A neighbour's own certificate, with the right key in it."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kiel")])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(identity.key.public_key())
        .serial_number(1)
    )
    made = made.not_valid_before(datetime.datetime(first, 1, 1)).not_valid_after(
        datetime.datetime(last, 1, 1)
    )
    key = identity.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return made.sign(identity.key, None).public_bytes(Encoding.PEM) + key


@pytest.mark.parametrize("who", ["expired", "own", "stranger", "nobody"])
def test_whoever_shows_no_certificate_of_a_neighbour_is_a_stranger(running, who):
    keys, mark = running.identities, len(running.log("bonn"))
    shown = Identity.new() if who == "stranger" else keys["kiel"]
    tls = transport.tls_context(shown, [keys["bonn"].public], server=False)
    if who in ("expired", "own"):
        transport._load(
            tls, certificate(keys["kiel"], *((2000, 2001) if who == "expired" else (2000, 2100)))
        )
    if who == "nobody":
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    # TLS 1.3 tells the caller with its first answer
    with suppress(OSError), Rogue(running, tls=tls) as rogue:
        rogue.line.sendall(rogue.session.outgoing())
        assert rogue.line.recv(1 << 16) == b""
    said = running.logged("bonn", 'event="stranger refused"', after=mark)
    assert re.search(
        "peer did not return a certificate" if who == "nobody" else "certificate is not the one",
        said,
    )
    running.moving("bonn", "ulm")


def test_scanners_are_refused_without_a_trace_in_the_others_work(running):
    mark = len(running.log("bonn"))
    port = running.ports["bonn"]
    for said in (
        b"",
        b"GET / HTTP/1.1\r\nHost: bonn\r\n\r\n",
        b"\x16\x03\x01" + bytes(500),
        b"SSH-2.0-scan\r\n",
        None,
    ):
        with socket.create_connection(("127.0.0.1", port), timeout=60) as line:
            if said is None:  # a reset, as half-open scans leave
                line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                continue
            line.sendall(said)
            line.shutdown(socket.SHUT_WR)
            with suppress(OSError):
                while line.recv(1000):
                    pass

    def count(event):
        return running.log("bonn")[mark:].count(event)

    # three have said what no neighbour says; the others have hung up without a word
    until(lambda: count("stranger refused") >= 3, "three refusals")
    until(lambda: count("it ended before it had identified itself") >= 1, "one that is gone")
    assert "no TLS handshake (http request)" in running.log("bonn")[mark:]
    running.moving("bonn", "ulm")


def memory(pid):
    with open(f"/proc/{pid}/status") as file:
        return int(re.search(r"VmRSS:\s+(\d+) kB", file.read())[1]) * 1024


def test_hundreds_of_idle_connections_keep_no_neighbour_out(running):
    """As many as come back as soon as they are hung up on; a neighbour is connected in a moment all
    the same.
    """
    before = memory(running.pids["bonn"])
    where = ("127.0.0.1", running.ports["bonn"])
    with ExitStack() as stack:
        idle = []
        for _ in range(200):
            idle.append(stack.enter_context(socket.create_connection(where, timeout=60)))
        mark = len(running.log("bonn"))
        # so few tries are over long before an idle handshake times out
        for _ in range(100):
            try:
                with Rogue(running).opened() as rogue:
                    running.logged("bonn", "event=connected neighbour=kiel", after=mark)
                    rogue.session.close("done")
                    break
            # hung up on: a neighbour tries again, and so do they
            except (OSError, RemoteProtocolError):
                for k, line in enumerate(idle):
                    line.setblocking(False)
                    with suppress(BlockingIOError, ConnectionError):
                        if line.recv(1) == b"":
                            line.close()
                            idle[k] = stack.enter_context(
                                socket.create_connection(where, timeout=60)
                            )
        else:
            raise AssertionError("no neighbour gets in")
        assert memory(running.pids["bonn"]) - before < 64 << 20
    running.moving("bonn", "ulm")


def test_a_proof_of_two_messages_goes_from_user_to_user_until_its_own_node_stops(
    tmp_path_factory, fork_server
):
    """On a ring of four bonn learns that kiel has signed two; only ulm can tell kiel."""
    folder = tmp_path_factory.mktemp("proof")
    with Trial(folder, fork_server, 4, steps=STEPS, patience=0.0, pace=0.02) as trial:
        trial.start("bonn", "ulm", "kiel")
        for name in ("bonn", "ulm", "kiel"):
            trial.reached(name, 2)
        signer, number = trial.identities["kiel"].key, trial.names.index("kiel")
        pair = [
            Receipt.sign(signer, trial.federation.digest, number, 0, bytes([k]) * 32)
            for k in range(2)
        ]
        with Rogue(trial, "jena", "bonn").opened() as rogue:
            rogue.say(*map(SignedReceipt, pair))
            assert trial.ended("kiel") == 3
        assert "ulm holds a receipt of this user for a message of step 0" in trial.errors("kiel")
        for name in ("bonn", "ulm"):
            assert trial.log(name).count('"two messages of one step"') == 2
        trial.moving("bonn", "ulm")
        codes = {"kiel": 3, "bonn": 130, "ulm": 130}
        for name in ("bonn", "ulm"):
            trial.signal(name, signal.SIGTERM)
            assert trial.ended(name) == 130
        trial.check(codes=codes)


def test_a_silent_crowd_at_the_metrics_port_leaves_the_node_alone(tmp_path_factory, fork_server):
    """With 64 descriptors: no traceback, few lines of the log, and steps and peers go on."""
    (port,) = addresses.free_ports(1)
    with (
        Trial(
            tmp_path_factory.mktemp("trial"), fork_server, 3, steps=STEPS, patience=0.0, pace=0.02
        ) as trial,
        ExitStack() as stack,
    ):
        trial.start("ulm")
        trial.start("bonn", more=["--metrics", str(port)], descriptors=64, unhandled="patient 7")
        trial.moving("bonn", "ulm")
        mark = len(trial.log("bonn"))
        silent = []
        for _ in range(300):
            one = socket.create_connection(("127.0.0.1", port), timeout=60)
            silent.append(stack.enter_context(one))
        # hung up on, to the last sixteen
        assert [one.recv(1) for one in silent[:280]] == [b""] * 280
        trial.moving("bonn", "ulm")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            assert b"decor_step" in answer.read()
        with Rogue(trial).opened() as rogue:
            trial.logged("bonn", "event=connected neighbour=kiel", after=mark)
            rogue.session.close("done")
        trial.moving("bonn", "ulm")
        lines = trial.log("bonn")[mark:].splitlines()
        closed = [line for line in lines if "the metrics port" in line]
        assert 1 <= len(closed) <= 20 and 'event="connection closed"' in closed[0]
        assert len(lines) < 40
        # what nothing handled is one line, and does not repeat data
        unhandled = trial.logged("bonn", 'event="an error that nothing handled"')
        assert unhandled.endswith("why=ValueError so_far=1")
        for text in (trial.log("bonn"), trial.errors("bonn")):
            assert "patient 7" not in text and "Traceback" not in text
        for name in ("bonn", "ulm"):
            trial.signal(name, signal.SIGTERM)
        assert [trial.ended(name) for name in ("bonn", "ulm")] == [130, 130]
        assert trial.errors("bonn").count("\n") < 10


@pytest.mark.skipif(shutil.which("faketime") is None, reason="faketime is not installed")
@pytest.mark.parametrize("wrong", ["bonn", "ulm"])
def test_a_wrong_clock_is_named_by_the_machine_that_has_it(tmp_path_factory, fork_server, wrong):
    """bonn listens, ulm dials; the one with the right clock calls the other no stranger."""
    with Trial(
        tmp_path_factory.mktemp("trial"), fork_server, 2, topology="path", proxied=False
    ) as trial:
        # waits go by the monotonic clock, which no operator sets
        before = ["env", "FAKETIME_DONT_FAKE_MONOTONIC=1", "faketime", "2019-03-01 12:00:00"]
        right = "ulm" if wrong == "bonn" else "bonn"
        trial.start(wrong, real=True, before=before)
        trial.start(right)
        said = "this machine's clock says 2019-03-01, and certificates are valid from 2020 to 2120"
        event = {"bonn": "wrong clock", "ulm": "not connected"}[wrong]
        assert said in trial.logged(wrong, f'event="{event}"')
        trial.logged(right, {"ulm": "hung up", "bonn": "before it had identified itself"}[right])
        assert "stranger" not in trial.log("bonn") + trial.log("ulm")


def test_a_neighbour_that_completes_tls_and_says_nothing_is_hung_up_on(running):
    with Rogue(running) as rogue:
        running.moving("bonn", "ulm")  # meanwhile no user waits for it
        rogue.refused("did not agree on a secret within 4 s")


# files and keys that differ


def test_nodes_with_different_files_name_the_field_to_each_other(tmp_path_factory, fork_server):
    fields = {"ulm": "training.steps", "kiel": "privacy.epsilon", "jena": "network.timeout"}
    with Trial(
        tmp_path_factory.mktemp("trial"), fork_server, 4, topology="complete", patience=0.0
    ) as trial:
        trial.start("bonn")
        for name, (old, new) in {
            "ulm": ("steps = 30", "steps = 31"),
            "kiel": ("epsilon = 10.0", "epsilon = 9.0"),
            "jena": ("timeout = 2.0", "timeout = 2.5"),
        }.items():
            file = trial.folder / f"{name}.toml"
            assert old in trial.file.read_text()
            file.write_text(trial.file.read_text().replace(old, new))
            trial.start(name, file=file)
        for name, field in fields.items():
            trial.logged(
                "bonn",
                f"neighbour={name} why=.has another federation file: fields that differ: .*{field}",
            )
            trial.logged(
                name,
                f"neighbour=bonn why=.has another federation file: fields that differ: .*{field}",
            )
            for other in set(fields) - {name}:
                line = trial.logged(name, f"neighbour={other} why=.has another federation file")
                assert field in line and fields[other] in line
        assert not trial.heard() and all(map(trial.alive, trial.names))
        for name in trial.names:
            trial.signal(name, signal.SIGTERM)
        assert [trial.ended(name) for name in trial.names] == [130] * 4
        assert all(trial.entries(name)[1] == {} for name in trial.names)
        trial.check(codes=dict.fromkeys(trial.names, 130))


def test_a_wrong_key_is_refused_before_anything_is_done(tmp_path_factory, fork_server):
    with Trial(
        tmp_path_factory.mktemp("trial"),
        fork_server,
        3,
        patience=0.0,
        timeout=1.0,
        steps=STEPS,
        proxied=False,
    ) as trial:
        other = trial.folder / "other.key"
        Identity.new().save(other)
        trial.start("kiel", more=["--identity", str(other)])
        assert trial.ended("kiel") == 2
        assert "this key belongs to no user of 'trial'" in trial.errors("kiel")
        assert trial.entries("kiel") == ([], {})
        # a file with another key in kiel's place: the other users know kiel by its own
        file = trial.folder / "forged.toml"
        file.write_text(
            trial.file.read_text().replace(trial.identities["kiel"].line, Identity.load(other).line)
        )
        trial.start("bonn", "ulm")
        own = trial.folder / "other.ledger"
        Ledger.create(own, Identity.load(other).public)
        more = ["--identity", str(other), "--ledger", str(own)]
        trial.start("kiel", file=file, more=more)
        trial.logged("kiel", "neighbour=bonn why=")
        trial.logged("bonn", 'event="stranger refused" why=".*certificate')
        trial.moving("bonn", "ulm")
        assert all(n["problem"] for n in trial.status("bonn")["neighbours"] if n["name"] == "kiel")
        for name in trial.names:
            trial.signal(name, signal.SIGTERM)
        assert [trial.ended(name) for name in trial.names] == [130] * 3
        trial.check(codes=dict.fromkeys(trial.names, 130))


@pytest.mark.parametrize("name", sorted(CHANGES | ELSEWHERE))
def test_every_field_changed_in_one_place_is_refused_with_its_name_by_both(name):
    base, change = ELSEWHERE.get(name, (None, CHANGES.get(name)))
    one = Federation.parse(BASES[base] if base else TEXT)
    two = Federation.parse(TEXT) if name == "privacy.unit" else change(one)
    keys = Identity.new(), Identity.new()
    sessions = [
        Session(
            SessionConfig(
                keys[k].key, f"user-{1 - k}", keys[1 - k].public, k == 0, f.digest, f.digests, 4
            ),
            1,
            0,
            lambda: (0, NO_KEY),
        )
        for k, f in enumerate((one, two))
    ]
    hellos = [session.outgoing() for session in sessions]
    for session, hello in zip(sessions, reversed(hellos), strict=True):
        with pytest.raises(
            RemoteProtocolError,
            match=r"another federation file: fields that "
            rf"differ: .*\b{re.escape(name)}\b",
        ):
            session.receive(hello)
        assert session.is_over
