"""Two ends of a probe without sockets: what they measure, and that no bytes break one."""

import random
from dataclasses import replace

import pytest

from decor.errors import LocalProtocolError, RemoteProtocolError
from decor.net.messages import Alive, Decoder, Hello, encode, limits
from decor.net.probe_messages import EdgeRow, Kind, ProbeHello, Report, Versions, frame
from decor.net.probe_session import BULK_BYTES, FINISHED, PINGS, ProbeSession
from decor.net.session import Ended, Opened

VERSIONS = Versions("0.1.0", "3.11.2", "2.9.0", None)
HELLO = ProbeHello(bytes(32), (("training.steps", b"12345678"),), VERSIONS)
REPORT = Report("ulm", 1, True, VERSIONS, (EdgeRow("bonn", "direct", 0.1, 1.0, 2.0, 0.0),))


class Time:
    """Seconds of both ends, which pass on the way only."""

    now = 1000.0


def pair(time=None, ahead=0.0):
    """Two ends, and the reports that each has got; the second one's clock is ahead."""
    time, got = time or Time(), ([], [])
    ends = [
        ProbeSession(
            f"n{1 - k}",
            HELLO,
            got[k].append,
            lambda k=k: 1e9 + time.now + k * ahead,
            lambda: time.now,
        )
        for k in range(2)
    ]
    return ends, got


def run(ends, time=None, seconds=0.0):
    """Carries all bytes both ways, each way in so many seconds; gives all events and bytes."""
    events, carried = ([], []), ([], [])
    while any(said := [end.outgoing() for end in ends]):
        if time is not None:
            time.now += seconds
        for k, data in enumerate(said):
            carried[1 - k].append(data)
            events[1 - k].extend(ends[1 - k].receive(data))
    return events, carried


def test_two_ends_measure_round_trip_clock_and_bandwidth():
    time = Time()
    ends, _ = pair(time, ahead=94.0)
    (events, _), _ = run(ends, time, 0.05)
    assert isinstance(events[0], Opened)
    for k, end in enumerate(ends):
        measured = end.measured
        assert measured.is_complete and measured.hello == HELLO
        assert measured.round_trip == pytest.approx(0.1)
        assert measured.clock == pytest.approx(-94.0 if k else 94.0, abs=1e-6)
    assert ends[0].measured.sent == ends[1].measured.received
    assert ends[1].measured.sent == ends[0].measured.received


def test_the_best_ping_tells_the_clock():
    """The first answer takes an hour; the clock follows from the quick ones."""
    time = Time()
    ends, _ = pair(time, ahead=-20.0)
    for seconds in (0.01, 0.01, 3600.0):
        said = [end.outgoing() for end in ends]
        time.now += seconds
        for k, data in enumerate(said):
            ends[1 - k].receive(data)
    assert ends[0].measured.clock == pytest.approx(-20.0 - 1800.0, abs=1.0)
    run(ends, time, 0.01)
    assert ends[0].measured.clock == pytest.approx(-20.0, abs=1e-3)


def test_reports_arrive_and_a_finished_neighbour_says_so():
    ends, got = pair()
    run(ends)
    ends[0].send_report(REPORT)
    ends[0].close(FINISHED)
    (_, events), _ = run(ends)
    assert got[1] == [REPORT] and events[-1] == Ended(FINISHED)
    assert ends[1].has_finished and ends[1].is_over and not ends[0].has_finished


def test_a_probe_sends_no_model():
    ends, _ = pair()
    run(ends)
    ends[0].send(Alive())
    assert ends[0].outgoing() == b""
    with pytest.raises(LocalProtocolError):
        ends[0].send_model(0, 0, b"")


def test_a_node_and_a_probe_end_their_connection_with_a_sentence():
    probe = pair()[0][0]
    with pytest.raises(RemoteProtocolError, match="n1 runs its node"):
        probe.receive(encode(Hello(bytes(32), (), 1, 0)))
    assert probe.is_over and probe.is_node
    with pytest.raises(RemoteProtocolError, match="runs decor federation probe"):
        list(Decoder(limits(40)).feed(pair()[0][0].outgoing()))


@pytest.mark.parametrize(
    "stream",
    [
        frame(Kind.PING, bytes(8)),
        frame(Kind.HELLO, HELLO.payload()) * 2,
        frame(Kind.HELLO, b"{}"),
        frame(Kind.HELLO, HELLO.payload().replace(b"probe 1", b"probe 9")),
    ],
)
def test_greetings_come_once_and_first(stream):
    with pytest.raises(RemoteProtocolError):
        pair()[0][0].receive(stream)


@pytest.mark.parametrize(
    "stream",
    [
        frame(Kind.PING, bytes(8)) * (PINGS + 1),
        frame(Kind.PONG, bytes(16)),
        frame(Kind.BULK, bytes(1 << 16)) * (BULK_BYTES // (1 << 16) + 1),
        frame(Kind.BULK),
        frame(Kind.TAKEN, bytes(8)),
        frame(Kind.TAKEN, (BULK_BYTES + 1).to_bytes(8, "little")),
        frame(Kind.RATE, b"\0" * 6 + b"\xf0\x7f"),
        frame(Kind.RATE, bytes(7)),
        frame(Kind.REPORT, b"[]"),
        frame(Kind.REPORT, REPORT.payload()) * 2500,
    ],
)
def test_an_open_session_refuses_what_is_wrong_or_too_much(stream):
    end = pair()[0][0]
    end.receive(frame(Kind.HELLO, HELLO.payload()))
    with pytest.raises(RemoteProtocolError, match="^n1 "):
        end.receive(stream)
    assert end.is_over and not end.is_node and end.receive(stream) == []


def conversation():
    """What one end hears in a whole probe."""
    ends, _ = pair()
    _, carried = run(ends)
    ends[1].send_report(REPORT)
    ends[1].close(FINISHED)
    return b"".join([*carried[0], ends[1].outgoing()])


@pytest.mark.parametrize("seed", range(8))
def test_no_bytes_cause_anything_but_a_refusal(seed):
    rng, heard = random.Random(seed), conversation()
    head = frame(Kind.HELLO, HELLO.payload())
    report = frame(Kind.REPORT, replace(REPORT, version=seed).payload())
    refused = 0
    for _ in range(400):
        data = bytearray(rng.choice((rng.randbytes(60), heard[:5000], head + report, report)))
        for _ in range(rng.choice((0, 1, 3, 20))):
            data[rng.randrange(len(data))] = rng.choice((0, 34, 91, 123, 255, rng.randrange(256)))
        if rng.random() < 0.5:
            data[:0] = head
        end = pair()[0][0]
        try:
            for at in range(0, len(data), 500):
                end.receive(bytes(data[at : at + 500]))
        except RemoteProtocolError:
            refused += 1
            assert end.is_over
    assert refused > 50
