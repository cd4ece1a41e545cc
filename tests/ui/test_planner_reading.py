"""The planner in a real browser: seen, heard, on small windows and on paper; and a run that is
watched.
"""

import json
import subprocess

import browser
import pytest
from browser import CONTRAST, CONTROLS, style, text
from command_server import decor_command
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

import decor
from decor.results.live_status import LiveStatus
from decor.text import rounded_up
from decor.ui.watch import FolderWatch

from .actions import (
    assert_same_plan,
    click,
    find,
    run_command,
    type_into,
    until,
    wait_until_settled,
)
from .client import running

pytestmark = browser.NEEDED


def test_without_the_token_the_page_says_what_to_do(driver, planner):
    driver.get("about:blank")
    driver.get(planner.url.partition("#")[0])
    driver.execute_script("sessionStorage.clear()")
    driver.refresh()
    assert "Open the address that decor ui printed" in text(driver, "#trouble")
    driver.get_log("browser")


def test_an_address_pasted_into_the_same_tab_is_taken_and_a_place_on_the_page_is_none(
    show, planner
):
    page = show()
    page.execute_script("sessionStorage.setItem('token', 'of another planner')")
    page.get(planner.url)  # differs from what the tab shows in nothing but what stands behind the #
    until(
        page,
        "sessionStorage.getItem('token') === arguments[0] && !window.location.hash",
        planner.token,
    )
    wait_until_settled(page)
    # as a keyboard user reaches it: the link lies outside the page until it has the focus
    page.execute_script("document.activeElement.blur(); window.scrollTo(0, 0)")
    ActionChains(page, duration=0).send_keys(Keys.TAB).perform()
    assert page.execute_script("return document.activeElement.className") == "skip"
    ActionChains(page, duration=0).send_keys(Keys.ENTER).perform()
    until(page, "window.location.hash === '#answer'")
    page.refresh()
    wait_until_settled(page)
    assert page.execute_script("return sessionStorage.getItem('token')") == planner.token


def states(page):
    """The page in each of its shapes."""
    yield "first"
    Select(find(page, "#topology")).select_by_value("star")
    type_into(page, "#colluders", 1)
    click(page, "#controls details summary")
    Select(find(page, "#unit")).select_by_value("example")
    yield "warned"
    type_into(page, "#batch_size", 0)
    yield "problem"
    Select(find(page, "#unit")).select_by_value("user")
    click(page, "#edit")
    click(page, "#table summary")
    wait_until_settled(page)
    yield "drawn"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_all_text_can_be_read_and_every_control_has_a_name(show, dark):
    page = show(dark=dark)
    for state in states(page):
        wait_until_settled(page)
        assert page.execute_script(CONTRAST) == [], state
        for what, name in page.execute_script(CONTROLS):
            assert name and name.strip(), (state, what)
        names = page.execute_script(
            "return [...document.querySelectorAll('[id]')].map((e) => e.id)"
        )
        assert len(names) == len(set(names))
        # one stop of the Tab key for the graph
        assert len(page.find_elements(By.CSS_SELECTOR, '.user[tabindex="0"]')) == 1
    for sliding in page.find_elements(By.CSS_SELECTOR, "input[type=range]"):
        assert sliding.get_attribute("aria-valuetext")
    ground = sum(map(int, style(page, "body", "backgroundColor").strip("rgb()").split(",")))
    assert ground < 120 if dark else ground > 600


BEYOND = """
const seen = [...document.querySelectorAll('main *, header *')].filter((e) => e.checkVisibility());
return seen.filter((e) => !e.closest('.scroll, pre, svg, .unseen') && e.getBoundingClientRect().right > innerWidth + 1)
  .map((e) => e.outerHTML.slice(0, 99))"""


@pytest.mark.parametrize("width", [360, 1280])
def test_nothing_scrolls_sideways(show, width):
    page = show(width=width)
    for state in states(page):
        assert page.execute_script("return document.documentElement.scrollWidth") <= width, state
        assert page.execute_script(BEYOND) == [], state


def test_a_ring_stays_round_when_the_window_changes(show):
    page = show(width=1280)
    spread = """const boxes = [...document.querySelectorAll('.node')].map((node) => node.getBoundingClientRect());
    return ['left', 'top'].map((side) => Math.max(...boxes.map((b) => b[side])) - Math.min(...boxes.map((b) => b[side])))"""
    for width in (1280, 360):
        browser.shape(page, width)
        page.execute_async_script(
            "requestAnimationFrame(() => requestAnimationFrame(() => "
            "requestAnimationFrame(arguments[0])))"
        )
        across, down = page.execute_script(spread)
        assert across > 100 and across == pytest.approx(down, rel=0.02)


