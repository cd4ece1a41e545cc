"""A federation in a real browser: states by shape and in words, keys, names, and what is heard."""

import browser
import networkx as nx
import pytest
from browser import CONTRAST, CONTROLS, text
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from decor.errors import InputError
from decor.ui.federation_watch import FederationWatch

from .actions import click, find, record_announcements, until
from .client import running
from .statuses import neighbour, status

pytestmark = browser.NEEDED

LONG = "Universitätsklinikum Schleswig-Holstein, Campus Kiel"
STATES = {
    "bonn": "working",
    "ulm": "waiting",
    "kiel": "behind",
    "jena": "finished",
    "celle": "stopped",
    "trier.example.org:9464": "unreachable",
    LONG: "unasked",
}


class Nodes:
    """Nodes whose answers a test sets; `watch` asks them as if they were at addresses."""

    def __init__(self, answers):
        self.answers = answers
        self.watch = FederationWatch("nodes of a test", self.queries)

    def queries(self):
        return {source: lambda source=source: self.ask(source) for source in self.answers}

    def ask(self, source):
        if self.answers[source] is None:
            raise InputError("connection refused")
        return self.answers[source]


def every_state():
    """A federation with a user in each state."""
    away, left = neighbour("celle", here=False), neighbour("jena", here=False, done=True)
    return Nodes(
        {
            "b": status("bonn", "ulm", "kiel", LONG, step=30, noise_left=1.5),
            "u": status("ulm", "bonn", left, step=30, paused="waits for kiel"),
            "k": status("kiel", "bonn", away, step=12),
            "j": status("jena", running=False, finished=True, step=40),
            "c": status("celle", running=False, step=11, problem="its last event: failed"),
            "trier.example.org:9464": None,
        }
    )


def open_live(show, server, **shape):
    page = show(server, **shape)
    until(page, "document.querySelectorAll('.peer').length > 0")
    return page


def state_of(page, name):
    return find(page, f'.peer[data-user="{name}"]').get_attribute("data-state")


def row(page, name):
    """The texts of a user's row."""
    code = """const rows = [...document.querySelectorAll('#live-table tbody tr')];
    const row = rows.find((each) => each.cells[0].textContent === arguments[0]);
    return row && [...row.cells].map((cell) => cell.textContent)"""
    return page.execute_script(code, name)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_all_text_can_be_read_and_every_control_has_a_name(show, dark):
    with running(every_state().watch) as server:
        page = open_live(show, server, dark=dark)
        until(page, "document.querySelectorAll('.peer').length === 7")
        for name in (None, "kiel", "ulm"):
            if name is not None:
                click(page, f'.peer[data-user="{name}"]')
            assert page.execute_script(CONTRAST) == []
            for what, label in page.execute_script(CONTROLS):
                assert label and label.strip(), what
        names = page.execute_script(
            "return [...document.querySelectorAll('[id]')].map((e) => e.id)"
        )
        assert len(names) == len(set(names))
        assert len(page.find_elements(By.CSS_SELECTOR, '.peer[tabindex="0"]')) == 1, "one Tab stop"


def test_each_state_has_its_own_shape_and_word_and_colour_is_never_alone(show):
    with running(every_state().watch) as server:
        page = open_live(show, server)
        until(page, "document.querySelectorAll('.peer').length === 7")
        assert {name: state_of(page, name) for name in STATES} == STATES
        shapes, words = set(), set()
        for name, state in STATES.items():
            paths = find(page, f'.peer[data-user="{name}"]').find_elements(By.TAG_NAME, "path")
            shapes.add(tuple(path.get_attribute("d") for path in paths))
            word = row(page, name)[1]
            words.add(word)
            label = find(page, f'.peer[data-user="{name}"]').get_attribute("aria-label")
            assert label.startswith(f"{name}: {word}"), state
        assert len(shapes) == len(words) == 7
        assert row(page, "bonn") == [
            "bonn",
            "at work",
            "30 of 40",
            "1.5",
            "5.433",
            "10",
            "0",
            "3 of 3",
        ]
        assert row(page, "kiel")[1] == "behind: 18 steps behind bonn"
        assert row(page, "kiel")[7] == "1 of 2, not celle"
        assert row(page, "trier.example.org:9464")[2] == "not known", "unknown is not 0"
        legend = text(page, "#live-legend")
        assert "1 at work" in legend and "1 not asked" in legend and "not connected" in legend
        # not the colour alone tells whether two are connected either
        dashes = "return getComputedStyle(document.querySelector(arguments[0])).strokeDasharray"
        assert page.execute_script(dashes, ".link.l-connected") == "none"
        assert page.execute_script(dashes, ".link.l-broken") != "none"


