"""Two cores help and never hurt: the count that was faster in the first steps is kept."""

from types import SimpleNamespace

import pytest
import torch

from decor.training import threads
from decor.training.threads import Threads


def taken(chooser, cost, steps=20):
    """The threads of every step, if a step with n threads takes cost[n] seconds."""
    found = []
    for _ in range(steps):
        with chooser.step() as count:
            found.append((count, torch.get_num_threads()))
            threads.time.now += cost[count]
    return found


@pytest.fixture
def two_cores(monkeypatch):
    monkeypatch.setattr(threads, "cores", lambda: 2)
    # seconds of a test: on a busy machine a step takes any time
    clock = SimpleNamespace(now=0.0)
    clock.perf_counter = lambda: clock.now
    monkeypatch.setattr(threads, "time", clock)


@pytest.mark.parametrize(("cost", "kept"), [({1: 0.004, 2: 0.001}, 2), ({1: 0.001, 2: 0.004}, 1)])
def test_the_faster_number_of_threads_is_kept(two_cores, cost, kept):
    before = torch.get_num_threads()
    chooser = Threads(None, 10**6)
    with chooser.limit_torch():
        found = taken(chooser, cost)
    assert {count for count, _ in found[:8]} == {1, 2} and {count for count, _ in found[8:]} == {
        kept
    }
    assert all(count == torch_takes for count, torch_takes in found)
    assert torch.get_num_threads() == before


def test_small_problems_and_people_who_say_a_number_are_not_tried_with_others(two_cores):
    for chooser, count in ((Threads(None, 1000), 1), (Threads(2, 1000), 2), (Threads(1, 10**9), 1)):
        with chooser.limit_torch():
            assert {found for found, _ in taken(chooser, {1: 0.0, 2: 0.0}, steps=10)} == {count}
