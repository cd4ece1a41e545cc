"""A neighbour's inbox and its status, without a network."""

import asyncio

import pytest

from decor.net.neighbour import HELD, Inbox, Link, Neighbour


def make_link():
    return Link(Neighbour(1, "n1", bytes(32), "127.0.0.1:9000", True, True))


def test_an_inbox_keeps_the_latest_models_and_gives_each_once():
    inbox = Inbox()
    for step in range(HELD + 2):
        inbox.put(step, 0, bytes([step]))
    assert len(inbox) == HELD and inbox.take(1, 0) is None
    assert inbox.take(HELD, 0) == bytes([HELD]) and inbox.take(HELD, 0) is None
    inbox.drop_before(HELD + 1)
    assert len(inbox) == 1 and inbox.has(HELD + 1, 0)


@pytest.mark.parametrize(
    ("at", "has"),
    [((5, 1), True), ((5, 2), True), ((6, 9), True), ((5, 0), False), ((7, 0), False)],
)
def test_a_neighbour_takes_part_in_a_round_up_to_the_end_of_the_next_step(at, has):
    inbox = Inbox()
    inbox.put(*at, b"model")
    assert inbox.has(5, 1) == has


@pytest.mark.parametrize(
    "empty", [Inbox.clear, lambda inbox: inbox.take(0, 0), Inbox.release_reader]
)
def test_a_reader_waits_until_the_inbox_is_empty_or_its_connection_has_ended(empty):
    async def read():
        inbox = Inbox()
        inbox.put(0, 0, b"model")
        reader = asyncio.create_task(inbox.wait_until_empty())
        await asyncio.sleep(0.01)
        assert not reader.done()
        empty(inbox)
        await asyncio.wait_for(reader, 60)

    asyncio.run(read())


def test_a_status_names_the_problem_of_a_neighbour_that_is_away():
    link = make_link()
    assert link.status() == {
        "name": "n1",
        "here": False,
        "done": False,
        "way": None,
        "connections": 0,
        "reconnections": 0,
        "sent_bytes": 0,
        "received_bytes": 0,
        "problem": "has not been reached yet",
    }
    link.done = True
    assert link.status()["problem"] is None


def test_a_link_has_keys_of_its_own():
    one, two = make_link(), make_link()
    one.keys.take(0, lambda: bytes(32))
    one.tags.record(0, b"12345678")
    assert two.keys.next_step == 0 and two.tags.own == {}