def test_users_are_told_apart_by_colour_and_in_words(show):
    page = show()
    Select(find(page, "#topology")).select_by_value("star")
    type_into(page, "#colluders", 0)  # one who is curious isolates everybody on a star
    wait_until_settled(page)
    colours = page.execute_script(
        "return [...document.querySelectorAll('.node')].map((n) => getComputedStyle(n).fill)"
    )
    assert colours[0] != colours[1] and len(set(colours[1:])) == 1
    plan = run_command(page)
    low, high = (rounded_up(f(plan["per_user_epsilon"])) for f in (min, max))
    assert low in text(page, "#legend") and high in text(page, "#legend") and low != high
    assert f"from epsilon {low} to {high}" in find(page, "#legend svg").get_attribute("aria-label")


def test_a_summary_is_said_when_the_sliders_rest(show):
    page = show()
    type_into(page, "#epsilon", 5)
    until(page, "document.getElementById('said').textContent.includes('epsilon 5 against')")
    assert find(page, "#said").get_attribute("aria-live") == "polite" and text(
        page, "#sigma-cdp"
    ) in find(page, "#said").get_attribute("textContent")


def test_the_command_is_copied(show):
    page = show()
    click(page, "#copy")
    until(page, "['Copied', 'Selected'].includes(document.getElementById('copy').textContent)")


def test_on_paper_there_is_the_answer_and_no_controls(show):
    page = show(dark=True)
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", "features": []})
    assert not find(page, "#controls").is_displayed() and not find(page, "#copy").is_displayed()
    assert (
        find(page, "#graph").is_displayed()
        and style(page, "body", "backgroundColor") == "rgb(255, 255, 255)"
    )


PLAN = decor.calibrate(
    decor.ring(6), decor.Exposure(1.0, 40), decor.Adversary.curious(), decor.Budget(4.0, 1e-5)
)


def test_a_run_is_watched_while_its_files_change(show, tmp_path):
    def nobody(path):
        raise decor.InputError("nobody")

    def measured(step):
        live._written = -1e9
        live.record(step, {"step": step, "loss": 1 / (1 + step), "accuracy": 0.5 + step / 100})

    with running(FolderWatch(tmp_path / "run", nobody)) as server:
        page = show(server)
        until(
            page, "document.getElementById('watch-said').textContent.includes('no such folder yet')"
        )
        live = LiveStatus(tmp_path / "run", PLAN)
        measured(0)
        measured(10)
        until(page, "document.getElementById('watch-step')?.textContent === '10'")
        line = find(page, "#watch-line").get_attribute("d")
        measured(20)
        until(page, "document.getElementById('watch-step')?.textContent === '20'")
        assert find(page, "#watch-line").get_attribute("d").count("L") == line.count("L") + 1
        assert text(page, "#watch-value") == "70.0 %" and "In progress" in text(page, "#watch-said")
        assert 0 < float(text(page, "#watch-epsilon")) < 4
        Select(find(page, "#metric")).select_by_visible_text("training loss")
        assert text(page, "#watch-value") == "0.0476"
        assert page.execute_script(CONTRAST) == [] and all(
            name.strip() for _, name in page.execute_script(CONTROLS)
        )
        (tmp_path / "run" / "plan.json").write_text(PLAN.to_json())
        (tmp_path / "run" / "metrics.jsonl").write_text(
            '{"step": 0, "accuracy": 0.5}\n{"step": 40, "accuracy": 0.9}\n'
        )
        (tmp_path / "run" / "manifest.json").write_text(
            json.dumps({"format": "decor-run-1", "steps_taken": 40, "stopped": None})
        )
        live.remove()
        until(page, "document.getElementById('watch-said').textContent === 'Finished.'")
        assert text(page, "#watch-epsilon") == "4" and text(page, "#watch-value") == "90.0 %"
        click(page, "#view-plan")
        wait_until_settled(page)
        assert_same_plan(page, run_command(page))


def test_a_planner_that_has_ended_is_missed(driver):
    command = [*decor_command(), "ui", "--json", "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as planner:
        try:
            driver.get(json.loads(planner.stdout.readline())["url"])
            wait_until_settled(driver)
        finally:
            planner.terminate()
    assert planner.returncode == 0
    find(driver, "#epsilon-slider").send_keys(Keys.ARROW_RIGHT)
    until(driver, "!document.getElementById('trouble').hidden")
    assert "start decor ui again" in text(driver, "#trouble")
    assert find(driver, "#answer").get_attribute("aria-busy") == "true", (
        "what is shown is not what the controls say"
    )
    driver.get("about:blank")
    driver.get_log("browser")
