"""The barrier of a round, receipts, keys and progress of a peer, its neighbours played by a test.

At the end of the file real peers talk over TLS.
"""

import asyncio
import hashlib
import inspect
import os
import shutil
import sqlite3
import time
from contextlib import suppress
from dataclasses import replace
from functools import wraps

import numpy as np
import pytest
from cryptography.exceptions import InvalidTag
from ledgers import open_ledger
from liar import (
    FEDERATION,
    IDENTITIES,
    SIZE,
    STEPS,
    Liar,
    Log,
    Writer,
    make_message,
    make_peer,
    make_receipt,
)
from proxy import Proxy, second_messages

from decor.errors import PrivacyStop, RemoteProtocolError
from decor.net import peer as peer_module
from decor.net.addresses import free_ports
from decor.net.edge_keys import NO_KEY
from decor.net.messages import (
    Alive,
    Done,
    KeyRequest,
    Model,
    NoiseTag,
    SealedKey,
    SignedReceipt,
)
from decor.net.neighbour import Connection, Neighbour
from decor.net.peer import Peer
from decor.net.peer_config import PeerConfig, RunLength
from decor.net.peer_state import WORDS
from decor.net.reach import Reach
from decor.net.session import (
    Finished,
    Greeted,
    Heard,
    KeyAsked,
    KeyGiven,
    Receipted,
    Received,
    Session,
    SessionConfig,
    Tagged,
)
from decor.noise.agreement import key_id
from decor.noise.grid import Grid


def peer(folder, neighbours=3, quorum=0.5, timeout=5.0):
    return make_peer(folder, neighbours, quorum=quorum, timeout=timeout)


def in_loop(test):
    """Runs a test in an event loop: what closes a connection needs one."""

    @wraps(test)
    def run(**fixtures):
        async def call():
            result = test(**fixtures)
            if inspect.isawaitable(result):
                await result

        asyncio.run(call())

    return run


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
    # they say so; and one user that may lie has signed
    one._receipts.hear_own(1, make_receipt(1, STEPS - 1))
    assert one.ahead(4) is None
    one._receipts.hear_own(2, make_receipt(2, 6))
    assert one.ahead(4) is None
    one._receipts.hear_own(2, make_receipt(2, 8))
    # a claim that is not proven hides no lesser one
    assert one.ahead(4) == (7, [b"end", b"nine", b"seven"])
    one._receipts.hear_own(2, make_receipt(2, 9))
    assert one.ahead(4) == (9, [b"end", b"nine"])
    assert one.ahead(9) is None
    # and it stays known: it is not said again
    one.begin(7, bytes(SIZE))
    assert third.step_start is None and first.step_start and second.step_start


def test_who_is_done_counts_at_the_end_alone(tmp_path):
    one = peer(tmp_path, neighbours=1, quorum=1.0)
    (link,) = one.links.values()
    link.done = True
    one.begin(3, bytes(SIZE))
    assert (
        not one._barrier.is_round_ready(3, 0, time.monotonic() + 1) and "only 0 of 1" in one.paused
    )
    assert one._barrier.is_round_ready(STEPS, 0, time.monotonic() + 1) and one.paused is None


def test_who_has_just_come_has_its_time_and_who_is_gone_had_it(tmp_path):
    one = peer(tmp_path, neighbours=2, timeout=5.0)
    came, gone = one.links.values()
    now = time.monotonic()
    came.conn.is_open, came.heard_at, gone.conn.down_since = True, now, now - 10
    late = now - 1  # the round's own time is over
    assert not one._barrier.is_round_ready(0, 0, late) and came.is_open and gone.absent
    came.heard_at = now - 10
    one._connections.drop = lambda link, why: setattr(link.conn, "is_open", False)
    one._barrier.is_round_ready(0, 0, late)
    assert not came.is_open and came.silent


def test_who_was_silent_comes_back_and_goes_again_holds_up_nobody(tmp_path):
    one = peer(tmp_path, neighbours=2, timeout=5.0)
    liar, here = one.links.values()
    now = time.monotonic()
    here.conn.is_open = True
    here.inbox.put(0, 0, bytes(SIZE))
    # it has greeted since, sent no model, and was refused
    liar.silent, liar.absent, liar.conn.down_since = True, False, now
    waits = one._barrier.seconds_to_deadline(0, 0, now + 5)
    # a wait without an end must not be for a neighbour that may never come
    assert one._barrier.is_round_ready(0, 0, now + 5) or waits is not None


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
    assert not one._barrier.is_round_ready(0, 0, now - 9) and not lost
    one._barrier.paused = "nothing would be gained by going on"
    assert not one._barrier.is_round_ready(0, 0, now - 11) and not lost
    one._barrier.paused = None
    assert (
        one._barrier.is_round_ready(0, 0, now - 11)
        and lost == ["sent no model for 15 s"]
        and alive.silent
    )
    alive.silent, alive.absent, alive.heard_at = False, False, now - 6
    assert one._barrier.is_round_ready(0, 0, now - 1) and lost[1:] == ["was silent for 5 s"]


def test_who_is_done_is_not_waited_for_and_not_sent_anything(tmp_path):
    one = peer(tmp_path, neighbours=2, quorum=0.5)
    done, here = one.links.values()
    here.inbox.put(STEPS, 0, bytes(SIZE))
    done.conn.is_open, done.conn.connection = True, object()  # nothing can be sent over it
    one._handle_event(done, Finished())
    assert done.done and one._barrier.is_round_ready(STEPS, 0, time.monotonic() + 5)
    one._sender.send_model(done, STEPS, 0, bytes(SIZE))


