"""The documentation as a site: it builds without a warning, reaches everything, asks for nothing,
and is searched from disk.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

import decor

ROOT = Path(__file__).parent.parent
MISSING = [name for name in ("sphinx", "myst_parser", "furo") if find_spec(name) is None]
pytestmark = pytest.mark.skipif(
    bool(MISSING), reason=f"the extra docs is not installed: {', '.join(MISSING)}"
)

CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
DRIVER = shutil.which("chromedriver")
FLAGS = """--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking
--disable-component-update --disable-sync --disable-dev-shm-usage --hide-scrollbars --window-size=1300,900""".split()


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """As `make docs` builds it, from the pictures that are there."""
    folder = tmp_path_factory.mktemp("site")
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-b",
        "html",
        "-W",
        "--keep-going",
        "-q",
        "-E",
        "-d",
        folder / "trees",
    ]
    found = os.pathsep.join([str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [*command, ROOT / "docs", folder / "html"],
        capture_output=True,
        text=True,
        timeout=240,
        env=os.environ | {"PYTHONPATH": found},
    )
    assert done.returncode == 0, done.stderr
    return folder / "html"


def test_every_page_is_reached_by_the_navigation_of_the_first(site):
    first = (site / "index.html").read_text()
    sidebar = first[first.index('<div class="sidebar-tree">') : first.index("</aside>")]
    reached = set(re.findall(r'href="([\w-]+)\.html"', sidebar))
    assert {page.stem for page in (ROOT / "docs").glob("*.md")} - {"index"} == reached


def test_every_public_name_is_in_the_reference(site):
    page = (site / "api.html").read_text()
    for name in decor.__all__:
        assert f'id="decor.{name}"' in page or f'id="decor.{name}.' in page, (
            f"docs/api.md lacks {name}"
        )


def test_every_command_is_there_with_all_its_options(site):
    from decor.cli.main import parser

    shown = re.sub(r"<[^>]+>", "", (site / "commands.html").read_text())
    commands = re.findall(r"^  ([a-z]+)(?: |$)", parser().format_help(), flags=re.M)
    assert len(commands) > 10
    for command in commands:
        assert f"usage: decor {command}" in shown, f"decor {command} is not among the commands"
    assert "--final-gossip-rounds" in shown and "decor federation check" in shown


def test_no_page_asks_for_anything_from_elsewhere(site):
    for page in site.glob("*.html"):
        text = page.read_text()
        asked = re.findall(r'<(?:script|img|iframe|source|embed)[^>]*?\ssrc="([^"]+)"', text)
        asked += re.findall(r'<link\b[^>]*\bhref="([^"]+)"', text)
        assert asked
        for target in asked:
            assert not re.match(r"[a-z]+:|//", target), f"{page.name} asks for {target}"
            assert (site / target.split("?")[0].split("#")[0]).exists(), (
                f"{page.name} asks for {target}"
            )
    styles = "".join(style.read_text() for style in site.rglob("*.css"))
    assert not re.findall(r"url\(['\"]?(?:https?:|//)", styles) and "@import" not in styles


def test_links_between_pages_lead_to_a_page_and_a_heading(site):
    pages = {page.name: page.read_text() for page in site.glob("*.html")}
    for name, text in pages.items():
        for target, anchor in re.findall(r'<a [^>]*href="([\w.-]*?)(?:#([^"]*))?"', text):
            assert target in pages or not target, f"{name} links to {target}"
            if anchor:
                assert f'id="{anchor}"' in pages[target or name], (
                    f"{name} links to {target}#{anchor}"
                )


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    if not (CHROMIUM and DRIVER):
        pytest.skip("needs chromium and chromedriver on the PATH")
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


def asked_for(browser):
    return browser.execute_script(
        "return performance.getEntriesByType('resource').map(entry => entry.name)"
    )


def complaints(browser):
    return [
        entry for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")
    ]


def test_search_works_from_disk_with_excerpts(site, browser):
    browser.get((site / "index.html").as_uri())
    field = browser.find_element("css selector", "input.sidebar-search")
    field.send_keys("quantum")
    field.submit()
    found, deadline = {}, time.monotonic() + 120
    while not {"attacks.html", "guarantees.html"} <= {
        page for page, text in found.items() if "quantum computer" in text
    }:
        assert time.monotonic() < deadline, found
        time.sleep(0.1)
        results = browser.find_elements("css selector", "ul.search li")
        names = [each.find_element("tag name", "a").get_attribute("href") for each in results]
        found = {
            re.sub(r".*/|[?#].*", "", name): each.text
            for name, each in zip(names, results, strict=True)
        }
    assert all(name.startswith("file:") for name in asked_for(browser))
    browser.find_element("css selector", "ul.search li > a").click()
    assert "quantum" in browser.find_element("tag name", "body").text
    assert complaints(browser) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_are_quiet_and_readable_in_both_colours(site, browser, scheme):
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {"features": [{"name": "prefers-color-scheme", "value": scheme}]},
    )
    for page in ("index", "tutorial", "choosing", "api", "commands", "benchmarks"):
        browser.get((site / f"{page}.html").as_uri())
        light = browser.execute_script(
            "const sum = x => getComputedStyle(document.body)[x].match(/\\d+/g).slice(0, "
            "3).map(Number).reduce((a, b) => a + b);"
            "return sum('backgroundColor') - sum('color')"
        )
        assert light > 300 if scheme == "light" else light < -300, page
        broken = (
            "return [...document.images].filter(image => image.complete && "
            "!image.naturalWidth).map(image => image.src)"
        )
        assert browser.execute_script(broken) == []
        wide = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert browser.execute_script(wide) <= 0, f"{page} is wider than the window"
        assert all(name.startswith("file:") for name in asked_for(browser))
    assert complaints(browser) == []