def test_the_table_has_a_head_for_every_row_and_column(show):
    with running(every_state().watch) as server:
        page = open_live(show, server)
        table = find(page, "#live-table")
        assert table.find_element(By.TAG_NAME, "caption").get_attribute("textContent").strip()
        heads = table.find_elements(By.CSS_SELECTOR, 'thead th[scope="col"]')
        rows = table.find_elements(By.CSS_SELECTOR, "tbody tr")
        assert len(heads) == 8 and len(rows) == 7
        for each in rows:
            assert len(each.find_elements(By.CSS_SELECTOR, 'th[scope="row"]')) == 1
            assert len(each.find_elements(By.TAG_NAME, "td")) == 7


def test_the_graph_is_walked_with_the_keyboard(show):
    with running(every_state().watch) as server:
        page = open_live(show, server)
        until(page, "document.querySelectorAll('.peer').length === 7")
        page.execute_script("document.getElementById('view-watch').focus()")
        press = lambda *keys: ActionChains(page, duration=0).send_keys(*keys).perform()  # noqa: E731
        press(Keys.TAB)
        focused = "return document.activeElement.dataset.user"
        assert page.execute_script(focused) == "bonn"
        assert text(page, "#live-name") == "Nobody is chosen"
        press(Keys.ENTER)
        assert text(page, "#live-name") == "bonn" and "ulm: connected" in text(
            page, "#live-details"
        )
        reached, left = {"bonn"}, ["bonn"]
        while left:
            start = left.pop()
            for key in (Keys.ARROW_RIGHT, Keys.ARROW_DOWN, Keys.ARROW_LEFT, Keys.ARROW_UP):
                find(page, f'.peer[data-user="{start}"]').send_keys(key)
                name = page.execute_script(focused)
                if name in reached:
                    continue
                assert text(page, "#live-name") == name, "the choice follows the focus"
                chosen = page.find_elements(By.CSS_SELECTOR, '.peer[aria-selected="true"]')
                assert [each.get_attribute("data-user") for each in chosen] == [name]
                reached.add(name)
                left.append(name)
        assert reached == set(STATES)
        press(Keys.END)
        assert page.execute_script(focused) == LONG and text(page, "#live-name") == LONG
        press(Keys.HOME)
        assert page.execute_script(focused) == "bonn"
        press(Keys.ESCAPE)
        assert text(page, "#live-name") == "Nobody is chosen"
        press(Keys.TAB, Keys.TAB, Keys.ENTER)
        assert text(page, "#live-name") == "bonn", "by the first button of the table"
        assert find(page, "#live-table button").get_attribute("aria-pressed") == "true"


def test_new_figures_move_neither_the_focus_nor_a_row(show):
    nodes = every_state()
    with running(nodes.watch) as server:
        page = open_live(show, server)
        until(page, "document.querySelectorAll('.peer').length === 7")
        page.execute_script("window.rows = [...document.querySelectorAll('#live-table tr')]")
        page.execute_script("window.node = document.querySelector('.peer'); node.focus()")
        nodes.answers["b"] = nodes.answers["b"] | {"step": 31}
        until(page, "document.querySelector('.peer .count').textContent === '31 of 40'")
        assert row(page, "bonn")[2] == "31 of 40"
        assert page.execute_script(
            "return window.node === document.activeElement && window.rows.every((r) => r.isConnected)"
        )
        # a new user makes a new drawing, and the focus stays where it was
        nodes.answers["m"] = status("mainz", "bonn")
        until(page, "document.querySelectorAll('.peer').length === 8")
        assert page.execute_script("return document.activeElement.dataset.user") == "bonn"


def test_states_are_announced_and_steps_are_not(show):
    nodes = Nodes({"b": status("bonn", "ulm", step=12), "u": status("ulm", "bonn", step=12)})
    with running(nodes.watch) as server:
        page = open_live(show, server)
        until(page, "document.getElementById('said').textContent.startsWith('2 of 2 at work')")
        record_announcements(page)
        assert find(page, "#watch-said").get_attribute("aria-live") == "off"
        for step in (13, 14):
            for source in ("b", "u"):
                nodes.answers[source] = nodes.answers[source] | {"step": step, "messages": step}
            said = f"2 of 2 at work, step {step} of 40."
            until(page, "document.getElementById('watch-said').textContent === arguments[0]", said)
        nodes.answers["u"] = None
        until(page, "window.announced.some((said) => said.includes('ulm is not reachable since'))")
        assert state_of(page, "ulm") == "unreachable", "it is still there"
        nodes.answers["u"] = status("ulm", "bonn", step=15)
        until(page, "window.announced.at(-1).startsWith('2 of 2 at work')")
        assert state_of(page, "ulm") == "working"
        heard = page.execute_script("return window.announced")
        assert len(heard) == 2, heard