def test_a_neighbour_who_does_not_read_is_let_go_and_not_written_for_ever(tmp_path):
    async def flooded():
        one = peer(tmp_path, neighbours=1)
        (link,) = one.links.values()
        config = SessionConfig(one.config.identity.key, "n1", bytes(32), True, bytes(32), (), SIZE)
        session = Session(config, 1, 0, link.keys.confirm)
        session.state = type(session.state).OPEN
        link.conn.connection, link.conn.is_open = Connection(session, Writer()), True
        for step in range(10_000):
            one._sender.send_model(link, step, 1, bytes(SIZE))
            if not link.is_open:
                return step
        return None

    assert asyncio.run(flooded()) < 5 * (SIZE + 4096) / SIZE


def test_what_a_run_does_not_have_is_refused(tmp_path):
    one = peer(tmp_path)
    (link, *_) = one.links.values()
    for step, round_ in ((STEPS + 1, 0), (3, 3), (STEPS, 1)):
        with pytest.raises(RemoteProtocolError, match="does not have"):
            one._receiver._handle_model(link, step, round_, bytes(SIZE))
    with pytest.raises(RemoteProtocolError, match="claims to be at step"):
        one._handle_event(link, Greeted(STEPS + 1))
    one._handle_event(link, Received(0, 1, bytes(SIZE)))
    assert link.inbox.has(0, 1)


def test_a_few_messages_of_a_neighbour_are_kept_and_late_ones_counted(tmp_path):
    one = peer(tmp_path)
    one.begin(5, bytes(SIZE))
    (link, *_) = one.links.values()
    one._receiver._handle_model(link, 4, 1, bytes(SIZE))
    assert one.late == 1 and not link.inbox
    for round_ in (0, 1):
        for step in (5, 6, 7):
            one._handle_event(link, Receipted(make_receipt(1, step)))
            one._receiver._handle_model(link, step, round_, bytes(SIZE))
    assert len(link.inbox) <= 3 and link.step_start == (7, bytes(SIZE))


# receipts


def tell(link, step, digest=b"d" * 32):
    return SignedReceipt(make_receipt(link.neighbour.number, step, digest))


@in_loop
def test_a_message_without_its_receipt_is_refused_and_a_later_round_needs_none(tmp_path):
    one = make_peer(tmp_path)
    liar = Liar(one, 1)
    liar.connect()
    with pytest.raises(RemoteProtocolError, match="message of step 0 without a receipt"):
        liar.send(Model(0, 0, bytes(SIZE)))
    for step in (1, 3):  # a receipt of another step does not do, and the rest needs none
        liar.connect()
        liar.send(tell(liar.link, step), Model(step, 0, bytes(SIZE)), Model(step, 1, bytes(SIZE)))
        with pytest.raises(RemoteProtocolError, match=f"message of step {step + 1} without"):
            liar.send(Model(step + 1, 0, bytes(SIZE)))


@in_loop
def test_a_second_message_of_a_step_is_refused_on_any_connection_and_after_a_restart(tmp_path):
    one = make_peer(tmp_path)
    liar = Liar(one, 1)
    liar.connect()
    signed = hashlib.sha256(bytes(SIZE)).digest()
    liar.send(tell(liar.link, 0, signed), Model(0, 0, bytes(SIZE)))
    assert one._state.step_start is None and liar.link.inbox.has(0, 0)
    liar.connect()
    liar.send(tell(liar.link, 0, signed), Model(0, 0, bytes(SIZE)))  # the same again
    assert liar.link.inbox.has(0, 0)
    liar.connect()
    with pytest.raises(RemoteProtocolError, match="second message of step 0"):
        liar.send(tell(liar.link, 0, b"e" * 32))
    assert len(one.log.named("two messages of one step")) == 2
    make_message(one, 0)  # with it the receipt is stored
    one.ledger.close()
    again = make_peer(tmp_path)
    liar = Liar(again, 1)
    liar.connect()
    with pytest.raises(RemoteProtocolError, match="second message of step 0"):
        liar.send(tell(liar.link, 0, b"e" * 32))


@pytest.mark.parametrize("known_by", ["an earlier connection", "the ledger", "another user"])
@in_loop
def test_a_second_message_under_the_receipt_of_the_first_is_refused(tmp_path, known_by):
    """A signature that is shown twice must not cover two messages."""
    one = make_peer(tmp_path)
    liar, other = Liar(one, 1), Liar(one, 2)
    liar.connect()
    other.connect()
    first, second = b"1" * SIZE, b"2" * SIZE
    receipt = tell(liar.link, 0, hashlib.sha256(first).digest())
    if known_by == "another user":
        other.send(receipt)
    else:
        liar.send(receipt, Model(0, 0, first))
    if known_by == "the ledger":
        make_message(one, 0)
        one.ledger.close()
        one = make_peer(tmp_path)
        liar = Liar(one, 1)
    liar.connect()
    with pytest.raises(RemoteProtocolError, match="another message of step 0 than the one whose"):
        liar.send(receipt, Model(0, 0, second))
    assert not liar.link.inbox
    liar.connect()
    liar.send(receipt, Model(0, 0, first))
    assert liar.link.inbox.take(0, 0) == first


@in_loop
def test_a_second_message_that_another_has_got_is_proven_and_shown_to_its_user(tmp_path):
    """Two copies of a user talk to different neighbours: neither sees both messages."""
    one = make_peer(tmp_path, neighbours=2, users=4)
    twin, other = Liar(one, 1), Liar(one, 2)
    twin.connect()
    other.connect()
    first, second = make_receipt(1, 5), make_receipt(1, 5, b"e" * 32)
    twin.send(SignedReceipt(first))
    other.send(SignedReceipt(second))
    shown = [(bytes.fromhex(e["sha256"]), e["signer"]) for e in proofs(one)]
    assert shown == [(first.digest, 1), (second.digest, 1)]
    # that copy's ledger lacks what it has signed, and so it stops
    twin.exchange()
    assert Receipted(second) in twin.heard
    # who has passed it on has done nothing wrong; and the log does not grow
    other.send(SignedReceipt(second), SignedReceipt(second))
    twin.exchange()
    assert other.link.is_open and len(proofs(one)) == 2
    assert twin.heard.count(Receipted(second)) == 1


