"""The page in a real browser, opened from disk: what a person sees, chooses, types and prints."""

import browser
import pytest
import sample
from browser import CONTRAST, CONTROLS, style, text
from selenium.common.exceptions import NoAlertPresentException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

from decor.results import report

pytestmark = browser.NEEDED


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    with browser.started(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """The page of each sample, written once."""
    folder, written = tmp_path_factory.mktemp("pages"), {}

    def path(make):
        if make not in written:
            written[make] = folder / f"{make.__name__}.html"
            report.write(sample.read(make()), written[make])
        return written[make]

    return path


@pytest.fixture
def show(driver, pages):
    """Open a sample as a person would; afterwards the console must be silent."""

    def open_page(make, width=1280, dark=False, script=True):
        browser.shape(driver, width, dark)
        driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": not script})
        driver.get(pages(make).as_uri())
        return driver

    driver.get_log("browser")
    yield open_page
    driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
    assert browser.complaints(driver) == []


def choose_epsilon(driver, name):
    driver.find_element(By.CSS_SELECTOR, f'input[aria-label="epsilon {name}"]').click()


def choose(driver, control, name):
    Select(driver.find_element(By.ID, control)).select_by_visible_text(name)


def figure(driver, card):
    """The label of the one figure that a card shows."""
    found = [
        svg
        for svg in driver.find_elements(By.CSS_SELECTOR, f"#{card} svg")
        if svg.is_displayed() and svg.rect["width"] > 200 and svg.rect["height"] > 100
    ]
    assert len(found) == 1
    return found[0].get_attribute("aria-label")


@pytest.mark.parametrize("make", sample.EVERY, ids=lambda make: make.__name__)
@pytest.mark.parametrize("width", [380, 1280])
def test_figures_are_visible_and_nothing_but_figures_and_tables_scrolls_sideways(show, make, width):
    page = show(make, width)
    assert figure(page, "curves")
    assert page.execute_script("return document.documentElement.scrollWidth") <= width
    assert browser.beyond_the_edge(page) == []


def test_text_of_a_figure_stays_inside_and_does_not_overlap(show):
    for make in (sample.comparison, sample.star, sample.forty):
        page = show(make)
        code = """return [...document.querySelectorAll('.figure svg')].filter((s) => s.checkVisibility()).flatMap((s, k) => {
          const box = s.getBoundingClientRect();
          return [...s.querySelectorAll('text')].filter((t) => t.textContent.length > 2 || k < 2).map((t) => {
            const r = t.getBoundingClientRect();
            return {k, said: t.textContent, left: r.left - box.left, right: r.right - box.left, top: r.top, bottom: r.bottom,
              width: box.width};
          });
        })"""
        boxes = page.execute_script(code)
        assert len(boxes) > 20
        for n, a in enumerate(boxes):
            assert a["left"] >= -1 and a["right"] <= a["width"] + 1, a
            for b in boxes[n + 1 :]:
                beside = a["right"] <= b["left"] or b["right"] <= a["left"]
                above = a["bottom"] <= b["top"] + 3 or b["bottom"] <= a["top"] + 3
                assert a["k"] != b["k"] or beside or above, (a["said"], b["said"])


def test_every_control_shows_its_panels(show):
    page, data = show(sample.comparison), sample.read(sample.comparison())
    for epsilon in sample.EPSILONS:
        choose_epsilon(page, f"{epsilon:g}")
        outcome = data.outcome("DECOR ring", epsilon)
        assert outcome.guarantee in text(page, "#guarantee")
        assert f"test accuracy (higher is better) over the steps at epsilon {epsilon:g}." in figure(
            page, "curves"
        )
        assert f"ε = {epsilon:g}, δ" in text(page, "#adversaries")
        assert page.find_element(By.CSS_SELECTOR, "tr.chosen").text.startswith(
            f"DECOR ring {epsilon:g} "
        )
    choose(page, "metric", "training loss")
    assert figure(page, "curves").startswith("training loss (lower is better)")
    assert figure(page, "comparison").startswith("training loss (lower is better)")
    assert "training loss, DECOR ring" in text(page, "#kpis")
    choose(page, "method", "No privacy")
    assert "this method has no privacy" in text(page, "#guarantee")
    assert page.find_element(By.CSS_SELECTOR, "tr.chosen").text.startswith("No privacy none ")
    choose(page, "method", "DECOR torus")
    assert "DECOR torus" in text(page, "#guarantee")


def test_the_graph_is_shown_at_the_chosen_budget(show):
    page = show(sample.star)
    assert "at epsilon 1: from 0.528 to 1" in figure(page, "users")
    choose_epsilon(page, "10")
    assert "at epsilon 10: from 4.971 to 10" in figure(page, "users")
    page.find_element(By.CSS_SELECTOR, "#users summary").click()
    assert "4.971" in text(page, "#users table")


def column(page, k):
    code = "return [...document.querySelectorAll(`#results tbody tr`)].map((r) => r.cells[arguments[0]].dataset.sort)"
    return page.execute_script(code, k)


def test_a_click_on_a_head_sorts_and_another_turns_round(show):
    page = show(sample.diverged)
    for k in (1, 2, 7):
        button = page.find_elements(By.CSS_SELECTOR, "#results thead button")[k]
        head = page.find_elements(By.CSS_SELECTOR, "#results thead th")[k]
        button.click()
        known = [float(value) for value in column(page, k) if value]
        # rows without a value come last
        assert known == sorted(known) and "" not in column(page, k)[: len(known)]
        assert head.get_attribute("aria-sort") == "ascending"
        button.click()
        assert [float(value) for value in column(page, k) if value] == known[::-1]
        assert "" not in column(page, k)[: len(known)]
        assert head.get_attribute("aria-sort") == "descending"
    page.find_elements(By.CSS_SELECTOR, "#results thead button")[0].click()
    assert column(page, 0) == sorted(column(page, 0)) and len(column(page, 0)) == 17
    assert len(page.find_elements(By.CSS_SELECTOR, "[aria-sort]")) == 1


def test_the_keyboard_reaches_and_changes_everything(show):
    page = show(sample.comparison)
    page.find_element(By.CSS_SELECTOR, 'input[aria-label="epsilon 3"]').send_keys(Keys.ARROW_RIGHT)
    assert "at epsilon 10" in figure(page, "curves")
    page.find_element(By.ID, "metric").send_keys(Keys.ARROW_DOWN)
    assert figure(page, "comparison").startswith("training loss")
    page.find_elements(By.CSS_SELECTOR, "#results thead button")[2].send_keys(Keys.ENTER)
    assert page.find_elements(By.CSS_SELECTOR, '[aria-sort="ascending"]')
    page.find_element(By.CSS_SELECTOR, "#curves details:not([hidden]) summary")
    shown = [s for s in page.find_elements(By.CSS_SELECTOR, "#curves summary") if s.is_displayed()]
    shown[0].send_keys(Keys.ENTER)
    assert "Values of the curves: training loss at ε = 10" in text(page, "#curves")
    assert "DECOR torus" in text(page, "#curves details[open] table")


@pytest.mark.parametrize(
    "make", [sample.comparison, sample.single, sample.large], ids=lambda make: make.__name__
)
def test_every_control_has_a_name(show, make):
    for what, name in show(make).execute_script(CONTROLS):
        assert name and name.strip(), what


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("make", [sample.diverged, sample.large], ids=lambda make: make.__name__)
def test_all_text_has_enough_contrast(show, make, dark):
    assert show(make, dark=dark).execute_script(CONTRAST) == []


def test_the_dark_scheme_is_dark_in_every_part(show):
    found = {}
    for dark in (False, True):
        page = show(sample.comparison, dark=dark)
        grounds = (style(page, "body", "backgroundColor"), style(page, ".card", "backgroundColor"))
        line = style(page, '#comparison path[style*="--method-0"]', "stroke")
        found[dark] = (*grounds, style(page, "#curves svg text", "fill"), line)
    assert all(a != b for a, b in zip(found[False], found[True], strict=True))
    brightness = {dark: sum(map(int, found[dark][0].strip("rgb()").split(","))) for dark in found}
    assert brightness[False] > 600 and brightness[True] < 120


def test_hostile_text_stays_text(show):
    page = show(sample.hostile)
    choose_epsilon(page, "10")
    assert sample.HOSTILE in figure(page, "users")
    counts = "return ['script', 'img'].map((name) => document.querySelectorAll(name).length)"
    assert page.execute_script(counts) == [1, 0]
    for css in ("h1", "#method option"):
        element = page.find_element(By.CSS_SELECTOR, css)
        assert element.get_attribute("textContent") == sample.HOSTILE
    with pytest.raises(NoAlertPresentException):
        page.switch_to.alert.accept()


def test_a_script_that_gets_in_all_the_same_does_not_run(driver, pages, tmp_path):
    bad = "</main><script>window.bad = 1</script><b onclick='1' id=b></b>"
    text = pages(sample.single).read_text("utf-8").replace("</main>", bad)
    (tmp_path / "bad.html").write_text(text, "utf-8")
    driver.get((tmp_path / "bad.html").as_uri())
    assert driver.execute_script("return window.bad") is None
    assert any("Content Security Policy" in entry["message"] for entry in driver.get_log("browser"))


def test_without_scripts_the_first_figures_and_all_tables_are_there(show):
    page = show(sample.comparison, script=False)
    assert "JavaScript is off" in text(page, "noscript")
    assert not page.find_element(By.ID, "bar").is_displayed()
    assert page.find_element(By.ID, "results").is_displayed()
    shown = [
        svg for svg in page.find_elements(By.CSS_SELECTOR, ".figure svg") if svg.is_displayed()
    ]
    assert len(shown) == 2 and "SecLDP" in text(page, "#guarantee")
    tables = page.find_elements(By.CSS_SELECTOR, "#adversaries table")
    # DECOR on two graphs and local DP, with four budgets each
    assert len(tables) == 12 and all(table.is_displayed() for table in tables)
    summaries = page.find_elements(By.CSS_SELECTOR, "#curves summary")
    assert len(summaries) == 8 and all(summary.is_displayed() for summary in summaries)


def test_on_paper_there_are_figures_and_no_controls(show):
    page = show(sample.comparison, dark=True)
    scheme = {"name": "prefers-color-scheme", "value": "dark"}
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", "features": [scheme]})
    for name in ("bar", "copy"):
        assert not page.find_element(By.ID, name).is_displayed()
    assert figure(page, "comparison") and figure(page, "curves")
    assert style(page, "body", "backgroundColor") == "rgb(255, 255, 255)"
    assert style(page, "body", "color") == "rgb(31, 36, 48)"


@pytest.mark.parametrize("make", sample.EVERY, ids=lambda make: make.__name__)
def test_nothing_is_cut_off_on_paper(show, make):
    page = show(make)
    browser.on_paper(page)
    assert page.execute_script("return document.documentElement.scrollWidth") <= browser.PAPER
    assert browser.beyond_the_edge(page) == []
    sizes = browser.pages_of_pdf(page)
    assert {*sizes} == {(595, 842)} and len(sizes) < 12


def test_copying_the_command_says_so(show):
    page = show(sample.comparison)
    button = page.find_element(By.ID, "copy")
    page.execute_script("arguments[0].scrollIntoView({block: 'center'})", button)
    button.click()
    page.execute_async_script("setTimeout(arguments[0], 200)")
    assert button.text in ("Copied", "Selected")


def test_the_report_of_a_real_comparison_opens_with_its_figures(driver, tmp_path):
    """From training to the page, with nothing made up."""
    import decor
    from decor.training.compare import Comparison, Design

    graphs = (("ring", decor.ring(8)), ("star", decor.star(8)))
    # on a star the hub isolates all other users from each other
    outsider = decor.Adversary.eavesdropper()
    rates = {"learning_rates": (0.05, 0.2), "seeds": (0, 1), "adversary": outsider}
    design = Design(graphs, (3.0, 30.0), decor.Exposure(1.0, 12), **rates)
    data = Comparison(decor.tasks.breast_cancer(users=8), design, tmp_path / "c").run()
    report.write(data, tmp_path / "report.html")
    driver.get((tmp_path / "report.html").as_uri())
    methods = [method.name for method in data.methods]
    assert methods == ["no privacy", "central DP", "DECOR ring", "DECOR star", "local DP ring"]
    assert all(name in figure(driver, "comparison") for name in methods)
    choose(driver, "method", "DECOR star")
    choose_epsilon(driver, "30")
    assert "(30, 1e-05)-SecLDP over 12 steps" in text(driver, "#guarantee")
    assert figure(driver, "users").startswith("epsilon of each user for DECOR star at epsilon 30")
