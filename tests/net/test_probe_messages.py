"""Messages of a probe: whole ones come back as they were, and everything else is refused."""

import json
from dataclasses import replace

import pytest

from decor.errors import RemoteProtocolError
from decor.net.messages import HEADER, Alive, encode
from decor.net.probe_messages import (
    LIMITS,
    REPORT_BYTES,
    EdgeRow,
    Kind,
    ProbeDecoder,
    ProbeHello,
    Report,
    Versions,
    frame,
    printable,
)

VERSIONS = Versions("0.1.0", "3.11.2", None, "ab" * 32)
HELLO = ProbeHello(bytes(32), (("training.steps", b"12345678"),), VERSIONS)
REPORT = Report("ulm", 3, True, VERSIONS, (EdgeRow("bonn", "relay", 0.1, 1e6, 2e6, -3.0, "late"),))


def test_a_message_comes_back_as_it_was_sent():
    assert ProbeHello.parse(HELLO.payload()) == HELLO
    assert Report.parse(REPORT.payload()) == REPORT
    stream = frame(Kind.HELLO, HELLO.payload()) + frame(Kind.PING, bytes(8))
    decoder = ProbeDecoder()
    found = [each for k in range(len(stream)) for each in decoder.feed(stream[k : k + 1])]
    assert found == [(Kind.HELLO, HELLO.payload()), (Kind.PING, bytes(8))]


def test_a_report_of_many_edges_fits_the_limit():
    report = replace(REPORT, rows=REPORT.rows * 2000)
    assert len(report.payload()) <= REPORT_BYTES
    assert 100 < len(Report.parse(report.payload()).rows) < 2000


@pytest.mark.parametrize("kind", LIMITS)
def test_a_frame_that_is_too_long_is_refused_by_its_header(kind):
    with pytest.raises(RemoteProtocolError, match="the limit is"):
        list(ProbeDecoder().feed(HEADER.pack(kind, LIMITS[kind] + 1)))


def test_a_node_is_told_apart_from_nonsense():
    with pytest.raises(RemoteProtocolError, match="runs its node"):
        list(ProbeDecoder().feed(encode(Alive())))
    with pytest.raises(RemoteProtocolError, match="unknown kind"):
        list(ProbeDecoder().feed(b"GET / HTTP/1.1\r\n"))


@pytest.mark.parametrize(
    "change",
    [
        {"user": "\x1b[2J"},
        {"user": "u" * 201},
        {"version": -1},
        {"version": True},
        {"is_complete": 1},
        {"rows": {}},
        {"rows": [[]]},
        {"rows": [{"neighbour": "bonn", "way": "by air"}]},
        {"versions": None},
    ],
)
def test_a_report_with_a_wrong_value_is_refused(change):
    payload = json.dumps(json.loads(REPORT.payload()) | change).encode()
    with pytest.raises((ValueError, KeyError)):
        Report.parse(payload)


@pytest.mark.parametrize("number", ["1e400", "NaN", "true", '"1"', "9" * 400, "-Infinity"])
def test_a_measurement_that_is_no_number_is_refused(number):
    payload = REPORT.payload().replace(b"0.1,", number.encode() + b",", 1)
    assert payload != REPORT.payload()
    with pytest.raises(ValueError):
        Report.parse(payload)


def test_deeply_nested_json_is_refused():
    with pytest.raises(ValueError):
        Report.parse(b"[" * 60_000)


def test_what_is_shown_is_printable():
    assert printable("a\x1b[1mü\n" + "b" * 300) == "a?[1m??" + "b" * 193