@in_loop
def test_a_copy_that_sends_a_second_message_is_shown_what_it_has_signed_before_it_is_refused(
    tmp_path,
):
    one = make_peer(tmp_path, neighbours=2, users=4)
    twin, other = Liar(one, 1), Liar(one, 2)
    twin.connect()
    other.connect()
    first, second = make_receipt(1, 5), make_receipt(1, 5, b"e" * 32)
    other.send(SignedReceipt(first))
    with pytest.raises(RemoteProtocolError, match="second message of step 5"):
        twin.send(SignedReceipt(second))
    assert SignedReceipt(first) in sent_to(twin)


def sent_to(liar):
    """What waits to be sent to a neighbour whose connection has just been refused."""
    liar.connection.flush()
    said = liar.session.receive(b"".join(liar.connection._unsent))
    return [SignedReceipt(event.receipt) for event in said if isinstance(event, Receipted)]


@pytest.mark.parametrize("newer", [(), (8, 9)])
@in_loop
def test_a_second_message_of_a_user_that_is_no_neighbour_is_proven_and_passed_on(tmp_path, newer):
    """From user to user, until it comes to the one that has made it."""
    one = make_peer(tmp_path, neighbours=2, users=4)
    a, b = Liar(one, 1), Liar(one, 2)
    a.connect()
    b.connect()
    a.send(*(SignedReceipt(make_receipt(3, step)) for step in newer))
    pair = [make_receipt(3, 5), make_receipt(3, 5, b"e" * 32)]
    for receipt in pair:
        a.send(SignedReceipt(receipt))
    b.exchange()
    assert len(proofs(one)) == 2 and a.link.is_open and b.link.is_open
    for each in (a, b):
        heard = [event.receipt for event in each.heard if isinstance(event, Receipted)]
        assert [receipt for receipt in heard if receipt.user == 3] == pair
    # a liar that signs a hundred is shown to others once
    for k in range(10):
        b.send(SignedReceipt(make_receipt(3, 5, bytes([k]) * 32)))
    a.exchange()
    assert len([each for each in a.heard if isinstance(each, Receipted)]) == 2


@in_loop
def test_a_user_that_is_shown_its_two_messages_by_anyone_stops(tmp_path):
    one = make_peer(tmp_path, users=4)
    make_message(one, 0)
    other = Liar(one, 2)
    other.connect()
    other.send(SignedReceipt(make_receipt(0, 0, hashlib.sha256(bytes(SIZE)).digest())))
    with pytest.raises(PrivacyStop, match="n2 holds a receipt of this user .* step 0"):
        other.send(SignedReceipt(make_receipt(0, 0, b"e" * 32)))
    (entry,) = one.ledger.entries()
    assert entry.ended is not None and entry.repeated == 1


def proofs(one):
    return one.log.named("two messages of one step")


@in_loop
def test_an_older_message_is_not_used_and_does_no_harm(tmp_path):
    one = make_peer(tmp_path)
    liar = Liar(one, 1)
    liar.connect()
    liar.send(tell(liar.link, 5))
    liar.send(tell(liar.link, 3, b"e" * 32), Model(3, 0, bytes(SIZE)))
    assert one.late == 1 and not liar.link.inbox


@in_loop
def test_a_greeting_with_an_own_receipt_that_the_ledger_lacks_ends_the_run_for_good(tmp_path):
    one = make_peer(tmp_path)
    make_message(one, 0)
    liar = Liar(one, 1)
    with pytest.raises(PrivacyStop, match="n1 holds a receipt .* step 6 .* older copy"):
        liar.connect(receipt=make_receipt(0, 6))
    (entry,) = one.ledger.entries()
    assert entry.ended is not None and (entry.steps, entry.repeated) == (1, 7)
    assert "steps up to 6 are counted once more" in entry.why
    assert not liar.link.has_greeted and not [e for e in liar.heard if isinstance(e, Received)]


@in_loop
def test_a_receipt_of_another_message_of_a_step_that_the_ledger_has_ends_it_too(tmp_path):
    """A twin: the same key in two places, each with a ledger of its own."""
    one = make_peer(tmp_path)
    for step in range(3):
        make_message(one, step)
    with pytest.raises(PrivacyStop, match="step 1"):
        Liar(one, 1).connect(receipt=make_receipt(0, 1, b"twin" * 8))
    assert one.ledger.entries()[0].repeated == 2


@in_loop
def test_a_receipt_that_the_ledger_has_changes_nothing(tmp_path):
    one = make_peer(tmp_path)
    for step in range(3):
        make_message(one, step, bytes([step]) * SIZE)
    for step in range(3):
        digest = hashlib.sha256(bytes([step]) * SIZE).digest()
        liar = Liar(one, 1)
        liar.connect(receipt=make_receipt(0, step, digest))
        liar.send(SignedReceipt(make_receipt(0, step, digest)))  # nor when it is passed on
        assert liar.link.is_open and liar.link.has_greeted
    (entry,) = one.ledger.entries()
    assert entry.ended is None and entry.repeated == 0


@pytest.mark.parametrize(
    "wrong",
    [
        replace(make_receipt(0, 6), signature=bytes(64)),
        replace(make_receipt(1, 6), user=0),  # the neighbour's own signature
        replace(make_receipt(0, 6), step=7),
        make_receipt(1, 6),  # another user's
    ],
)
@in_loop
def test_a_receipt_with_a_wrong_signature_is_refused_and_ends_nothing(tmp_path, wrong):
    one = make_peer(tmp_path)
    liar = Liar(one, 1)
    with pytest.raises(RemoteProtocolError, match="receipt"):
        liar.connect(receipt=wrong)
    if wrong.user == 0:  # the same, passed on later
        liar.connect()
        with pytest.raises(RemoteProtocolError, match="that this user has not signed"):
            liar.send(SignedReceipt(wrong))
    (entry,) = one.ledger.entries()
    assert entry.ended is None and entry.repeated == 0


