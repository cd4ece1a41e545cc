"""A site's node for launchers: real nodes of three sites, without any runtime around them."""

import json
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from decor.doors import site_node
from decor.doors.site_node import run_site_node
from decor.federation.exit_codes import (
    INTERRUPTED,
    NEEDS_A_PERSON,
    PRIVACY,
    TRANSIENT,
)
from decor.federation.terms import Terms
from decor.net.identity import Identity
from decor.net.ledger import Ledger

from .three_sites import (
    NAMES,
    PATIENCE,
    ThreeSites,
    check_equal_to_plain_nodes,
    check_public,
    until,
)


def with_environment(sites, monkeypatch):
    for name, value in sites.environment.items():
        monkeypatch.setenv(name, value)
    return sites


@pytest.fixture
def sites(tmp_path, monkeypatch):
    return with_environment(ThreeSites(tmp_path / "sites"), monkeypatch)


def run_all(sites, **aborts):
    """Outcomes and logs of all sites' nodes."""
    logs = {name: [] for name in NAMES}
    is_over = threading.Event()

    def run(name):
        is_aborted = aborts.get(name, lambda: False)
        return run_site_node(
            sites.toml(name), "tumour", logs[name].append, lambda: is_over.is_set() or is_aborted()
        )

    with ThreadPoolExecutor(len(NAMES)) as pool:
        started = {name: pool.submit(run, name) for name in NAMES}
        try:
            return {name: each.result(PATIENCE) for name, each in started.items()}, logs
        except TimeoutError:
            raise AssertionError(str(logs)) from None
        finally:
            # nodes wait for one that has failed as long as they are let
            is_over.set()


def test_nodes_that_are_launched_give_the_numbers_of_plain_nodes(sites, tmp_path):
    plain = sites.copy(tmp_path / "plain")
    outcomes, logs = run_all(sites)
    assert all(outcome.is_done for outcome in outcomes.values())
    check_equal_to_plain_nodes(sites, plain)
    for name in NAMES:
        check_public(outcomes[name].public, sites, name)
        assert "event=finished" in logs[name][-1]


def test_a_node_that_is_aborted_stops_as_on_sigterm_and_goes_on_later(tmp_path, monkeypatch):
    # long enough that the abort comes in its middle
    sites = with_environment(
        ThreeSites(tmp_path / "sites", steps=1500, constant_noise=False), monkeypatch
    )
    logs = {name: [] for name in NAMES}

    def is_aborted():
        return any("at work" in line for log in logs.values() for line in log)

    with ThreadPoolExecutor(len(NAMES)) as pool:
        stopped = list(
            pool.map(
                lambda name: run_site_node(
                    sites.toml(name), "tumour", logs[name].append, is_aborted
                ),
                NAMES,
            )
        )
    assert [each.code for each in stopped] == [INTERRUPTED] * 3
    assert not any(each.is_done for each in stopped)
    before = [sites.ledger(name) for name in NAMES]
    for outcome, name, [(_, messages, repeated, end)] in zip(stopped, NAMES, before, strict=True):
        assert 0 < messages < 1500 and repeated == 0 and end is None
        assert outcome.public["steps"] == messages
        # what a run that has begun costs is the whole plan
        assert outcome.public["epsilon"] == Terms.of(sites.federation).promise.epsilon
        assert "model_sha256" not in outcome.public
        assert any("event=stopped" in line for line in logs[name])
    outcomes, _ = run_all(sites)
    for name, [(_, messages, _, _)] in zip(NAMES, before, strict=True):
        assert outcomes[name].is_done
        (_, after, repeated, end), *others = sites.ledger(name)
        assert messages <= after <= 1500 and (repeated, end, others) == (0, "finished", [])


def test_a_node_dies_with_the_process_that_launched_it(tmp_path, monkeypatch):
    sites = with_environment(ThreeSites(tmp_path / "sites"), monkeypatch)
    code = "import sys; from pathlib import Path; from decor.doors.site_node import run_site_node; "
    code += "run_site_node(Path(sys.argv[1]), 'tumour', lambda line: print(line, flush=True))"
    launcher = subprocess.Popen(
        [sys.executable, "-c", code, str(sites.toml("bonn"))], stdout=subprocess.PIPE, text=True
    )
    # it waits for the others, who do not come
    with launcher.stdout as lines:
        assert any("waits for" in line for line in lines)
        socket = sites.path("bonn", "own.ledger.socket")
        assert socket.exists()
        launcher.send_signal(signal.SIGKILL)
        assert launcher.wait(PATIENCE) == -signal.SIGKILL
    # in good order: it has removed its socket, and its ledger can be opened
    until(lambda: not socket.exists())
    assert sites.ledger("bonn") == [(sites.federation.digest.hex(), 0, 0, None)]


