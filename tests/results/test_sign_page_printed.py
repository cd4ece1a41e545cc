"""A page to sign in a real browser: forty users with long names are readable, and print on A4."""

import browser
import pytest
import sample

from decor.results import sign_page

pytestmark = browser.NEEDED


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    with browser.started(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


@pytest.fixture
def show(driver, tmp_path):
    sign_page.write(sample.sign_page(), tmp_path / "a.html")

    def open_page(width=1280, dark=False):
        browser.shape(driver, width, dark)
        driver.get((tmp_path / "a.html").as_uri())
        return driver

    driver.get_log("browser")
    yield open_page
    assert browser.complaints(driver) == []


@pytest.mark.parametrize("width", [380, 1280])
def test_no_page_of_forty_users_with_long_names_scrolls_sideways(show, width):
    page = show(width)
    assert page.execute_script("return document.documentElement.scrollWidth") <= width
    assert browser.beyond_the_edge(page) == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_reader_with_a_screen_reader_or_weak_eyes_can_use_it(show, dark):
    page = show(dark=dark)
    assert page.execute_script(browser.CONTRAST) == []
    for what, name in page.execute_script(browser.CONTROLS):
        assert name and name.strip(), what
    code = """return [document.documentElement.lang, document.querySelectorAll('h1').length,
      [...document.querySelectorAll('section')].filter((e) => !e.querySelector('h2')).length,
      [...document.querySelectorAll('thead th')].filter((e) => e.scope !== 'col').length,
      [...document.querySelectorAll('section:not(.signing) tbody tr')]
        .filter((e) => e.cells[0].scope !== 'row').length]"""
    assert page.execute_script(code) == ["en", 1, 0, 0, 0]


def test_it_prints_on_a4_with_nothing_cut_off_and_no_row_divided(show):
    page = show(dark=True)
    browser.on_paper(page)
    assert page.execute_script("return document.documentElement.scrollWidth") <= browser.PAPER
    assert browser.beyond_the_edge(page) == []
    assert browser.style(page, "body", "backgroundColor") == "rgb(255, 255, 255)"
    # printers repeat the head of a table and divide no row
    assert browser.style(page, "thead", "display") == "table-header-group"
    assert browser.style(page, "tbody tr", "breakInside") == "avoid"
    assert browser.style(page, ".signing", "breakInside") == "avoid"
    sizes = browser.pages_of_pdf(page)
    assert {*sizes} == {(595, 842)} and 2 <= len(sizes) <= 5