@in_loop
def test_no_unsigned_receipt_of_a_neighbour_is_passed_on(tmp_path):
    """The user behind would take this one for the liar."""
    one = make_peer(tmp_path, neighbours=2)
    liar, behind = Liar(one, 1), Liar(one, 2)
    for step in range(4):
        make_message(one, step)
    liar.connect(step=4)
    liar.send(SignedReceipt(replace(make_receipt(1, 3), signature=bytes(64))))
    behind.connect(step=0)
    assert behind.link.is_behind
    liar.send(SignedReceipt(replace(make_receipt(1, 4), signature=bytes(64))))
    behind.exchange()
    assert {e.receipt.user for e in behind.heard if isinstance(e, Receipted)} == {0}
    liar.send(SignedReceipt(make_receipt(1, 5)))
    behind.exchange()
    assert Receipted(make_receipt(1, 5)) in behind.heard


@in_loop
def test_who_is_behind_is_shown_the_receipts_of_others_and_who_is_not_is_not(tmp_path):
    one = make_peer(tmp_path, neighbours=3, users=5)
    for step in range(4):
        make_message(one, step)
    ahead, behind = Liar(one, 1), Liar(one, 2)
    ahead.connect(step=4)
    ahead.send(tell(ahead.link, 3), SignedReceipt(make_receipt(4, 3)))
    behind.connect(step=1)
    shown = {e.receipt.user: e.receipt.step for e in behind.heard if isinstance(e, Receipted)}
    assert shown == {0: 3, 1: 3, 4: 3}
    third = Liar(one, 3)
    third.connect(step=3)
    assert not third.link.is_behind
    assert {e.receipt.user for e in third.heard if isinstance(e, Receipted)} <= {0}


@in_loop
async def test_after_a_start_all_neighbours_are_waited_for_and_after_patience_a_quorum(tmp_path):
    one = make_peer(tmp_path, neighbours=2)
    first, second = Liar(one, 1), Liar(one, 2)
    first.connect()
    waiting = asyncio.create_task(one.wait_for_neighbours(60.0, 1))
    # a quorum is here, and may be neighbours that have never had a message of this user
    await until(lambda: one.paused == "waits for n2")
    await asyncio.sleep(0.1)
    assert not waiting.done()
    second.connect()
    assert await waiting and one.paused is None
    # whoever has not come by then is waited for no longer
    one._connections.drop(second.link, "gone")
    began = time.monotonic()
    assert await one.wait_for_neighbours(0.2, 1)
    assert time.monotonic() - began >= 0.2
    # less than a quorum is not enough, however long it takes
    one._connections.drop(first.link, "gone")
    waiting = asyncio.create_task(one.wait_for_neighbours(0.0, 1))
    await until(lambda: one.paused == "waits for n1, n2")
    await asyncio.sleep(0.1)
    assert not waiting.done()
    second.connect()
    assert await waiting


@in_loop
async def test_while_all_are_waited_for_models_do_not_hide_the_end_of_a_connection(tmp_path):
    one = make_peer(tmp_path, neighbours=2)
    here = Liar(one, 1)
    here.connect()
    waiting = asyncio.create_task(one.wait_for_neighbours(60.0, 1))
    await until(lambda: here.link.is_waited_for)
    here.send(tell(here.link, 0), Model(0, 0, bytes(SIZE)))
    assert here.link.inbox and here.link.is_awaited
    Liar(one, 2).connect()
    assert await waiting and not here.link.is_awaited


@in_loop
async def test_who_is_behind_reads_on_after_a_model_until_others_have_proven_it(
    tmp_path, monkeypatch
):
    # a slow machine must not end the wait
    monkeypatch.setattr(peer_module, "SETTLING_SECONDS", 60.0)
    one = make_peer(tmp_path, neighbours=2, users=4)
    ahead = Liar(one, 1)
    ahead.connect(step=8)
    # its own receipt and message come first; it gets the others' while it waits
    ahead.send(tell(ahead.link, 7), Model(7, 0, bytes(SIZE)))
    waiting = asyncio.create_task(one.wait_for_progress())
    await asyncio.sleep(0.05)
    assert not waiting.done(), "a model of a later step is no reason to begin"
    one.begin(0, bytes(SIZE))
    assert ahead.link.inbox and ahead.link.is_awaited and one.ahead(0) is None
    ahead.send(SignedReceipt(make_receipt(3, 6)))
    assert ahead.link.is_awaited and one.ahead(0) is None
    ahead.send(SignedReceipt(make_receipt(3, 7)))
    assert not ahead.link.is_awaited and one.ahead(0) == (7, [bytes(SIZE)])
    await waiting
    one.begin(7, bytes(SIZE))
    assert not ahead.link.is_awaited


# what neighbours may send


@in_loop
def test_a_flood_of_short_messages_is_refused_and_a_few_are_not(tmp_path):
    for word in (Alive(), Done(), SignedReceipt(make_receipt(1, 0))):
        one = make_peer(tmp_path)
        liar = Liar(one, 1)
        liar.connect()
        liar.send(*[word] * WORDS)
        with pytest.raises(RemoteProtocolError, match="too many short messages"):
            liar.send(*[word] * 5 * WORDS)
        one.ledger.close()


