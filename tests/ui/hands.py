"""What a person does with the planner's page: looks, clicks, types, draws, and runs the command it shows."""

import json
import shlex
import subprocess
import sys
import time

from browser import text
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

from decor.privacy.guarantee import figure


def until(driver, code, *values, seconds=60):
    """Waits for a script to be true: nothing on the page takes a fixed time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = driver.execute_script(f"return ({code})", *values)
        if found:
            return found
        time.sleep(0.01)
    raise AssertionError(f"{code} did not become true")


def settled(driver):
    until(driver, "document.getElementById('answer').getAttribute('aria-busy') === 'false'")
    return driver


def record_announcements(driver):
    """Keeps everything the page says to a screen reader: an answer may replace a sentence before a test reads it."""
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


def typed(driver, css, value):
    field = find(driver, css)
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", field)
    field.send_keys(Keys.CONTROL, "a")
    field.send_keys(str(value))
    return settled(driver)


def printed(driver, folder=None):
    """What the command on the page prints."""
    words = shlex.split(find(driver, "#command").get_attribute("textContent"))
    assert words[:2] == ["decor", "plan"]
    done = subprocess.run([sys.executable, "-m", *words, "--json"], capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def agrees(driver, plan):
    assert text(driver, "#sigma-cdp") == figure(plan["sigma_cdp"]) and text(driver, "#sigma-cor") == figure(plan["sigma_cor"])
    assert text(driver, "#epsilon-spent") == ("" if plan["exact"] else "≤ ") + figure(plan["epsilon"])
    assert text(driver, "#statement") == plan["statement"]
    labels = driver.execute_script("return [...document.querySelectorAll('.user')].map((u) => u.getAttribute('aria-label'))")
    names = plan.get("labels", [str(k) for k in range(plan["users"])])
    said = {
        label.split(". ")[0].removeprefix("User "): label.split("ε = ")[1].split(". neighbours")[0].split(". no")[0]
        for label in labels
    }
    assert said == {name: figure(epsilon) for name, epsilon in zip(names, plan["per_user_epsilon"], strict=True)}


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
