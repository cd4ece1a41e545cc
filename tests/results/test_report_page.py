"""The page in a real browser, opened from disk: what a person sees, points at, types and hears."""

import json
import math
import random
from importlib import resources

import browser
import pytest
import sample
from browser import CONTRAST, CONTROLS, hover, style, text
from selenium.common.exceptions import NoAlertPresentException
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

from decor.results import report
from decor.results.report_view import view
from decor.results.tables import Spread, spread_text
from decor.text import rounded_up

pytestmark = browser.NEEDED

EVERY = [
    sample.comparison,
    sample.star,
    sample.diverged,
    sample.single,
    sample.large,
    sample.hostile,
]


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    with browser.started(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


@pytest.fixture
def show(driver, tmp_path):
    """Open report data as a person would; afterwards the console must be silent."""

    def open_page(data, width=1280, dark=False, script=True):
        report.write(data, tmp_path / "report.html")
        browser.shape(driver, width, dark)
        driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": not script})
        driver.get((tmp_path / "report.html").as_uri())
        return driver

    driver.get_log("browser")
    yield open_page
    driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
    assert browser.complaints(driver) == []


def choose_epsilon(driver, name):
    driver.find_element(By.CSS_SELECTOR, f'input[aria-label="epsilon {name}"]').click()


def series(driver, plot, method):
    return driver.find_elements(By.CSS_SELECTOR, f'#{plot} [data-series="{method}"] .line')


BOXES = """
const wanted = '.line, .dot, .band, .whisker, .failed, .node, .bar-mark, .edges, .ramp';
return [...document.querySelectorAll('.plot svg')].filter((root) => root.checkVisibility()).map((root) => ({
  plot: root.parentElement.id, frame: root.getBoundingClientRect().toJSON(),
  marks: [...root.querySelectorAll(wanted)].map((mark) => ({
    ...mark.getBoundingClientRect().toJSON(), text: mark.outerHTML.slice(0, 200)})),
}))"""


@pytest.mark.parametrize("width", [1280, 380])
@pytest.mark.parametrize("make", EVERY, ids=lambda make: make.__name__)
def test_every_plot_has_visible_marks_inside_the_window(show, make, width):
    page = show(make(), width)
    found = page.execute_script(BOXES)
    plots = {"curves", "graph"} | (set() if make is sample.single else {"privacy"})
    assert {plot["plot"] for plot in found} == plots
    for plot in found:
        assert plot["frame"]["width"] > 200 and plot["frame"]["height"] > 100
        assert plot["marks"], plot["plot"]
        for mark in plot["marks"]:
            assert mark["width"] + mark["height"] > 0 and "NaN" not in mark["text"], mark
            assert mark["left"] >= 0 and mark["right"] <= width, mark
            assert (
                mark["top"] >= plot["frame"]["top"] - 12
                and mark["bottom"] <= plot["frame"]["bottom"] + 12
            ), mark


@pytest.mark.parametrize("make", EVERY, ids=lambda make: make.__name__)
@pytest.mark.parametrize("width", [380, 768, 1280])
def test_nothing_scrolls_sideways(show, make, width):
    page = show(make(), width)
    assert page.execute_script("return document.documentElement.scrollWidth") <= width
    code = """return [...document.querySelectorAll('main *, header *, .bar *')].filter((e) => e.checkVisibility()
      && !e.closest('.scroll') && !e.closest('svg')
      && e.getBoundingClientRect().right > innerWidth + 1).map((e) => e.outerHTML.slice(0, 99))"""
    assert page.execute_script(code) == []


def test_no_text_of_a_plot_leaves_the_window_or_lies_on_another(show):
    for width in (1280, 380):
        page = show(sample.comparison(), width)
        code = """return [...document.querySelectorAll('#privacy text, #curves text')].map((t) => ({
          root: t.closest('.plot').id, said: t.textContent, ...t.getBoundingClientRect().toJSON()}))"""
        boxes = page.execute_script(code)
        assert all(box["left"] >= 0 and box["right"] <= width for box in boxes)
        for k, a in enumerate(boxes):
            for b in boxes[k + 1 :]:
                beside = a["right"] <= b["left"] or b["right"] <= a["left"]
                above = a["bottom"] <= b["top"] + 2 or b["bottom"] <= a["top"] + 2
                assert a["root"] != b["root"] or beside or above, (a["said"], b["said"])


def test_a_legend_switches_its_method_off_and_on_in_all_plots(show):
    page = show(sample.comparison())
    assert series(page, "privacy", "Local DP") and series(page, "curves", "Local DP")
    for css in ("#privacy-card", "#privacy-card", "#figures section:last-child"):
        button = page.find_element(By.CSS_SELECTOR, f'{css} [data-legend] button[data-method="3"]')
        pressed = button.get_attribute("aria-pressed") == "true"
        button.click()
        assert (
            bool(series(page, "privacy", "Local DP"))
            is bool(series(page, "curves", "Local DP"))
            is not pressed
        )
        states = page.find_elements(By.CSS_SELECTOR, '[data-legend] button[data-method="3"]')
        assert {b.get_attribute("aria-pressed") for b in states} == {str(not pressed).lower()}
    assert series(page, "privacy", "DECOR ring")


def test_switching_everything_off_leaves_a_page_that_works(show):
    page = show(sample.comparison())
    for k in range(5):
        page.find_element(
            By.CSS_SELECTOR, f'#privacy-card [data-legend] button[data-method="{k}"]'
        ).click()
    assert "switched off" in text(page, "#curves") and not page.find_elements(
        By.CSS_SELECTOR, "#privacy .line"
    )
    page.find_element(
        By.CSS_SELECTOR, '#privacy-card [data-legend] button[data-method="0"]'
    ).click()
    assert series(page, "curves", "DECOR ring")


def test_the_epsilon_chosen_changes_the_curves_the_promise_and_the_figures(show):
    data = sample.comparison()
    page = show(data)
    seen = set()
    for epsilon in sample.EPSILONS:
        choose_epsilon(page, f"{epsilon:g}")
        outcome = next(
            o for o in data["outcomes"] if o["method"] == "DECOR ring" and o["epsilon"] == epsilon
        )
        assert text(page, "#guarantee") == outcome["guarantee"]
        assert f"ε = {epsilon:g}" in text(page, "#curves-note") and f"ε = {epsilon:g}" in text(
            page, "#graph-note"
        )
        assert f"everybody: ε = {epsilon:g}" in text(page, "#graph")
        seen.add(
            (
                series(page, "curves", "DECOR ring")[0].get_attribute("d"),
                text(page, "#kpis"),
                text(page, "#adversaries"),
            )
        )
        colours = {
            node.value_of_css_property("fill")
            for node in page.find_elements(By.CSS_SELECTOR, ".node")
        }
        assert len(colours) == 1
        seen.add(colours.pop())
        assert page.find_element(By.CSS_SELECTOR, "tr.chosen").text.startswith(
            f"DECOR ring {epsilon:g} "
        )
    assert len(seen) == 2 * len(sample.EPSILONS)


def test_the_method_metric_and_graph_chosen_are_shown(show):
    data = sample.comparison()
    page = show(data)
    Select(page.find_element(By.ID, "method")).select_by_visible_text("DECOR torus")
    assert Select(page.find_element(By.ID, "graph-choice")).first_selected_option.text == "torus"
    assert "torus" in text(page, "#graph-note")
    Select(page.find_element(By.ID, "graph-choice")).select_by_visible_text("ring")
    assert Select(page.find_element(By.ID, "method")).first_selected_option.text == "DECOR ring"
    Select(page.find_element(By.ID, "metric")).select_by_visible_text("training loss")
    assert "lower is better" in text(page, "#privacy") and "lower is better" in text(
        page, "#curves"
    )
    Select(page.find_element(By.ID, "method")).select_by_visible_text("No privacy")
    assert text(page, "#guarantee") == "Nothing is promised: this method has no privacy."


def test_pointing_at_a_column_tells_every_value_there_best_first(show):
    data = sample.comparison()
    page = show(data)
    shown = view(data)
    for dot in page.find_elements(By.CSS_SELECTOR, '#privacy [data-series="DECOR torus"] .dot'):
        hover(page, dot)
        tip = text(page, "#tip")
        own = shown["outcomes"][int(dot.get_attribute("data-outcome"))]
        assert tip.startswith(f"ε = {own['epsilonText']}\n")
        rows = page.find_elements(By.CSS_SELECTOR, "#tip .row")
        there = [o for o in shown["outcomes"] if o["epsilon"] in (own["epsilon"], None)]
        there.sort(key=lambda o: -o["final"]["accuracy"]["mean"])
        assert [row.text.replace("\n", " ") for row in rows] == [
            f"{shown['methods'][o['method']]['name']} {o['final']['accuracy']['text']}"
            for o in there
        ]


def test_marks_and_bars_lie_where_their_values_are(show):
    """Pixels against values: affine in the mean, and a bar is one standard error to either side."""
    data = sample.comparison()
    page = show(data)
    shown = view(data)
    code = """return [...document.querySelectorAll('#privacy .dot')].map((dot) => {
      const bar = dot.previousElementSibling.getBBox(), mark = dot.getBBox();
      const middle = [mark.x + mark.width / 2, mark.y + mark.height / 2];
      return [Number(dot.dataset.outcome), bar.y + bar.height / 2, bar.height, ...middle] })"""
    found = page.execute_script(code)
    assert len(found) == 16
    finals = {k: shown["outcomes"][k]["final"]["accuracy"] for k, *_ in found}
    low, high = (
        min(found, key=lambda f: finals[f[0]]["mean"]),
        max(found, key=lambda f: finals[f[0]]["mean"]),
    )
    slope = (low[1] - high[1]) / (finals[high[0]]["mean"] - finals[low[0]]["mean"])
    for k, middle, height, _, y in found:
        # a triangle's middle is not the middle of its box
        assert shown["outcomes"][k]["method"] == 3 or y == pytest.approx(middle, abs=0.05)
        assert low[1] - middle == pytest.approx(
            slope * (finals[k]["mean"] - finals[low[0]]["mean"]), abs=0.05
        )
        assert height == pytest.approx(2 * slope * finals[k]["error"], abs=0.05)
    for method in range(4):
        places = [
            (shown["outcomes"][k]["epsilon"], x)
            for k, _, _, x, _ in found
            if shown["outcomes"][k]["method"] == method
        ]
        (a, x), (b, y), (c, z), _ = sorted(places)
        assert (y - x) / (z - y) == pytest.approx(math.log(b / a) / math.log(c / b), abs=0.02)


def test_the_script_writes_numbers_as_the_table_does(show):
    page = show(sample.comparison())
    rng = random.Random(3)
    sizes = [0.0, *(rng.uniform(1, 10) * 10.0 ** rng.randint(-20, 8) for _ in range(60))]
    cases = [
        (mean, error, digits)
        for mean in sizes
        for error in (*rng.sample(sizes, 8), mean / 70, None)
        for digits in (1, 2, 4)
    ]
    source = resources.files("decor.results").joinpath("page/format.js").read_text("utf-8")
    code = source + (
        "return arguments[0].map(([mean, error, decimals]) => withSpread({decimals}, mean, error))"
    )
    found = page.execute_script(code, cases)
    for (mean, error, digits), text_ in zip(cases, found, strict=True):
        assert text_ == spread_text(Spread(mean, error, mean, mean, 4, 4), digits)


def test_clicking_a_column_chooses_its_epsilon(show):
    page = show(sample.comparison())
    dot = page.find_elements(By.CSS_SELECTOR, '#privacy [data-series="DECOR ring"] .dot')[3]
    hover(page, dot)
    ActionChains(page, duration=0).click().perform()
    assert "ε = 30" in text(page, "#curves-note")


def test_pointing_at_curves_tells_the_step_and_its_values(show):
    data = sample.comparison()
    page = show(data)
    root = page.find_element(By.CSS_SELECTOR, "#curves svg")
    hover(page, root, root.size["width"] // 2 - 16, 0)
    shown = view(data)
    own = next(o for o in shown["outcomes"] if o["method"] == 0 and o["epsilon"] == 3.0)
    assert text(page, "#tip .head") == "step 200"
    rows = [row.text.replace("\n", " ") for row in page.find_elements(By.CSS_SELECTOR, "#tip .row")]
    assert f"DECOR ring {own['final']['accuracy']['text']}" in rows and len(rows) == 5


def test_arrow_keys_read_a_plot_and_enter_chooses(show):
    page = show(sample.comparison())
    root = page.find_element(By.CSS_SELECTOR, "#privacy svg")
    root.send_keys(Keys.ARROW_RIGHT)
    assert text(page, "#tip .head") == "ε = 1"
    root.send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ENTER)
    assert "ε = 10" in text(page, "#curves-note")
    assert page.switch_to.active_element == page.find_element(By.CSS_SELECTOR, "#privacy svg")
    page.switch_to.active_element.send_keys(Keys.ARROW_LEFT)
    assert text(page, "#tip .head") == "ε = 30"
    page.switch_to.active_element.send_keys(Keys.ESCAPE)
    assert not page.find_element(By.ID, "tip").is_displayed()


def test_users_with_different_epsilons_have_different_colours(show):
    data = sample.star()
    page = show(data)
    users = data["outcomes"][0]["per_user_epsilon"]
    colours = [
        node.value_of_css_property("fill") for node in page.find_elements(By.CSS_SELECTOR, ".node")
    ]
    assert len(colours) == 16
    assert len(set(colours[1:])) == 1 and colours[0] != colours[1] and users[0] != users[1]
    assert rounded_up(min(users)) in text(page, "#graph") and rounded_up(max(users)) in text(
        page, "#graph"
    )


def test_an_infinite_epsilon_of_a_user_is_said_and_coloured(show):
    data = sample.star()
    data["outcomes"][0]["per_user_epsilon"][5] = "inf"
    data["outcomes"][0]["adversaries"][0] |= {"epsilon": "inf", "exact": False}
    data["outcomes"][0]["adversaries"][1]["exact"] = False
    page = show(data)
    assert "1 of 16 users: ε infinite" in text(page, "#graph")
    nodes = page.find_elements(By.CSS_SELECTOR, ".node")
    assert nodes[5].value_of_css_property("fill") == "rgb(179, 38, 30)"
    assert "rgb(179, 38, 30)" not in {n.value_of_css_property("fill") for n in nodes[:5]}
    assert "∞" in nodes[5].get_attribute("aria-label")
    assert "∞" in text(page, "#adversaries") and "≤ ∞" not in text(page, "#adversaries")
    assert f"≤ {rounded_up(data['outcomes'][0]['adversaries'][1]['epsilon'])}" in text(
        page, "#adversaries"
    )


def test_a_user_tells_its_epsilon_and_neighbours_to_pointer_and_keyboard(show):
    page = show(sample.comparison())
    node = page.find_elements(By.CSS_SELECTOR, ".node")[3]
    hover(page, node)
    assert text(page, "#tip") == "User 3\nε = 3\nneighbours: 2, 4"
    assert len(page.find_elements(By.CSS_SELECTOR, ".node.lit")) == 2
    page.find_element(By.CSS_SELECTOR, '.node[tabindex="0"]').send_keys(Keys.END)
    focused = page.switch_to.active_element
    assert focused.get_attribute("data-user") == "15" and text(page, "#tip").startswith("User 15\n")
    assert focused.get_attribute("aria-label") == "User 15. ε = 3. neighbours: 0, 14."
    focused.send_keys(Keys.ARROW_RIGHT)
    assert page.switch_to.active_element.get_attribute("data-user") == "0"
    assert len(page.find_elements(By.CSS_SELECTOR, '.node[tabindex="0"]')) == 1


def test_who_learns_what_is_told_for_the_chosen_outcome(show):
    data = sample.comparison()
    page = show(data)
    outcome = next(
        o for o in data["outcomes"] if o["method"] == "DECOR ring" and o["epsilon"] == 3.0
    )
    rows = [
        row.text.split() for row in page.find_elements(By.CSS_SELECTOR, "#adversaries tbody tr")
    ]
    assert rows == [
        [
            a["adversary"],
            *([] if a["exact"] else ["≤"]),
            rounded_up(a["epsilon"]),
            str(a["worst_user"]),
        ]
        for a in outcome["adversaries"]
    ]
    widths = [m.rect["width"] for m in page.find_elements(By.CSS_SELECTOR, "#adversaries .meter")]
    values = [a["epsilon"] for a in outcome["adversaries"]]
    assert all(
        w / max(widths) == pytest.approx(v / max(values), abs=0.01)
        for w, v in zip(widths, values, strict=True)
    )


def column(page, k):
    cells = page.find_elements(By.CSS_SELECTOR, f"#results tbody tr > :nth-child({k + 1})")
    return [cell.get_attribute("data-sort") for cell in cells]


def test_a_click_on_a_head_sorts_and_another_turns_round(show):
    page = show(sample.diverged())
    for k in (1, 2, 7):
        button = page.find_elements(By.CSS_SELECTOR, "#results thead button")[k]
        button.click()
        up = column(page, k)
        known = [float(v) for v in up if v]
        assert known == sorted(known) and "" not in up[: len(known)]
        head = page.find_elements(By.CSS_SELECTOR, "#results thead th")[k]
        assert head.get_attribute("aria-sort") == "ascending"
        button.click()
        down = [float(v) for v in column(page, k) if v]
        assert down == known[::-1] and "" not in column(page, k)[: len(known)]
        assert head.get_attribute("aria-sort") == "descending"
    page.find_elements(By.CSS_SELECTOR, "#results thead button")[0].click()
    assert column(page, 0) == sorted(column(page, 0)) and len(column(page, 0)) == 17
    assert len(page.find_elements(By.CSS_SELECTOR, "[aria-sort]")) == 1


def test_what_diverged_is_a_cross_and_says_why(show):
    page = show(sample.diverged())
    (cross,) = page.find_elements(By.CSS_SELECTOR, "#privacy .failed")
    hover(page, cross)
    assert "no value" in text(page, "#tip") and "The loss became infinite" in text(page, "#tip")
    assert len(page.find_elements(By.CSS_SELECTOR, "#privacy .dot.partial")) == 1
    Select(page.find_element(By.ID, "method")).select_by_visible_text("Local DP")
    assert "The loss became infinite" in text(page, "#stopped")


def test_a_curve_ends_where_its_values_end(show):
    page = show(sample.diverged())
    choose_epsilon(page, "1")
    (line,) = series(page, "curves", "Local DP")
    assert line.get_attribute("d").count("L") == 5
    assert line.rect["x"] + line.rect["width"] == pytest.approx(
        page.find_element(By.CSS_SELECTOR, '#curves [data-series="Local DP"] .failed').rect["x"]
        + 4.5,
        abs=3,
    )
    root = page.find_element(By.CSS_SELECTOR, "#curves svg")
    hover(page, root, root.size["width"] // 2 - 16, 0)
    rows = [row.text.split("\n")[0] for row in page.find_elements(By.CSS_SELECTOR, "#tip .row")]
    assert "Local DP" not in " ".join(rows) and "Local DP: The loss became infinite" in text(
        page, "#tip"
    )


def sparse(**more):
    """The least that is report data: no privacy, no graph, no curve."""
    outcome = {"method": "plain", "epsilon": None, "seeds": [0], "final": {"loss": [0.5]}} | more
    method = {"name": "plain", "kind": "decor" if more.get("epsilon") else "none"}
    metric = {"name": "loss", "label": "loss", "better": "lower"}
    return {
        "format": "decor-report-1",
        "title": "least",
        "metrics": [metric],
        "methods": [method],
        "outcomes": [outcome],
    }


NOTHING = {"final": {"loss": [None]}, "epsilon": 2.0}
LEVEL = {"curve": {"step": [0, 10], "loss": [[0.0, 0.0]]}, "final": {"loss": [0.0]}}
POINT = {"curve": {"step": [0], "loss": [[-3.5]]}, "epsilon": "inf"}


@pytest.mark.parametrize("more", [{}, NOTHING, LEVEL, POINT, {"curve": {"step": []}}], ids=str)
def test_the_least_data_makes_a_page_that_works(show, more):
    page = show(sparse(**more))
    assert page.find_element(By.ID, "results").is_displayed() and text(page, "h1") == "least"
    assert (
        "NaN" not in page.page_source.split("<script")[0]
        and "undefined" not in page.page_source.split("<script")[0]
    )
    double = sparse(**more)
    double["methods"].append({"name": "other", "kind": "local"})
    double["outcomes"].append(double["outcomes"][0] | {"method": "other"})
    page = show(double)
    assert page.find_element(By.CSS_SELECTOR, "#privacy svg").is_displayed()
    assert (
        "NaN" not in page.page_source.split("<script")[0]
        and "undefined" not in page.page_source.split("<script")[0]
    )


def test_values_over_many_powers_of_ten_are_drawn_on_a_log_axis(show):
    data = sample.comparison()
    for outcome in data["outcomes"]:
        if outcome["method"] == "Local DP":
            # the bar of a single large value reaches down to 0, which has no logarithm
            outcome["final"]["loss"] = [0.0, 1e8, 0.0, 0.0]
            outcome["curve"]["loss"] = [[10.0**k for k in range(21)]] * 4
    page = show(data)
    Select(page.find_element(By.ID, "metric")).select_by_visible_text("training loss")
    for mark in (m for plot in page.execute_script(BOXES) for m in plot["marks"]):
        assert "NaN" not in mark["text"] and "Infinity" not in mark["text"]
    assert "1e+11" in text(page, "#curves")


def test_epsilons_are_rounded_in_the_browser_as_in_python(show):
    rng = random.Random(5)
    values = [rng.choice((1, rng.random())) * 10 ** rng.uniform(-9, 12) for _ in range(400)]
    values += [1, 3.0, 9999.5, 99999, 0.99999, 1e-5, 1e5, 1e-4, 0.1 + 0.2, 2.9999999999]
    data = sample.star()
    data["graphs"] = [{"name": "star", "places": [[k, k % 7] for k in range(len(values))]}]
    data["outcomes"][0]["per_user_epsilon"] = values
    data["outcomes"][1]["per_user_epsilon"] = None
    page = show(data)
    labels = page.execute_script(
        "return [...document.querySelectorAll('.node')].map((node) => "
        "node.getAttribute('aria-label'))"
    )
    assert [label.split("ε = ")[1].removesuffix(".") for label in labels] == [
        rounded_up(value) for value in values
    ]


@pytest.mark.parametrize(
    "make", [sample.comparison, sample.single, sample.large], ids=lambda make: make.__name__
)
def test_every_control_has_a_name(show, make):
    page = show(make())
    for what, name in page.execute_script(CONTROLS):
        assert name and name.strip(), what
    names = page.execute_script("return [...document.querySelectorAll('[id]')].map((e) => e.id)")
    assert len(names) == len(set(names))


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("make", [sample.diverged, sample.star], ids=lambda make: make.__name__)
def test_all_text_has_enough_contrast(show, make, dark):
    page = show(make(), dark=dark)
    page.find_elements(By.CSS_SELECTOR, "[data-legend] button")[
        0
    ].click() if make is sample.diverged else None
    assert page.execute_script(CONTRAST) == []


def test_the_dark_scheme_is_dark_in_every_part(show):
    found = {}
    for dark in (False, True):
        page = show(sample.comparison(), dark=dark)
        line = series(page, "privacy", "DECOR ring")[0].value_of_css_property("stroke")
        grounds = (style(page, "body", "backgroundColor"), style(page, ".card", "backgroundColor"))
        found[dark] = (*grounds, style(page, "body", "color"), line)
    assert all(a != b for a, b in zip(found[False], found[True], strict=True))
    brightness = {dark: sum(map(int, found[dark][0].strip("rgb()").split(","))) for dark in found}
    assert brightness[False] > 600 and brightness[True] < 120


def test_hostile_text_stays_text(show):
    page = show(sample.hostile())
    choose_epsilon(page, "10")
    hover(page, page.find_elements(By.CSS_SELECTOR, ".node")[0])
    assert sample.HOSTILE in page.execute_script(
        "return document.getElementById('tip').textContent"
    )
    assert page.execute_script(
        "return [document.querySelectorAll('script').length, "
        "document.querySelectorAll('img').length]"
    ) == [2, 0]
    assert page.find_element(By.CSS_SELECTOR, "h1").get_attribute("textContent") == sample.HOSTILE
    assert (
        page.execute_script("return document.getElementById('method').options[0].textContent")
        == sample.HOSTILE
    )
    with pytest.raises(NoAlertPresentException):
        page.switch_to.alert.accept()


def test_a_script_that_gets_in_all_the_same_does_not_run(driver, tmp_path):
    text = report.page(sample.star()).replace(
        "</main>", "</main><script>window.bad = 1</script><b onclick='1' id=b></b>"
    )
    (tmp_path / "bad.html").write_text(text)
    driver.get((tmp_path / "bad.html").as_uri())
    assert driver.execute_script("return window.bad") is None
    assert any("Content Security Policy" in entry["message"] for entry in driver.get_log("browser"))


def test_without_scripts_the_results_are_there_and_empty_figures_are_not(show):
    page = show(sample.comparison(), script=False)
    assert page.find_element(By.ID, "results").is_displayed() and "JavaScript" in text(
        page, "noscript"
    )
    assert (
        not page.find_element(By.ID, "figures").is_displayed()
        and not page.find_element(By.ID, "bar").is_displayed()
    )
    assert "SecLDP" in text(page, "#guarantee")


def test_a_window_that_changes_its_width_is_drawn_again(show):
    page = show(sample.comparison(), 1280)
    before = page.find_element(By.CSS_SELECTOR, "#curves svg").get_attribute("width")
    page.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": 420, "height": 900, "deviceScaleFactor": 1, "mobile": False},
    )
    page.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
    # drawn again and not only shrunk by the style sheet
    assert page.find_element(By.CSS_SELECTOR, "#curves svg").get_attribute("width") != before
    assert page.execute_script("return document.documentElement.scrollWidth") <= 420


def test_on_paper_there_are_figures_and_no_controls(show):
    page = show(sample.comparison(), dark=True)
    scheme = {"name": "prefers-color-scheme", "value": "dark"}
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", "features": [scheme]})
    assert (
        not page.find_element(By.ID, "bar").is_displayed()
        and not page.find_element(By.ID, "copy").is_displayed()
    )
    assert page.find_element(By.CSS_SELECTOR, "#privacy svg").is_displayed()
    assert style(page, "body", "backgroundColor") == "rgb(255, 255, 255)"
    assert style(page, "body", "color") == "rgb(31, 36, 48)"


def test_copying_the_command_says_so(show):
    page = show(sample.comparison())
    button = page.find_element(By.ID, "copy")
    page.execute_script("arguments[0].scrollIntoView({block: 'center'})", button)
    button.click()
    page.execute_async_script("setTimeout(arguments[0], 200)")
    assert button.text in ("Copied", "Selected")


def test_an_infinite_budget_has_its_own_place_to_the_right(show):
    data = sample.star()
    data["outcomes"].append(json.loads(json.dumps(data["outcomes"][1])) | {"epsilon": "inf"})
    page = show(data)
    places = [dot.rect["x"] for dot in page.find_elements(By.CSS_SELECTOR, "#privacy .dot")]
    assert places == sorted(places) and len(set(places)) == 3
    for end in (-1, 0):
        page.find_elements(By.CSS_SELECTOR, "#results thead button")[1].click()
        assert column(page, 1)[end] == "1e307"
    choose_epsilon(page, "∞")
    assert "ε = ∞" in text(page, "#curves-note")


def test_the_report_of_a_real_comparison_opens_with_its_plots(show, tmp_path):
    """From training to the page, with nothing made up."""
    import decor
    from decor.training.compare import Comparison, Design

    graphs = (("ring", decor.ring(8)), ("star", decor.star(8)))
    outsider = decor.Adversary.eavesdropper()  # on a star everybody else is isolated by its hub
    design = Design(
        graphs,
        (3.0, 30.0),
        decor.Exposure(1.0, 12),
        adversary=outsider,
        learning_rates=(0.05, 0.2),
        seeds=(0, 1),
    )
    data = Comparison(decor.tasks.breast_cancer(users=8), design, tmp_path / "c").run()
    page = show(data)
    found = {plot["plot"]: plot["marks"] for plot in page.execute_script(BOXES)}
    assert set(found) == {"privacy", "curves", "graph"} and all(found.values())
    methods = [method["name"] for method in data["methods"]]
    assert methods == ["no privacy", "central DP", "DECOR ring", "DECOR star", "local DP ring"]
    for name in methods:
        assert name in text(page, "main")
    choose_epsilon(page, "30")
    assert "(30, 1e-05)-SecLDP over 12 steps" in text(page, "main")