@in_loop
def test_this_users_own_receipts_are_counted_as_well(tmp_path):
    """Each costs a signature's check."""
    one = make_peer(tmp_path)
    make_message(one, 0)
    liar = Liar(one, 1)
    liar.connect()
    digest = hashlib.sha256(bytes(SIZE)).digest()
    with pytest.raises(RemoteProtocolError, match="too many short messages"):
        liar.send(*[SignedReceipt(make_receipt(0, 0, digest))] * 5 * WORDS)


@in_loop
def test_what_a_neighbour_has_sent_while_it_was_not_read_is_no_flood(tmp_path):
    """A user that waits for a quorum reads nothing more from a neighbour whose model it holds, and
    that one sends Alive all the time.
    """
    one = make_peer(tmp_path)
    now = [0.0]
    for link in one.links.values():
        link.words._clock, link.words._at = (lambda: now[0]), 0.0
    liar = Liar(one, 1)
    liar.connect()
    now[0] += 3600.0
    liar.send(*[Alive()] * int(3600 / (one.config.timeout / 3)))
    assert liar.link.is_open


@in_loop
def test_a_tag_comes_once_on_a_connection_and_of_a_step_of_the_run(tmp_path):
    one = make_peer(tmp_path)
    liar = Liar(one, 1)
    for tags in ([NoiseTag(STEPS, bytes(8))], [NoiseTag(3, bytes(8))] * 2):
        liar.connect()
        with pytest.raises(RemoteProtocolError, match="twice, or beyond the run"):
            liar.send(*tags)
    liar.connect()
    liar.send(NoiseTag(3, bytes(8)))


@in_loop
def test_a_claim_beyond_the_run_is_refused_and_costs_nothing(tmp_path):
    """Older secrets would be turned forward for it, step by step."""
    one = make_peer(tmp_path)
    liar = Liar(one, 1)
    liar.connect(claim=(STEPS, b"i" * 32))
    with pytest.raises(RemoteProtocolError, match=f"keys up to step {2**61} of a run of {STEPS}"):
        liar.connect(claim=(2**61, b"i" * 32))


# tags


@in_loop
def test_noise_that_cancels_is_known_after_a_restart_whoever_was_first(tmp_path):
    one = make_peer(tmp_path, neighbours=2)
    liars = Liar(one, 1), Liar(one, 2)
    for liar in liars:
        liar.connect()
    theirs = {liar.number: liar.secret.key(0) for liar in liars}
    tags = {number: hashlib.sha256(key).digest()[:8] for number, key in theirs.items()}
    liars[0].send(NoiseTag(0, tags[1]))  # before this user has made its message
    assert make_message(one, 0) == theirs
    liars[1].send(NoiseTag(0, tags[2]))  # and after
    assert one.steps_left_over() == {1: [], 2: []}
    make_message(one, 1)
    one._state.save_news()
    one.ledger.close()
    again = make_peer(tmp_path, neighbours=2)
    assert again.steps_left_over() == {1: [1], 2: [1]}


@in_loop
def test_a_flag_that_comes_before_the_message_is_saved_with_the_next(tmp_path):
    one = make_peer(tmp_path, neighbours=1)
    liar = Liar(one, 1)
    liar.connect()
    tag = hashlib.sha256(liar.secret.key(0)).digest()[:8]
    liar.send(NoiseTag(0, tag))
    make_message(one, 0)
    assert one.steps_left_over() == {1: []}
    make_message(one, 1)
    assert one.ledger.noise_rows(one.run)[0][3] == b"\1"


@in_loop
def test_tags_that_differ_are_told_and_tags_are_answered(tmp_path):
    one = make_peer(tmp_path, neighbours=1)
    liar = Liar(one, 1)
    liar.connect()
    keys = make_message(one, 0)
    liar.send(NoiseTag(0, b"another!"))
    assert one.log.named("noise does not cancel") == [{"neighbour": "n1", "step": 0}]
    assert Tagged(0, hashlib.sha256(keys[1]).digest()[:8]) in liar.heard
    assert one.steps_left_over() == {1: [0]}


# keys


def given(liar):
    return [event for event in liar.heard if isinstance(event, KeyGiven)]


@in_loop
def test_a_key_is_given_once_for_a_connection_sealed_and_for_the_last_step_alone(tmp_path):
    one = make_peer(tmp_path)
    for step in range(3):
        keys = make_message(one, step)
    liar = Liar(one, 1)
    liar.connect(step=2)
    liar.send(KeyRequest(2))
    (answer,) = given(liar)
    assert liar.secret.unseal(2, answer.sealed) == keys[1] and keys[1] not in answer.sealed
    with pytest.raises(RemoteProtocolError, match="asked twice for a key"):
        liar.send(KeyRequest(2))
    for gone in (0, 1, 3, 2**63):
        liar.connect(step=2)
        liar.send(KeyRequest(gone))
        assert given(liar) == [KeyGiven(gone, b"")]
    other = Liar(one, 2)  # each has its own key
    other.connect(step=2)
    other.send(KeyRequest(2))
    (answer,) = given(other)
    assert other.secret.unseal(2, answer.sealed) == keys[2] != keys[1]


@pytest.mark.parametrize("by", ["itself", "another", "before a restart"])
@in_loop
def test_no_key_is_given_for_a_step_of_which_a_receipt_is_known(tmp_path, by):
    """The neighbour has used it: a second message under one key would have bare own noise."""
    one = make_peer(tmp_path)
    liar, other = Liar(one, 1), Liar(one, 2)
    other.connect()
    liar.connect()
    if by == "itself":
        liar.send(tell(liar.link, 0))
    elif by == "another":
        other.send(SignedReceipt(make_receipt(1, 0)))
    make_message(one, 0)
    if by == "before a restart":
        one._receipts.hear_own(1, make_receipt(1, 0))
    # a key that this end holds for another reason must not be given either
    one.links[1].keys._past = 0, b"k" * 32
    liar.connect()
    liar.send(KeyRequest(0))
    assert given(liar) == [KeyGiven(0, b"")]
    other.connect()
    other.send(KeyRequest(0))
    assert given(other)[0].sealed


