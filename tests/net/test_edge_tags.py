"""Tags of an edge: noise cancels if both ends' tags are known and equal, whatever the order."""

import itertools

import pytest

from decor.net.edge_tags import EdgeTags


def pair(steps, differ=()):
    """Two ends that have made the same steps."""
    ends = EdgeTags(), EdgeTags()
    for k, end in enumerate(ends):
        for step in steps:
            end.record(step, b"%d of %d" % (step, k if step in differ else 0))
    return ends


def connect(one, two):
    """A new connection: the two exchange what they do not know, and answer; counts tags sent."""
    flight, sent = [], 0
    for end, other in ((one, two), (two, one)):
        flight += [(other, end, step) for step in end.connect()]
    while flight:
        receiver, sender, step = flight.pop(0)
        assert not receiver.was_heard(step), "a tag comes once on a connection"
        sent += 1
        if receiver.hear(step, sender.own[step]):
            receiver.mark_sent(step)
            flight.append((sender, receiver, step))
    return sent


@pytest.mark.parametrize("order", list(itertools.permutations(("own", "theirs", "again"))))
def test_equal_tags_cancel_and_different_ones_do_not_in_any_order(order):
    tags, same = EdgeTags(), b"12345678"
    for theirs, cancels in ((same, True), (b"87654321", False)):
        tags = EdgeTags()
        for event in order:
            if event == "own":
                tags.record(4, same)
            else:
                tags.hear(4, theirs)
        assert (4 in tags.cancelled) == cancels and tags.differs(4) != cancels


def test_a_tag_that_is_missing_neither_cancels_nor_differs():
    tags = EdgeTags()
    tags.record(3, b"ours")
    tags.hear(4, b"theirs")
    assert not tags.cancelled and not tags.differs(3) and not tags.differs(4)


def test_an_old_tag_of_the_neighbour_is_no_tag_of_another_step():
    tags = EdgeTags()
    tags.record(3, b"tag of 3")
    tags.record(4, b"tag of 4")
    tags.hear(4, b"tag of 3")
    assert not tags.cancelled and tags.differs(4)


def test_both_ends_know_the_same_after_one_connection():
    one, two = pair(range(5), differ={2})
    connect(one, two)
    for end in (one, two):
        assert end.cancelled == {0, 1, 3, 4} and end.differs(2)
    # only what is open is sent again
    assert connect(one, two) == 2


def test_an_end_that_has_forgotten_is_told_again():
    """After a crash one end knows its own tags, from its ledger, and not that they were equal."""
    one, two = pair(range(3))
    connect(one, two)
    restarted = EdgeTags(own=dict(one.own), cancelled={0})
    assert connect(restarted, two) == 4  # the two open ones, and their answers
    assert restarted.cancelled == {0, 1, 2}


def test_a_step_that_one_end_has_not_made_is_not_answered_before_it_is():
    one, two = EdgeTags(), EdgeTags()
    one.record(0, b"same")
    assert connect(one, two) == 1 and not one.cancelled
    two.record(0, b"same")
    assert two.cancelled == {0}
    one.hear(0, two.own[0])
    assert one.cancelled == {0}


def test_what_was_heard_and_sent_is_of_one_connection():
    tags = EdgeTags()
    tags.record(0, b"ours")
    assert tags.hear(0, b"theirs") and tags.was_heard(0)
    tags.mark_sent(0)
    assert not tags.hear(0, b"theirs")
    assert tags.connect() == [0] and not tags.was_heard(0)
    assert not tags.hear(0, b"theirs")  # sent when the connection began


def test_a_neighbour_that_changes_its_mind_takes_nothing_back():
    """A liar may send any tag later: what both ends have confirmed stays."""
    tags = EdgeTags()
    tags.record(0, b"same")
    tags.hear(0, b"same")
    tags.hear(0, b"other")
    assert tags.cancelled == {0} and not tags.differs(0)
