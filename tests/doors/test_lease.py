"""The keeper of a node: what it starts, when it stops it, and what it leaves behind."""

import os
import signal
import subprocess

import pytest

from decor.doors import lease as lease_module
from decor.doors.lease import Lease
from decor.doors.site_node import MEANINGS
from decor.errors import InputError
from decor.federation.exit_codes import NEEDS_A_PERSON

from .three_sites import ThreeSites, is_at_work, until

REFUSED = {"code": NEEDS_A_PERSON, "meaning": MEANINGS[NEEDS_A_PERSON]}


@pytest.fixture(autouse=True)
def keepers(monkeypatch):
    """The keepers' processes: a runtime's process has ended when its keeper ends."""
    kept, start = [], subprocess.Popen

    def popen(*words, **options):
        kept.append(start(*words, **options))
        return kept[-1]

    monkeypatch.setattr(lease_module.subprocess, "Popen", popen)
    yield kept
    for keeper in kept:
        keeper.terminate()
        keeper.wait(60)


@pytest.fixture
def sites(tmp_path, monkeypatch):
    sites = ThreeSites(tmp_path / "sites")
    for name, value in sites.environment.items():
        monkeypatch.setenv(name, value)
    return sites


def until_at_work(sites, lease, seconds, log):
    """Asks for a node until it runs; the others do not come, so it waits for them."""
    while not is_at_work(sites, "bonn"):
        assert lease.renew(1, seconds, log.append) is None
    until(lambda: lease.renew(1, seconds, log.append) is None and "waits for" in " ".join(log))


def test_a_node_stops_when_nobody_asks_for_it(sites, keepers):
    lease, log = Lease(sites.toml("bonn"), "tumour"), []
    until_at_work(sites, lease, 12.0, log)
    # each line was passed on once, and one process has served all calls
    assert len(set(log)) == len(log) and len(keepers) == 1
    until(lambda: not is_at_work(sites, "bonn"))
    assert keepers[0].wait(60) == 0
    # nothing is said to have ended: whoever asks next starts it again
    assert not sites.path("bonn", "decor.tumour.end").exists()
    assert sites.ledger("bonn") == [(sites.federation.digest.hex(), 0, 0, None)]
    until_at_work(sites, lease, 12.0, [])
    assert len(keepers) == 2


def test_a_keeper_that_is_killed_leaves_no_node_behind(sites, keepers):
    lease, log = Lease(sites.toml("bonn"), "tumour"), []
    until_at_work(sites, lease, 60.0, log)
    os.kill(keepers[0].pid, signal.SIGKILL)
    until(lambda: not is_at_work(sites, "bonn"))


def test_in_one_job_a_node_that_has_ended_is_not_started_again(sites, keepers):
    sites.path("bonn", "own.ledger").unlink()
    lease, log = Lease(sites.toml("bonn"), "tumour"), []
    for _ in range(2):
        assert until(lambda: lease.renew(1, 60.0, log.append)) == REFUSED
    (sentence,) = log
    assert "decor ledger new" in sentence and len(keepers) == 1
    assert not sites.path("bonn", "own.ledger").exists()
    # what was written after the last call is not lost
    with sites.path("bonn", "decor.tumour.log").open("a") as lines:
        lines.write("later\n")
    assert lease.renew(1, 60.0, log.append) == REFUSED and log.pop() == "later"
    # the next job asks anew
    assert until(lambda: lease.renew(2, 60.0, log.append)) == REFUSED
    assert len(log) == len(keepers) == 2


def test_a_keeper_that_cannot_start_is_not_started_for_ever(sites, monkeypatch):
    monkeypatch.setattr(lease_module, "_MAIN", "import nothing_of_that_name")
    log = []
    assert Lease(sites.toml("bonn"), "tumour").renew(1, 60.0, log.append) == REFUSED
    assert "nothing_of_that_name" in log[-1]


@pytest.mark.parametrize("federation", ["heart", "../tumour"])
def test_a_job_cannot_choose_what_the_site_has_not_set_up(sites, federation):
    with pytest.raises(InputError, match="has not agreed"):
        Lease(sites.toml("bonn"), federation)
    assert not list(sites.folder.rglob("*.lease"))
