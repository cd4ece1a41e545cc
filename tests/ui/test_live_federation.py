"""A real federation on the page of `decor ui`: a user is killed, is seen to be gone, and comes
back.
"""

import json
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import browser
import pytest
from command_server import decor_command

pytest.importorskip("cryptography", reason="nodes need cryptography")
sys.path.insert(0, str(Path(__file__).parent.parent / "federation"))

from browser import text  # noqa: E402
from trial_federation import PATIENCE, ForkServer, Trial  # noqa: E402

from decor.net.addresses import free_ports  # noqa: E402
from decor.text import rounded_up  # noqa: E402

from .actions import click, find, until, wait_until_settled  # noqa: E402

pytestmark = browser.NEEDED

HAS_LEFT = """[...document.querySelectorAll('#live-table tbody tr')].some((row) =>
  row.cells[0].textContent === arguments[0] && row.cells[1].textContent === 'finished: its process has ended')"""
# a node works on its first step before it has made one
HAS_STEPS = """[...document.querySelectorAll('#live-table tbody tr')].some((row) =>
  row.cells[0].textContent === arguments[0] && parseInt(row.cells[2].textContent) > 0)"""
NAMES = "return [...document.querySelectorAll('.peer')].map((e) => e.dataset.user)"


@pytest.fixture(scope="module")
def fork_server():
    with ForkServer() as made:
        yield made