def test_without_a_ledger_a_node_is_refused_once_and_none_is_made(sites):
    sites.path("bonn", "own.ledger").unlink()
    log = []
    outcome = run_site_node(sites.toml("bonn"), "tumour", log.append)
    assert (outcome.code, outcome.is_done) == (NEEDS_A_PERSON, False)
    assert len(log) == 1 and "ledger new" in log[0]
    assert not sites.path("bonn", "own.ledger").exists()
    # the sentence names a path: it stays at the site
    assert outcome.public == {"code": 2, "meaning": "a person must look at the site's log"}


def test_a_budget_that_is_spent_is_never_tried_again(sites, monkeypatch):
    monkeypatch.setattr(site_node, "PAUSE", 0.0)
    sites.write_site_file("bonn", allow=0.5)
    log = []
    outcome = run_site_node(sites.toml("bonn"), "tumour", log.append)
    assert outcome.code == PRIVACY and len(log) == 1, log
    assert outcome.public == {"code": 3, "meaning": "stopped for privacy; do not start it again"}


def test_a_cause_that_may_pass_is_waited_for(sites, monkeypatch):
    monkeypatch.setattr(site_node, "PAUSE", 0.0)
    public = Identity.load(sites.path("bonn", "bonn.key")).public
    log = []
    # another process at the same ledger, such as a node that an operator has started
    with Ledger(sites.path("bonn", "own.ledger"), public):
        outcome = run_site_node(sites.toml("bonn"), "tumour", log.append)
    assert outcome.code == TRANSIENT
    assert len(log) == site_node.STARTS and len(set(log)) == 1, log


def test_an_abort_ends_the_wait_for_a_cause_that_may_pass(sites):
    public = Identity.load(sites.path("bonn", "bonn.key")).public
    log = []
    with Ledger(sites.path("bonn", "own.ledger"), public):
        outcome = run_site_node(sites.toml("bonn"), "tumour", log.append, lambda: bool(log))
    assert outcome.code == INTERRUPTED and len(log) == 1


@pytest.mark.parametrize(
    "text, sentence",
    [
        (None, "cannot be read"),
        ("[tumour", "cannot be read"),
        ("[heart]\nfile = 'heart.toml'", "has not agreed to it"),
        ("[tumour]\nidentity = 'bonn.key'", "has not agreed to it"),
        ("[tumour]\nfile = 'tumour.toml'\nfolder = 'away'", "is missing"),
    ],
)
def test_a_job_cannot_choose_what_the_site_has_not_set_up(tmp_path, text, sentence):
    site = tmp_path / "decor.toml"
    if text is not None:
        site.write_text(text)
    log = []
    outcome = run_site_node(site, "tumour", log.append)
    assert outcome.code == NEEDS_A_PERSON
    assert len(log) == 1 and sentence in log[0]
    assert str(tmp_path) not in str(outcome.public)


def test_options_of_the_site_reach_the_node(sites):
    sites.write_site_file("bonn", listen=["127.0.0.1:1"], serve=True, folder="..", file="x.toml")
    folder, words = site_node.node_command(sites.toml("bonn"), "tumour")
    assert folder.samefile(sites.folder)
    assert words[:2] == ["x.toml", "--json"]
    assert {"--listen=127.0.0.1:1", "--serve", "--identity=bonn.key"} <= set(words)


def test_what_own_code_prints_beside_the_answer_changes_nothing(tmp_path):
    assert site_node.public_facts(2, tmp_path, "loading\n") == site_node.public_facts(2)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "manifest.json").write_text('{"federation": "ab"}')
    answer = dict.fromkeys(site_node._PUBLIC, 1) | {"metrics": {"step": 5}, "output": "run"}
    told = site_node.public_facts(130, tmp_path, f"loading\n{json.dumps(answer)}\nbye\n")
    assert told["digest"] == "ab"
    assert all(told[name] == 1 for name in site_node._PUBLIC)
