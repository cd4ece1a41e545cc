"""A rate limit lets a number through at once, and then as many as the rate allows."""

import pytest

from decor.net.rate_limit import RateLimit


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def count(limit, tries=1000):
    return sum(limit.allow() for _ in range(tries))


def test_a_number_at_once_and_then_none():
    limit = RateLimit(5, 2.0, Clock())
    assert [limit.allow() for _ in range(7)] == [True] * 5 + [False] * 2


def test_after_that_as_many_as_the_rate_allows():
    clock = Clock()
    limit = RateLimit(5, 2.0, clock)
    count(limit)
    for seconds, more in ((0.4, 0), (0.2, 1), (1.0, 2), (3.0, 5), (1000.0, 5)):
        clock.now += seconds
        assert count(limit) == more, seconds


@pytest.mark.parametrize("every", [0.01, 0.3, 7.0])
def test_however_it_is_asked_no_more_come_through_in_a_time_than_burst_and_rate(every):
    clock = Clock()
    limit, through, asked = RateLimit(10, 0.5, clock), 0, 0
    while clock.now < 400.0:
        through, asked = through + limit.allow(), asked + 1
        clock.now += every
    # and no fewer, if more are asked for
    assert min(asked, 10 + 0.5 * 300 - 2) <= through <= 10 + 0.5 * 300


def test_what_is_refused_does_not_count():
    clock = Clock()
    limit = RateLimit(1, 1.0, clock)
    count(limit)
    clock.now += 1.0
    assert limit.allow()


def test_the_clock_is_one_that_never_goes_back_unless_told():
    limit = RateLimit(2, 0.0)
    assert count(limit) == 2


def test_a_quiet_time_may_be_made_up_for_if_so_allowed():
    clock = Clock()
    limit = RateLimit(5, 2.0, clock, most=float("inf"))
    assert count(limit) == 5
    clock.now += 100.0
    assert count(limit) == 200