@in_loop
def test_a_key_is_forgotten_when_its_receipt_comes(tmp_path):
    one = make_peer(tmp_path)
    make_message(one, 0)
    liar = Liar(one, 1)
    liar.connect()
    assert one.links[1].keys.give(0) is not None
    liar.send(tell(liar.link, 0))
    assert one.links[1].keys.give(0) is None and one.links[2].keys.give(0) is not None


def waiting_for_key(folder, key=b"k" * 32, greeted=True):
    """A user that has restarted before its step 0, and a neighbour that has used `key` for it."""
    one = make_peer(folder, neighbours=2)
    liar, other = Liar(one, 1), Liar(one, 2)
    if greeted:
        other.connect()
    liar.connect(step=1, claim=(1, key_id(key)))
    assert one.links[1].keys.needs(0)
    one._barrier.are_keys_ready(0, time.monotonic() + 5)
    liar.exchange()
    return one, liar, other


def held_secrets(keys):
    """The secrets that an end of an edge has in its memory."""
    return [*keys._older, *([keys._current[1]] if keys._current else [])]


def opens(keys, step, sealed):
    """Whether a sealed key that was recorded can be opened with what an end still has."""
    for secret in held_secrets(keys):
        for by_lower in (True, False):
            with suppress(InvalidTag, AttributeError):
                secret._sealing.decrypt(*secret._sealing_parts(step, sealed, by_lower))
                return True
    return False


@in_loop
def test_whoever_seizes_a_giver_later_opens_no_key_that_was_recorded(tmp_path):
    """The connection lives on, with all that is kept for it."""
    one = make_peer(tmp_path, neighbours=1)
    liar = Liar(one, 1)
    liar.connect()
    make_message(one, 0)
    liar.connect()
    liar.send(KeyRequest(0))
    (answer,) = given(liar)
    assert answer.sealed and not opens(one.links[1].keys, 0, answer.sealed)


@pytest.mark.parametrize("what", ["used", "too late", "lost", "connected anew"])
@in_loop
def test_whoever_seizes_a_receiver_later_opens_no_key_that_was_recorded(tmp_path, what):
    """Also one that was sent, and did not come before it was of no use any more."""
    one, liar, _ = waiting_for_key(tmp_path)
    keys, sealed = one.links[1].keys, liar.secret.seal(0, b"k" * 32)
    assert opens(keys, 0, sealed)
    if what == "used":
        liar.send(SealedKey(0, sealed))
    elif what == "too late":
        make_message(one, 0)
    elif what == "lost":
        one._connections.drop(liar.link, "lost")
    else:
        liar.connect(step=1, claim=(1, key_id(b"k" * 32)))
    assert held_secrets(keys) and not opens(keys, 0, sealed)


@in_loop
def test_a_neighbour_that_asks_for_a_key_and_gives_one_is_refused_and_nothing_worse(tmp_path):
    """One of two is behind: on one connection keys go in one direction."""
    one, liar, _ = waiting_for_key(tmp_path)
    liar.send(SealedKey(0, liar.secret.seal(0, b"k" * 32)))
    make_message(one, 0)
    with pytest.raises(RemoteProtocolError, match="asked for a key"):
        liar.send(KeyRequest(0))


@in_loop
def test_a_key_that_the_neighbour_has_used_is_asked_for_and_used(tmp_path):
    one, liar, _ = waiting_for_key(tmp_path)
    assert KeyAsked(0) in liar.heard
    assert not one._barrier.are_keys_ready(0, time.monotonic() + 5)
    liar.send(SealedKey(0, liar.secret.seal(0, b"k" * 32)))
    assert one._barrier.are_keys_ready(0, time.monotonic() + 5)
    assert make_message(one, 0)[1] == b"k" * 32


@in_loop
def test_no_key_is_asked_for_before_all_neighbours_have_greeted(tmp_path):
    """One that is away may hold a receipt of this user's message of that step."""
    one, liar, other = waiting_for_key(tmp_path, greeted=False)
    assert KeyAsked(0) not in liar.heard
    with pytest.raises(RemoteProtocolError, match="a key that was not asked for"):
        liar.send(SealedKey(0, liar.secret.seal(0, b"k" * 32)))
    liar.connect(step=1, claim=(1, key_id(b"k" * 32)))
    # in time it draws afresh
    assert not one._barrier.are_keys_ready(0, time.monotonic() + 5) and one._barrier.are_keys_ready(
        0, time.monotonic()
    )
    other.connect()
    one._barrier.are_keys_ready(0, time.monotonic() + 5)
    liar.exchange()
    assert KeyAsked(0) in liar.heard


@in_loop
def test_whoever_only_fetches_the_model_has_not_greeted(tmp_path):
    """It opens no ledger, so that it cannot show the receipt that its node may hold."""
    one, liar, other = waiting_for_key(tmp_path, greeted=False)
    other.connect(step=STEPS, claim=(STEPS, NO_KEY), fetches=True)
    one._barrier.are_keys_ready(0, time.monotonic() + 5)
    liar.exchange()
    assert KeyAsked(0) not in liar.heard and not other.link.has_greeted
    # in time it draws afresh, or asks when the other's node is back
    assert one._barrier.are_keys_ready(0, time.monotonic())
    other.connect()
    assert other.link.has_greeted
    one._connections.drop(other.link, "lost")
    other.connect(step=STEPS, claim=(STEPS, NO_KEY), fetches=True)
    one._barrier.are_keys_ready(0, time.monotonic() + 5)
    liar.exchange()
    assert KeyAsked(0) in liar.heard


