"""Nodes that are asked again and again: answers, silence, and nodes that are slow."""

import threading
import time

from decor.errors import InputError
from decor.ui import node_poll
from decor.ui.node_poll import NodePoll, Observation
from decor.ui.node_status import NodeStatus

from .statuses import seen, status


def silent():
    raise InputError("connection refused")


def until(poll, condition):
    end = time.monotonic() + 60
    while time.monotonic() < end:
        found = {each.source: each for each in poll.observe()}
        if condition(found):
            return found
    raise AssertionError("it has not happened")


def test_a_node_that_stops_answering_is_kept_and_comes_back():
    answers = {"a": lambda: status("bonn", step=7)}
    poll = NodePoll(lambda: answers)
    (first,) = poll.observe()
    assert first.reachable and first.alive and first.status.step == 7 and first.changed_at is None
    answers["a"] = silent
    (gone,) = poll.observe()
    assert not gone.reachable and gone.problem == "connection refused"
    assert gone.status.step == 7 and abs(gone.changed_at - time.time()) < 60
    answers["a"] = lambda: status("bonn", step=8)
    (back,) = poll.observe()
    assert back.reachable and back.alive and back.status.step == 8
    assert gone.status.step == 7, "what was seen before does not change"


def test_a_node_that_never_answered_is_there_too():
    (found,) = NodePoll(lambda: {"a": silent}).observe()
    assert found.status is None and found.problem == "connection refused"
    assert found.changed_at is None, "nobody knows since when"


def test_a_slow_node_delays_no_other_and_is_asked_once_at_a_time():
    release, asked = threading.Event(), []

    def slow():
        asked.append(1)
        release.wait(60)
        return status("ulm", step=3)

    steps = iter(range(10**6))
    poll = NodePoll(lambda: {"a": lambda: status("bonn", step=next(steps)), "b": slow})
    until(poll, lambda found: found["a"].status is not None and found["a"].status.step >= 2)
    assert len(asked) == 1
    release.set()
    found = until(poll, lambda found: found["b"].reachable)
    assert found["b"].status.step == 3


def test_a_question_that_takes_too_long_counts_as_silence(monkeypatch):
    monkeypatch.setattr(node_poll, "_MAX_SECONDS", 0.2)
    held, first = threading.Event(), iter([False])

    def stuck():
        if next(first, True):
            held.wait(60)
        return status("bonn")

    poll = NodePoll(lambda: {"a": stuck})
    try:
        assert poll.observe()[0].reachable
        found = until(poll, lambda found: not found["a"].reachable)
        assert found["a"].problem == "no answer in time" and found["a"].status.user == "bonn"
    finally:
        held.set()


def test_a_ledger_that_is_gone_is_said_to_be():
    answers = {"a": lambda: status("bonn"), "b": lambda: status("ulm")}
    poll = NodePoll(lambda: answers)
    assert all(each.reachable for each in poll.observe())
    del answers["b"]
    found = {each.source: each for each in poll.observe()}
    assert found["a"].reachable and not found["b"].reachable
    assert found["b"].problem == "its ledger is gone"


def test_progress_is_what_the_node_says_or_a_step_that_grows():
    observation = Observation("a")
    observation.record(NodeStatus(user="bonn", step=3), 0.0)
    assert observation.progress_at is None, "it may have been there for hours"
    observation.record(NodeStatus(user="bonn", step=3), 0.0)
    assert observation.progress_at is None
    observation.record(NodeStatus(user="bonn", step=4), 0.0)
    assert abs(observation.progress_at - time.time()) < 60
    observation.record(NodeStatus(user="bonn", step=4, last_progress=1e9), 0.0)
    assert observation.progress_at == 1e9


def test_a_step_counts_from_when_it_was_told():
    observation = seen(status("bonn", step=5))
    now = time.monotonic()
    assert observation.step_known_at(now - 60) is None and observation.step_known_at(now) == 5
    observation.record(NodeStatus(user="bonn", step=9), now)
    assert observation.step_known_at(now) == 5 and observation.step_known_at(now + 60) == 9
