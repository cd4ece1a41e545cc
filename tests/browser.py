"""A real browser without a window, and what is asked of every page: names on all controls, and text
that can be read.
"""

import base64
import re
import shutil
import time
from contextlib import contextmanager

import pytest

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
from selenium.common.exceptions import SessionNotCreatedException  # noqa: E402
from selenium.webdriver.chrome.service import Service  # noqa: E402
from selenium.webdriver.common.action_chains import ActionChains  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402

CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
DRIVER = shutil.which("chromedriver")
NEEDED = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="needs chromium and chromedriver on the PATH"
)

FLAGS = """--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking
--disable-component-update --disable-sync --disable-dev-shm-usage --hide-scrollbars""".split()


@contextmanager
def started(profile):
    """One browser, for as long as this lasts."""
    driver = _start(profile)
    try:
        yield driver
    finally:
        driver.quit()


def _start(profile, waits=(2, 5, 10, 20, 40)):
    """On a machine at its limits the browser sometimes exits before its first window."""
    for k, wait in enumerate((*waits, None)):
        options = webdriver.ChromeOptions()
        options.binary_location = CHROMIUM
        # what a browser that exited has left in its profile would stop the next one
        for flag in (*FLAGS, f"--user-data-dir={profile}/{k}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        log = profile / f"{k}.log"
        verbose = ["--verbose"] if k else []
        service = Service(DRIVER, log_output=str(log), service_args=verbose)
        try:
            return webdriver.Chrome(options=options, service=service)
        except SessionNotCreatedException as error:
            if wait is None:
                error.add_note(log.read_text(errors="replace")[-5000:])
                raise
            time.sleep(wait)
    raise AssertionError("no try was made")


def shape(driver, width=1280, dark=False):
    """The window's width and the person's taste; nothing moves by itself."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    motion = {"name": "prefers-reduced-motion", "value": "reduce"}
    driver.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"media": "", "features": [scheme, motion]}
    )


PAPER = 680
"""Pixels between the margins of an A4 page, 15 mm on each side."""


def on_paper(driver):
    """The page as a printer lays it out; afterwards `shape` brings the screen back."""
    size = {"width": PAPER, "height": 1009, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", "features": []})


def pages_of_pdf(driver):
    """The size of each page in points, as a person who prints to a file gets them."""
    options = {"preferCSSPageSize": True, "printBackground": True}
    text = base64.b64decode(driver.execute_cdp_cmd("Page.printToPDF", options)["data"])
    boxes = re.findall(rb"/MediaBox \[0 0 ([\d.]+) ([\d.]+)\]", text)
    return [(round(float(width)), round(float(height))) for width, height in boxes]


def beyond_the_edge(driver):
    """Elements that reach beyond the right edge, but for those that scroll by themselves; and for
    text that is cut off in those on paper, where nothing scrolls.
    """
    return driver.execute_script(BEYOND)


def complaints(driver):
    """What the console says, since it was last asked."""
    return [entry for entry in driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]


def text(driver, css):
    return driver.find_element(By.CSS_SELECTOR, css).text


def style(driver, css, name):
    code = "return getComputedStyle(document.querySelector(arguments[0]))[arguments[1]]"
    return driver.execute_script(code, css, name)


def hover(driver, element, dx=0, dy=0):
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
    ActionChains(driver, duration=0).move_to_element_with_offset(element, dx, dy).perform()


BEYOND = """
const scrolls = (e) => e.closest('.scroll, .figure') && !matchMedia('print').matches;
return [...document.querySelectorAll('body *')].filter((e) => e.checkVisibility() && !e.closest('.skip')
  && !scrolls(e) && !e.closest('svg *') && e.getBoundingClientRect().right > innerWidth + 1)
  .map((e) => e.outerHTML.slice(0, 99))"""

CONTROLS = """
const wanted = 'button, select, input, summary, [tabindex="0"]';
const controls = [...document.querySelectorAll(wanted)].filter((e) => e.checkVisibility());
const pointed = (e) => document.getElementById(e.getAttribute('aria-labelledby'));
return controls.map((e) => [e.outerHTML.slice(0, 80), e.getAttribute('aria-label') || pointed(e)?.textContent
  || (e.matches('select, input') ? e.labels[0]?.textContent : e.textContent)])"""
"""Every control that is seen, and the name that a screen reader says."""

CONTRAST = """
const channel = (v) => (v <= 10.3 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4);
const parts = (css) => (css.match(/[\\d.]+/g) || []).map(Number);
const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
const opaque = (css) => css.startsWith('rgb') && (parts(css)[3] ?? 1) > 0.85;
const solid = (css) => (opaque(css) ? parts(css) : null);
const ground = (e) => (e ? solid(getComputedStyle(e).backgroundColor) || ground(e.parentElement) : [255, 255, 255]);
return [...document.querySelectorAll('body *')].filter((e) => e.checkVisibility() && !e.closest('.skip') && !e.closest('option')
  && [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim())).map((e) => {
  const inside = e.classList.contains('inside');
  const css = getComputedStyle(e)[e.closest('svg') ? 'fill' : 'color'];
  const below = inside ? parts(getComputedStyle(e.previousElementSibling).fill) : ground(e);
  const [low, high] = [light(parts(css)), light(below)].sort((a, b) => a - b);
  return [(high + 0.05) / (low + 0.05), e.textContent.slice(0, 40), css, below.join()];
}).filter(([ratio]) => ratio < 4.5)"""
"""All text that does not stand out enough from what is behind it, as WCAG's AA asks."""