def test_different_files_are_flagged_on_the_page(show):
    nodes = Nodes({"b": status("bonn", "ulm"), "u": status("ulm", "bonn", digest="cd" * 32)})
    with running(nodes.watch) as server:
        page = open_live(show, server)
        until(page, "document.querySelector('#live-warnings .notice')")
        assert "different federation files" in text(page, "#live-warnings")
        assert "different federation files" in find(page, "#said").get_attribute("textContent")
        nodes.answers["u"] = status("ulm", "bonn")
        until(page, "!document.querySelector('#live-warnings .notice')")


def federation(graph, name_of):
    edges = {k: [name_of(j) for j in graph[k]] for k in graph}
    return Nodes({str(k): status(name_of(k), *others) for k, others in edges.items()})


GRAPHS = {
    "ring": nx.cycle_graph(40),
    "star": nx.star_graph(39),
    "complete": nx.complete_graph(40),
    "random": nx.random_regular_graph(3, 40, seed=4),
    "path": nx.path_graph(40),
}
OVERLAPS = """
const boxes = [...document.querySelectorAll('.peer .name, .peer .state')].map((e) => [e.parentNode, e.textContent, e.getBoundingClientRect()]);
const meet = (a, b) => a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1;
return boxes.flatMap(([one, name, a], k) => boxes.slice(k + 1).filter(([other, , b]) => one !== other && meet(a, b)).map(([, text]) => [name, text]))"""


@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("kind", GRAPHS)
def test_of_forty_users_no_name_hides_another(show, kind, width):
    nodes = federation(GRAPHS[kind], lambda k: f"regional-hospital-{k:02d}")
    with running(nodes.watch) as server:
        page = open_live(show, server, width=width)
        until(page, "document.querySelectorAll('.peer').length === 40")
        assert page.execute_script(OVERLAPS) == []
        shown = [each.text for each in page.find_elements(By.CSS_SELECTOR, ".peer .name")]
        assert len(set(shown)) == 40, "names that begin alike are told apart"
        assert page.execute_script("return document.documentElement.scrollWidth") <= width
        inside = """const all = document.getElementById('peers').getBoundingClientRect();
        return [...document.querySelectorAll('.peer')].every((e) => { const b = e.getBoundingClientRect();
          return b.left >= all.left - 1 && b.right <= all.right + 1 && b.top >= all.top - 6 && b.bottom <= all.bottom + 1; })"""
        assert page.execute_script(inside)


def test_a_long_name_is_cut_in_the_graph_and_whole_elsewhere(show):
    with running(every_state().watch) as server:
        page = open_live(show, server)
        until(page, "document.querySelectorAll('.peer').length === 7")
        peer = find(page, f'.peer[data-user="{LONG}"]')
        shown = peer.find_element(By.CSS_SELECTOR, ".name").text
        assert "…" in shown and LONG.startswith(shown.split("…")[0]) and len(shown) < 30
        assert row(page, LONG)[0] == LONG and LONG in peer.get_attribute("aria-label")
        browser.hover(page, peer.find_element(By.CSS_SELECTOR, ".state"))
        until(page, "!document.getElementById('tip').hidden")
        assert LONG in text(page, "#tip")


def test_nothing_that_a_node_says_becomes_markup(show):
    evil = "<img src=x onerror=alert(1)>"
    bad = status(
        evil, neighbour(f"{evil}2", here=False, problem=evil), paused=evil, federation=evil
    )
    with running(Nodes({evil: bad, f"{evil}3": None}).watch) as server:
        page = open_live(show, server)
        until(page, "document.querySelectorAll('.peer').length === 3")
        page.execute_script("document.querySelector('.peer').dispatchEvent(new Event('click'))")
        assert page.find_elements(By.TAG_NAME, "img") == []
        assert text(page, "#live-name") == evil and text(page, "#watch-title") == evil


def test_more_users_than_names_have_room_for_are_drawn_without(show):
    nodes = federation(nx.cycle_graph(150), str)
    with running(nodes.watch) as server:
        page = open_live(show, server)
        until(page, "document.querySelectorAll('.peer').length === 150")
        assert page.find_elements(By.CSS_SELECTOR, ".peer .name") == []
        assert len(page.find_elements(By.CSS_SELECTOR, "#live-table tbody tr")) == 150
