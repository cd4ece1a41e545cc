"""Actions on the planner's page: find, click, type, draw, and run the command that it shows."""

import json
import shlex
import subprocess
import time

from browser import text
from command_server import decor_command
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

from decor.text import rounded_up


def until(driver, code, *values, seconds=120):
    """Waits for a script to be true: nothing on the page takes a fixed time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := driver.execute_script(f"return ({code})", *values):
            return value
        time.sleep(0.01)
    raise AssertionError(f"{code} did not become true")


def wait_until_settled(driver):
    until(driver, "document.getElementById('answer').getAttribute('aria-busy') === 'false'")
    return driver


def record_announcements(driver):
    """Records all texts for screen readers: an answer may replace one before a test reads it."""
    driver.execute_script(
        "const said = document.getElementById('said'); window.announced = [];"
        "new MutationObserver(() => window.announced.push(said.textContent)).observe("
        "said, {childList: true, characterData: true, subtree: true});"
    )


def select(driver, css, index):
    """Chooses an entry of a list, also while an answer draws the list again."""
    for _ in range(20):
        try:
            return Select(find(driver, css)).select_by_index(index)
        except StaleElementReferenceException:
            continue
    raise AssertionError(f"{css} is drawn again and again")


def find(driver, css):
    return driver.find_element(By.CSS_SELECTOR, css)


def click(driver, css):
    element = find(driver, css)
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
    element.click()


def type_into(driver, css, value):
    field = find(driver, css)
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", field)
    field.send_keys(Keys.CONTROL, "a")
    field.send_keys(str(value))
    return wait_until_settled(driver)


def run_command(driver, folder=None):
    """The JSON that the command on the page prints."""
    words = shlex.split(find(driver, "#command").get_attribute("textContent"))
    assert words[:2] == ["decor", "plan"]
    done = subprocess.run(
        [*decor_command(), *words[1:], "--json"], capture_output=True, text=True, cwd=folder
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def assert_same_plan(driver, plan):
    assert text(driver, "#sigma-cdp") == rounded_up(plan["sigma_cdp"])
    assert text(driver, "#sigma-cor") == rounded_up(plan["sigma_cor"])
    bound = "" if plan["exact"] else "≤ "
    assert text(driver, "#epsilon-spent") == bound + rounded_up(plan["epsilon"])
    assert text(driver, "#statement") == plan["statement"]
    labels = driver.execute_script(
        "return [...document.querySelectorAll('.user')].map((u) => u.getAttribute('aria-label'))"
    )
    shown = {}
    for label in labels:  # User NAME. ε = EPSILON. neighbours ...
        name, epsilon = label.split(". ")[0].removeprefix("User "), label.split("ε = ")[1]
        shown[name] = epsilon.split(". neighbours")[0].split(". no")[0]
    names = plan.get("labels", [str(k) for k in range(plan["users"])])
    epsilons = map(rounded_up, plan["per_user_epsilon"])
    assert shown == dict(zip(names, epsilons, strict=True))


def draw(page, places):
    """Clicks at fractions of the canvas."""
    for x, y in places:
        canvas = find(page, "#graph")
        size = canvas.size
        ActionChains(page, duration=0).move_to_element_with_offset(
            canvas, round((x - 0.5) * size["width"]), round((y - 0.5) * size["height"])
        ).click().perform()


def user(page, name):
    return find(page, f'.user[data-user="{name}"]')


def connect(page, *pairs):
    for pair in pairs:
        for name in pair:
            ActionChains(page, duration=0).move_to_element(user(page, name)).click().perform()


def begin_drawing(page):
    Select(find(page, "#topology")).select_by_visible_text("drawn by hand")
    click(page, "#clear")
    page.execute_script("document.getElementById('canvas').scrollIntoView({block: 'center'})")
    until(page, "document.querySelectorAll('.user').length === 0")
