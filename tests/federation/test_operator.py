"""What a node writes for its operator; its signals and sockets are tested in test_faults.py."""

import asyncio
import gc
import io
import json
import logging
import os
import re
import signal
import socket
from pathlib import Path

import pytest

from decor.errors import InputError
from decor.federation.operator import EventLog, asyncio_messages_to, error_text, hangups_to


def test_an_event_is_one_line_whatever_its_facts_are():
    to = io.StringIO()
    EventLog("bonn", to)("going on", step=3, why='a "b"\nc=\x1b[2J', empty="")
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z user=bonn event=\"going on\" step=3 "
        r"why=\"a 'b'\?c=\?\[2J\" empty=\"\"\n",
        to.getvalue(),
    )


def test_an_event_as_json_is_one_object_whatever_its_facts_are():
    to = io.StringIO()
    why = 'a "b"\nc=\x1b[2J\u2028'
    EventLog("bonn", to, "json")("going on", step=3, why=why, ledger=Path("x"), left=None)
    (line,) = to.getvalue().splitlines()
    assert line.isascii() and line.isprintable()
    read = json.loads(line)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", read.pop("time"))
    assert read == {
        "user": "bonn",
        "event": "going on",
        "step": 3,
        "why": why,
        "ledger": "x",
        "left": None,
    }


def test_a_log_renamed_before_its_node_could_hear_of_it_is_begun_anew(tmp_path):
    """While a node loads it ignores SIGHUP, and does so again at its end."""
    path, old = tmp_path / "bonn.log", tmp_path / "bonn.log.1"
    log = EventLog("bonn", path.open("a"))

    async def work():
        with hangups_to(log.reopen):
            log("connected")

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        path.rename(old)
        os.kill(os.getpid(), signal.SIGHUP)
        asyncio.run(work())
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
        log.to.close()
    assert "event=connected" in path.read_text() and old.read_text() == ""


def test_a_log_that_cannot_be_written_stops_nobody():
    class Full(io.StringIO):
        def write(self, text):
            raise OSError("no space left")

    EventLog("bonn", Full())("connected")


def test_only_our_own_errors_are_logged_with_their_text():
    assert error_text(InputError("take a smaller rate")) == "take a smaller rate"
    assert error_text(ValueError("patient 7 has 1.5")) == "ValueError"


DATA = "patient 7 has 1.5"


async def write_to_the_dead():
    here, there = socket.socketpair()
    _, writer = await asyncio.open_connection(sock=here)
    there.close()
    for _ in range(20):
        writer.write(DATA.encode())
    writer.transport.abort()


async def fail_in_a_task():
    async def work():
        raise ValueError(DATA)

    task = asyncio.create_task(work())
    await asyncio.wait([task])
    del task
    gc.collect()


async def fail_in_callbacks():
    for _ in range(50):
        asyncio.get_running_loop().call_soon(int, DATA)
    await asyncio.sleep(0)


async def log_an_error():
    try:
        int(DATA)
    except ValueError:
        logging.getLogger("asyncio").exception("%s and %r", DATA, DATA)


async def raise_our_own():
    async def work():
        raise InputError("take a smaller rate")

    task = asyncio.create_task(work())
    await asyncio.wait([task])
    del task
    gc.collect()


MESSAGES = {
    write_to_the_dead: 'event="wrote to a connection that had ended" place=selector_events.write',
    fail_in_a_task: 'event="an error that nothing handled" why=ValueError so_far=1',
    fail_in_callbacks: 'event="an error that nothing handled" why=ValueError so_far=1',
    log_an_error: 'event="asyncio reported a problem" why=ValueError place=test_operator.log_an_er',
    raise_our_own: 'event="an error that nothing handled" why="take a smaller rate"',
}


@pytest.mark.parametrize("cause", MESSAGES, ids=lambda cause: cause.__name__)
def test_asyncios_messages_are_one_line_of_the_log_without_what_they_say(cause, capfd):
    to = io.StringIO()

    async def work():
        with asyncio_messages_to(EventLog("bonn", to)):
            await cause()

    logger = logging.getLogger("asyncio")
    before = logger.handlers, logger.propagate
    asyncio.run(work())
    assert MESSAGES[cause] in to.getvalue() and len(to.getvalue().splitlines()) == 1
    assert "patient" not in to.getvalue() and "Traceback" not in to.getvalue()
    assert capfd.readouterr() == ("", "") and (logger.handlers, logger.propagate) == before