@pytest.mark.parametrize("whose", ["sent by both", "of the other's secret"])
@in_loop
async def test_two_neighbours_that_offer_one_key_stop_nobody(tmp_path, whose):
    """One key for two edges would be refused where noise is added, and the node would stop."""
    one = make_peer(tmp_path, neighbours=2)
    a, b = Liar(one, 1), Liar(one, 2)
    b.connect()
    # b has taken no key of step 0 yet, and knows which it will be; so does a, if b tells
    key = b"k" * 32 if whose == "sent by both" else b.secret.key(0)
    both = (a, b) if whose == "sent by both" else (a,)
    for each in both:
        each.connect(step=1, claim=(1, key_id(key)))
    one.begin(0, bytes(SIZE))
    one._barrier.are_keys_ready(0, time.monotonic() + 5)
    for each in both:
        each.exchange()
        each.send(SealedKey(0, each.secret.seal(0, key)))
    keys = await one.take_keys(0, lambda: os.urandom(32))
    assert keys[1] == key != keys[2]
    grid = Grid.of(1.0, [1.0, 1.0], [(0, 1), (0, 2)], 3, 2.0, 4, 10)
    grid.add_noise(np.zeros(4), bytes(32), [(each, 3) for each in keys.values()])
    # what the ledger will say is what was used
    assert one.links[2].keys.last_id == key_id(keys[2])


@pytest.mark.parametrize("first", [True, False])
@in_loop
async def test_no_past_key_is_held_once_both_ends_have_made_the_step(tmp_path, first):
    """Whichever was first: with --serve it would stay for weeks."""
    one = make_peer(tmp_path, neighbours=1)
    liar = Liar(one, 1)
    liar.connect()
    theirs = SignedReceipt(make_receipt(1, 0)), Model(0, 0, bytes(SIZE))
    if not first:
        liar.send(*theirs)
    one.begin(0, bytes(SIZE))
    keys = await one.take_keys(0, lambda: os.urandom(32))
    one.record(0, bytes(SIZE), {1: bytes(8)})
    if first:
        assert one.links[1].keys.give(0) == keys[1]
        liar.send(*theirs)
    assert one.links[1].keys.give(0) is None


@in_loop
def test_a_key_whose_id_is_in_the_ledger_is_not_used_again(tmp_path):
    """Of any run: a liar may offer an old key under a new step."""
    one, liar, _ = waiting_for_key(tmp_path)
    earlier = one.ledger.begin(bytes(32), "{}")
    one.ledger.record(earlier, 7, b"message", key_id(b"a" * 32) + key_id(b"k" * 32))
    liar.send(SealedKey(0, liar.secret.seal(0, b"k" * 32)))
    assert liar.link.key_is_gone and one.log.named("key is gone")
    assert (
        one._barrier.are_keys_ready(0, time.monotonic() + 5)
        and make_message(one, 0)[1] != b"k" * 32
    )


@pytest.mark.parametrize("sealed", ["another key", "gone", "another step"])
@in_loop
def test_a_key_that_is_gone_or_not_the_one_is_drawn_afresh(tmp_path, sealed):
    one, liar, _ = waiting_for_key(tmp_path)
    answers = {
        "another key": lambda: SealedKey(0, liar.secret.seal(0, b"j" * 32)),
        "gone": lambda: SealedKey(0, b""),
        "another step": lambda: SealedKey(1, liar.secret.seal(1, b"k" * 32)),
    }
    liar.send(answers[sealed]())
    assert one._barrier.are_keys_ready(0, time.monotonic() + 5)
    assert make_message(one, 0)[1] not in (b"k" * 32, b"j" * 32)


@pytest.mark.parametrize("recorded", [False, True])
@in_loop
def test_a_key_that_comes_after_another_was_drawn_is_dropped_and_nobody_is_refused(
    tmp_path, recorded
):
    """The neighbour has done nothing wrong: its answer was late."""
    one, liar, _ = waiting_for_key(tmp_path)
    answer = SealedKey(0, liar.secret.seal(0, b"k" * 32))
    if recorded:
        make_message(one, 0)
    else:  # the message is being computed
        one.links[1].keys.take(0, lambda: os.urandom(32))
    liar.send(answer)
    assert liar.link.is_open and one.links[1].keys.give(0) != b"k" * 32


@in_loop
def test_a_key_that_the_neighbour_has_not_sealed_is_refused_and_nothing_worse(tmp_path):
    one, liar, _ = waiting_for_key(tmp_path)
    with pytest.raises(RemoteProtocolError, match="not sealed by this neighbour"):
        liar.send(SealedKey(0, bytes(48)))


@in_loop
def test_a_key_that_nobody_asked_for_is_refused(tmp_path):
    one = make_peer(tmp_path)
    liar = Liar(one, 1)
    liar.connect()
    with pytest.raises(RemoteProtocolError, match="a key that was not asked for"):
        liar.send(SealedKey(0, b""))


@in_loop
def test_while_a_secret_is_being_confirmed_no_key_is_taken(tmp_path):
    one = make_peer(tmp_path, neighbours=1, timeout=0.0)
    liar = Liar(one, 1)
    liar.connect()
    assert one._barrier.are_keys_ready(0, time.monotonic() - 1)
    one.links[1].keys.confirm()
    assert not one._barrier.are_keys_ready(0, time.monotonic() - 1)
    one._connections.drop(liar.link, "lost")
    assert not one.links[1].keys.is_confirming


# real peers over TLS