@contextmanager
def ui(driver, *options):
    """The page of the command with these options."""
    command = [*decor_command(), "ui", "--json", "--no-browser", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            browser.shape(driver)
            driver.get_log("browser")
            driver.get(json.loads(process.stdout.readline())["url"])
            wait_until_settled(driver)
            yield driver
            assert browser.complaints(driver) == []
        finally:
            process.terminate()
    assert process.returncode == 0
    driver.get("about:blank")


def wait_for(page, **states):
    """Until users are in these states; nobody is ever missing."""
    for name, state in states.items():
        until(
            page,
            f"document.querySelector('.peer[data-user=\"{name}\"]')?.dataset.state === '{state}'",
            seconds=PATIENCE,
        )


def links(page):
    """The states of all edges, counted by the page."""
    code = "return [...document.querySelectorAll('#peers .link')].map((e) => e.className.baseVal.slice(7))"
    return sorted(page.execute_script(code))


def check_against_the_node(page, trial, name):
    """The page shows what the node itself says; steps go on while both are read."""
    until(page, HAS_STEPS, name, seconds=PATIENCE)
    rows = page.execute_script(
        "return [...document.querySelectorAll('#live-table tbody tr')].map((r) => [...r.cells].map((c) => c.textContent))"
    )
    (row,) = [each for each in rows if each[0] == name]
    after = trial.status(name)
    step, _, steps = row[2].replace(",", "").split()
    assert int(steps) == trial.steps and 0 < int(step) <= after["step"]
    assert row[5] == rounded_up(after["epsilon"]) == "10"
    assert 0 < float(row[4]) <= float(rounded_up(after["epsilon_if_fixed"]))
    assert row[6] == "0"


def test_a_user_that_is_killed_is_seen_to_be_gone_and_comes_back(driver, tmp_path, fork_server):
    with Trial(tmp_path, fork_server, 4, steps=2000, timeout=1.0, quorum=0.5, pace=0.02) as trial:
        trial.make_ledger("bonn")
        with ui(driver, "--watch", str(tmp_path)) as page:
            wait_for(page, bonn="stopped")
            assert "has never begun" in text(page, "#live-table")
            trial.start()
            wait_for(page, **dict.fromkeys(trial.names, "working"))
            until(page, "document.getElementById('watch-said').textContent.startsWith('4 of 4')")
            until(page, "document.querySelectorAll('#peers .l-connected').length === 4")
            for name in trial.names:
                check_against_the_node(page, trial, name)

            trial.kill("ulm")
            wait_for(page, ulm="stopped")
            until(page, "document.querySelectorAll('#peers .l-broken').length === 2")
            until(
                page,
                "document.getElementById('said').textContent.includes('ulm has stopped since')",
            )
            click(page, '.peer[data-user="ulm"]')
            details = text(page, "#live-details")
            assert details.startswith("ulm") and "bonn: not connected" in details
            # the others go on without it
            wait_for(page, bonn="working", kiel="working", jena="working")
            until(
                page,
                "document.getElementById('live-table').textContent.includes('not ulm')",
                seconds=PATIENCE,
            )

            trial.start("ulm")
            wait_for(page, ulm="working")
            until(page, "document.querySelectorAll('#peers .l-connected').length === 4")

            # a process that is stopped answers nothing: its ledger is in use
            trial.signal("kiel", signal.SIGSTOP)
            wait_for(page, kiel="unreachable")
            trial.signal("kiel", signal.SIGCONT)
            wait_for(page, kiel="working")

            for name in trial.names:
                trial.signal(name, signal.SIGINT)
            wait_for(page, **dict.fromkeys(trial.names, "stopped"))
            assert text(page, "#watch-said") == "0 of 4 at work; 4 have stopped."


def test_nodes_are_asked_at_their_metrics_addresses(driver, tmp_path, fork_server):
    # slow until hurry(): minutes of steps, so that no page is too late to see them
    with Trial(tmp_path, fork_server, 4, steps=1000, timeout=5.0, pace=0.05) as trial:
        ports = dict(zip(trial.names, free_ports(4), strict=True))
        given = [f"127.0.0.1:{ports[name]}" for name in trial.names if name != "jena"]
        with ui(driver, "--metrics", ",".join(given[:2]), "--metrics", given[2]) as page:
            wait_for(page, **dict.fromkeys(given, "unreachable"))
            for name in trial.names:
                more = ("--serve",) if name == "bonn" else ()
                trial.start(name, more=("--metrics", str(ports[name]), *more))
            wait_for(page, bonn="working", ulm="working", kiel="working", jena="unasked")
            until(page, "document.querySelectorAll('#peers .l-connected').length === 4")
            for name in ("bonn", "ulm", "kiel"):
                check_against_the_node(page, trial, name)

            trial.kill("ulm")
            wait_for(page, ulm="unreachable")
            until(
                page,
                "document.getElementById('watch-said').textContent.includes('ulm is not reachable since')",
            )
            trial.start("ulm", more=("--metrics", str(ports["ulm"])))
            wait_for(page, ulm="working")
            trial.hurry()
            trial.finished("ulm", "kiel", "jena")
            # bonn serves its model; who is done is not called lost because its process has ended
            wait_for(page, bonn="finished", ulm="finished", jena="finished")
            until(page, HAS_LEFT, "ulm", seconds=PATIENCE)
            trial.signal("bonn", signal.SIGINT)
            trial.finished("bonn")
            until(page, HAS_LEFT, "bonn", seconds=PATIENCE)
            assert set(page.execute_script(NAMES)) == set(trial.names)


def test_a_finished_federation_is_read_from_its_ledgers(driver, tmp_path, fork_server):
    with Trial(tmp_path, fork_server, 3, steps=5, timeout=60.0) as trial:
        trial.start()
        trial.finished()
        with ui(driver, "--watch", str(tmp_path)) as page:
            wait_for(page, bonn="finished", ulm="finished", kiel="finished")
            assert text(page, "#watch-said") == "All 3 have finished."
            assert links(page) == ["done"] * 3
            assert text(page, "#live-step") == "5" and text(page, "#live-epsilon") == "10"


@pytest.mark.parametrize("option", ["--watch", "--metrics"])
def test_nodes_with_different_files_are_flagged(driver, tmp_path, fork_server, option):
    with Trial(tmp_path, fork_server, 3, steps=5, proxied=False) as trial:
        other = tmp_path / "other.toml"
        content = trial.file.read_text()
        assert "clip = 1.0" in content
        other.write_text(content.replace("clip = 1.0", "clip = 1.5"))
        ports = dict(zip(trial.names, free_ports(3), strict=True))
        for name in trial.names:
            file = other if name == "kiel" else None
            trial.start(name, file=file, more=("--metrics", str(ports[name])))
        addresses = ",".join(f"127.0.0.1:{port}" for port in ports.values())
        given = str(tmp_path) if option == "--watch" else addresses
        with ui(driver, option, given) as page:
            wait_for(page, bonn="waiting", ulm="waiting", kiel="waiting")
            until(page, "document.querySelector('#live-warnings .notice')", seconds=PATIENCE)
            assert "different federation files" in text(page, "#live-warnings")
            click(page, '.peer[data-user="kiel"]')
            details = "document.getElementById('live-details').textContent"
            until(page, f"{details}.includes('another federation file')", seconds=PATIENCE)


def test_the_window_of_a_real_federation_can_be_read(driver, tmp_path, fork_server):
    """As the pages of the planner: contrast, names of controls, and no sideways scrolling."""
    with Trial(tmp_path, fork_server, 3, steps=5, timeout=60.0) as trial:
        trial.start("bonn", "ulm")
        with ui(driver, "--watch", str(tmp_path)) as page:
            wait_for(page, bonn="waiting", ulm="waiting", kiel="unasked")
            click(page, '.peer[data-user="bonn"]')
            assert page.execute_script(browser.CONTRAST) == []
            assert all(name.strip() for _, name in page.execute_script(browser.CONTROLS))
            assert "waits for kiel" in text(page, "#live-details")
            assert find(page, "#peers").get_attribute("role") == "listbox"
