"""A neighbour's inbox, its secrets, and the tags of its noise, without a network."""

import asyncio

import pytest

from decor.net.neighbour import HELD, Inbox, Link, Neighbour


class Secret:
    """A secret whose keys say which secret and which step they are of."""

    def __init__(self, name):
        self.name = name

    def key(self, step):
        return f"{self.name} {step}".encode()


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
        await asyncio.wait_for(reader, 1)

    asyncio.run(read())


def test_a_step_has_the_key_of_the_newest_secret_and_older_secrets_are_erased():
    link = make_link()
    assert link.key(0) is None
    link.add_secret(0, Secret("first"))
    link.add_secret(5, Secret("second"))
    assert link.key(4) == b"first 4" and len(link.secrets) == 2
    assert link.key(5) == b"second 5" and [first for first, _ in link.secrets] == [5]


def test_a_new_secret_replaces_those_that_would_begin_later():
    link = make_link()
    for first, name in ((0, "first"), (9, "never used"), (7, "second")):
        link.add_secret(first, Secret(name))
    assert link.key(6) == b"first 6" and link.key(9) == b"second 9"


def test_noise_cancels_unless_both_tags_of_a_step_are_known_and_differ():
    link = make_link()
    assert link.noise_cancels(3, 0, b"same") and link.noise_cancels(3, 1, b"same")
    assert link.noise_cancels(4, 1, b"theirs") and not link.noise_cancels(4, 0, b"ours")
    assert link.noise_cancels(9, 0, b"ours")
    assert all(len(tags) <= 2 for tags in link.tags)


def test_a_status_names_the_problem_of_a_neighbour_that_is_away():
    link = make_link()
    assert link.status() == {
        "name": "n1",
        "here": False,
        "done": False,
        "connections": 0,
        "problem": "has not been reached yet",
    }
    link.done = True
    assert link.status()["problem"] is None