class Users:
    """Three users, each a neighbour of the others; user 1 reaches user 0 through a proxy."""

    def __init__(self, folder):
        self.folder, self.ports = folder, free_ports(3)
        to = f"127.0.0.1:{self.ports[0]}"
        self.proxy = Proxy(IDENTITIES[1], IDENTITIES[0], to, SIZE, ("1", "0"))

    def peer(self, number):
        """A user from its start on; the second time one that starts again."""
        neighbours = tuple(
            Neighbour(
                k,
                f"n{k}",
                IDENTITIES[k].public,
                self.proxy.address if (number, k) == (1, 0) else f"127.0.0.1:{self.ports[k]}",
                number > k,
                number < k,
            )
            for k in range(3)
            if k != number
        )
        config = PeerConfig(
            IDENTITIES[number],
            neighbours,
            FEDERATION,
            (),
            SIZE,
            RunLength(5, 1, 0),
            30.0,
            1.0,
            number,
            tuple(each.public for each in IDENTITIES[:3]),
        )
        ledger = open_ledger(self.folder / f"{number}", IDENTITIES[number].public)
        runs = [entry.run for entry in ledger.entries()] or [ledger.begin(FEDERATION, "{}")]
        reach = Reach(FEDERATION, (f"127.0.0.1:{self.ports[number]}",))
        return Peer(config, ledger, runs[0], Log(), lambda step, values: None, reach)


async def take_step(one, step, message=None):
    """A step of a node; returns its keys."""
    one.begin(step, None if message else bytes(SIZE))
    keys = await one.take_keys(step, lambda: os.urandom(32))
    tags = {number: hashlib.sha256(key).digest()[:8] for number, key in keys.items()}
    one.record(step, os.urandom(SIZE), tags)
    await one.exchange(step, 0, one.ledger.message(one.run, step))
    return keys


async def run_steps(one, first, last):
    await one.wait_for_neighbours(30.0, 2)
    return [await take_step(one, step) for step in range(first, last)]


def agree(keys):
    """Whether both ends of each edge have taken the same key."""
    return all(keys[i][j] == keys[j][i] for i in range(3) for j in range(i))


@in_loop
async def test_real_users_draw_the_same_noise_and_know_that_it_cancels(tmp_path):
    users = Users(tmp_path)
    with users.proxy as proxy:
        async with users.peer(0) as a, users.peer(1) as b, users.peer(2) as c:
            taken = await asyncio.gather(*(run_steps(one, 0, 5) for one in (a, b, c)))
            assert all(agree([each[step] for each in taken]) for step in range(5))
            await asyncio.gather(*(one.finish() for one in (a, b, c)))
            for one in (a, b, c):
                assert not any(one.steps_left_over().values())
                assert [row[3] for row in one.ledger.noise_rows(one.run)] == [b"\1\1"] * 5
                assert {user: r.step for user, r in one.ledger.receipts(one.run).items()} == {
                    k: 4 for k in range(3) if k != one.config.number
                }
        assert second_messages(proxy.messages()) == []
        said = [record.message for record in proxy.messages()]
        assert not any(isinstance(message, KeyRequest | SealedKey) for message in said)


@in_loop
async def test_a_user_that_starts_again_before_its_message_uses_the_keys_of_the_others(tmp_path):
    users = Users(tmp_path)
    with users.proxy as proxy:
        async with users.peer(1) as b, users.peer(2) as c:
            async with users.peer(0) as a:
                await asyncio.gather(*(run_steps(one, 0, 2) for one in (a, b, c)))
                others = [asyncio.create_task(take_step(one, 2)) for one in (b, c)]
                a.begin(2, bytes(SIZE))
                await a.take_keys(2, lambda: os.urandom(32))
                # the others have made their messages, and this user is killed before its own
                await until(lambda: b.next_step == c.next_step == 3)
            a.ledger.close()
            async with users.peer(0) as again:
                (mine,) = await run_steps(again, 2, 3)
                assert agree([mine, *await asyncio.gather(*others)])
                await asyncio.gather(*(run_steps(one, 3, 5) for one in (again, b, c)))
                await asyncio.gather(*(one.finish() for one in (again, b, c)))
                for one in (again, b, c):
                    assert not any(one.steps_left_over().values())
        (sealed,) = [r for r in proxy.messages() if isinstance(r.message, SealedKey)]
        # a neighbour's TLS may be broken: the key is not in the clear inside it
        assert sealed.receiver == "0" and mine[1] not in sealed.message.sealed
        assert len(sealed.message.sealed) == 48 and second_messages(proxy.messages()) == []
    # its id is on disk, and the key nowhere
    held = [path.read_bytes() for path in tmp_path.iterdir()]
    held.append(repr([one.log.lines for one in (a, b, c, again)]).encode())
    assert any(key_id(mine[1]) in each for each in held)
    for key in mine.values():
        assert not any(form in each for each in held for form in (key, key.hex().encode()))


@in_loop
async def test_a_user_whose_ledger_is_an_old_copy_stops_before_it_sends_anything(tmp_path):
    users = Users(tmp_path)
    with users.proxy as proxy:
        async with users.peer(1) as b, users.peer(2) as c:
            async with users.peer(0) as a:
                await asyncio.gather(*(run_steps(one, 0, 1) for one in (a, b, c)))
                backup = sqlite3.connect(tmp_path / "backup")
                a.ledger._db.backup(backup)
                backup.close()
                await asyncio.gather(*(run_steps(one, 1, 3) for one in (a, b, c)))
            a.ledger.close()
            shutil.move(tmp_path / "backup", tmp_path / "0")
            before = len(proxy.messages())
            async with users.peer(0) as again:
                with pytest.raises(PrivacyStop, match="step 2 .* older copy"):
                    await run_steps(again, 1, 3)
                with pytest.raises(PrivacyStop):  # and whatever is called then
                    again.record(1, bytes(SIZE), {1: bytes(8), 2: bytes(8)})
            (entry,) = again.ledger.entries()
            assert entry.ended is not None and (entry.steps, entry.repeated) == (1, 3)
            after = [r.message for r in proxy.messages()[before:] if r.sender == "0"]
            assert not any(isinstance(message, Model | SignedReceipt) for message in after)


async def until(condition, seconds=180.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        await asyncio.sleep(0.01)
