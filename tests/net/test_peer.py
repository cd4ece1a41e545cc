"""The barrier of a round, and when a user moves to a later step, without a network."""

import asyncio
import time

import pytest
from ledgers import open_ledger

from decor.errors import RemoteProtocolError
from decor.net.identity import Identity
from decor.net.neighbour import Connection, Neighbour
from decor.net.peer import Peer, PeerConfig, RunLength
from decor.net.session import Finished, Greeted, Heard, Received, Session, SessionConfig

SIZE, STEPS = 16, 50


def peer(folder, neighbours=3, quorum=0.5, timeout=5.0):
    others = tuple(
        Neighbour(k + 1, f"n{k + 1}", bytes([k + 1]) * 32, f"127.0.0.1:{9000 + k}", False, True)
        for k in range(neighbours)
    )
    config = PeerConfig(
        Identity.new(),
        others,
        bytes(32),
        (),
        SIZE,
        RunLength(STEPS, 2, 0),
        timeout,
        quorum,
        0,
        (bytes(32), *(other.public for other in others)),
    )
    ledger = open_ledger(folder / "ledger")
    return Peer(
        config,
        ledger,
        ledger.begin(bytes(32), "{}"),
        lambda *_, **__: None,
        lambda step, values: None,
        "",
    )


@pytest.mark.parametrize(
    ("neighbours", "quorum", "needed"),
    [(3, 0.5, 2), (2, 0.5, 1), (100, 0.07, 7), (25, 0.28, 7), (4, 1.0, 4), (5, 0.01, 1)],
)
def test_a_quorum_is_a_share_of_the_neighbours_and_at_least_one(
    neighbours, quorum, needed, tmp_path
):
    assert peer(tmp_path, neighbours, quorum).config.quorum_count == needed


def test_a_user_goes_where_a_quorum_of_neighbours_is_and_not_where_one_says_it_is(tmp_path):
    one = peer(tmp_path, quorum=0.5)
    one.begin(4, bytes(SIZE))
    first, second, third = one.links.values()
    first.step_start = (STEPS + 1, b"end")
    assert one.ahead(4) is None  # two are needed
    second.step_start = (4, b"here")
    assert one.ahead(4) is None
    second.step_start, third.step_start = (9, b"nine"), (7, b"seven")
    assert one.ahead(4) == (9, [b"end", b"nine"])
    assert one.ahead(9) is None


def test_who_is_done_counts_at_the_end_alone(tmp_path):
    one = peer(tmp_path, neighbours=1, quorum=1.0)
    (link,) = one.links.values()
    link.done = True
    one.begin(3, bytes(SIZE))
    assert not one._ready(3, 0, time.monotonic() + 1) and "only 0 of 1" in one.paused
    assert one._ready(STEPS, 0, time.monotonic() + 1) and one.paused is None


def test_who_has_just_come_has_its_time_and_who_is_gone_had_it(tmp_path):
    one = peer(tmp_path, neighbours=2, timeout=5.0)
    came, gone = one.links.values()
    now = time.monotonic()
    came.conn.is_open, came.heard_at, gone.conn.down_since = True, now, now - 10
    late = now - 1  # the round's own time is over
    assert not one._ready(0, 0, late) and came.is_open and gone.absent
    came.heard_at = now - 10
    one._connections.drop = lambda link, why: setattr(link.conn, "is_open", False)
    one._ready(0, 0, late)
    assert not came.is_open and came.silent


def test_who_says_that_it_is_alive_has_more_time_but_not_for_ever(tmp_path):
    one = peer(tmp_path, neighbours=2, timeout=5.0)
    alive, here = one.links.values()
    now = time.monotonic()
    alive.conn.is_open = here.conn.is_open = True
    here.inbox.put(0, 0, bytes(SIZE))
    one._handle_event(alive, Heard())
    lost = []
    one._connections.drop = lambda link, why: lost.append(why)
    # the round began 14 s ago, and it was heard just now
    assert not one._ready(0, 0, now - 9) and not lost
    one.paused = "nothing would be gained by going on"
    assert not one._ready(0, 0, now - 11) and not lost
    one.paused = None
    assert one._ready(0, 0, now - 11) and lost == ["sent no model for 15 s"] and alive.silent
    alive.silent, alive.heard_at = False, now - 6
    assert one._ready(0, 0, now - 1) and lost[1:] == ["was silent for 5 s"]


def test_who_is_done_is_not_waited_for_and_not_sent_anything(tmp_path):
    one = peer(tmp_path, neighbours=2, quorum=0.5)
    done, here = one.links.values()
    here.inbox.put(STEPS, 0, bytes(SIZE))
    done.conn.is_open, done.conn.connection = True, object()  # nothing can be sent over it
    one._handle_event(done, Finished())
    assert done.done and one._ready(STEPS, 0, time.monotonic() + 5)
    one._send(done, STEPS, 0, bytes(SIZE))


def test_a_neighbour_who_does_not_read_is_let_go_and_not_written_for_ever(tmp_path):
    class Writer:
        class transport:  # noqa: N801
            abort = staticmethod(lambda: None)

    async def flooded():
        one = peer(tmp_path, neighbours=1)
        (link,) = one.links.values()
        session = Session(
            SessionConfig(one.config.identity.key, "n1", bytes(32), True, bytes(32), (), SIZE), 1, 0
        )
        session.state = type(session.state).OPEN
        link.conn.connection, link.conn.is_open = Connection(session, Writer()), True
        for step in range(10_000):
            one._send(link, step, 0, bytes(SIZE))
            if not link.is_open:
                return step
        return None

    assert asyncio.run(flooded()) < 5 * (SIZE + 4096) / SIZE


def test_what_a_run_does_not_have_is_refused(tmp_path):
    one = peer(tmp_path)
    (link, *_) = one.links.values()
    for step, round_ in ((STEPS + 1, 0), (3, 3), (STEPS, 1)):
        with pytest.raises(RemoteProtocolError, match="does not have"):
            one._handle_model(link, step, round_, bytes(SIZE))
    with pytest.raises(RemoteProtocolError, match="claims to be at step"):
        one._handle_event(link, Greeted(STEPS + 1))
    one._handle_event(link, Received(0, 0, bytes(SIZE)))
    assert link.inbox.has(0, 0)


def test_a_few_messages_of_a_neighbour_are_kept_and_late_ones_counted(tmp_path):
    one = peer(tmp_path)
    one.begin(5, bytes(SIZE))
    (link, *_) = one.links.values()
    one._handle_model(link, 4, 1, bytes(SIZE))
    assert one.late == 1 and not link.inbox
    for round_ in (0, 1):
        for step in (5, 6, 7):
            one._handle_model(link, step, round_, bytes(SIZE))
    assert len(link.inbox) <= 3 and link.step_start == (7, bytes(SIZE))
