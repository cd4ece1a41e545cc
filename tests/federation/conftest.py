"""Federations of real processes, for the tests of this folder."""

import pytest
from trial_federation import ForkServer, Trial


@pytest.fixture(scope="module")
def fork_server():
    with ForkServer() as server:
        yield server


@pytest.fixture
def trial(tmp_path_factory, fork_server):
    """Makes trials, and ends whatever is left of them."""
    made = []

    def make(**settings):
        one = Trial(tmp_path_factory.mktemp("trial"), fork_server, **settings).__enter__()
        made.append(one)
        return one

    yield make
    for each in made:
        each.__exit__()
