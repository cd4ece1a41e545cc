"""The planner in a real browser: drawing and sliding, and the numbers that `decor plan` gives for
the same.
"""

import threading
import time

import browser
import pytest
from browser import style, text
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

from decor.ui import answer

from .actions import (
    assert_same_plan,
    begin_drawing,
    click,
    connect,
    draw,
    find,
    record_announcements,
    run_command,
    select,
    type_into,
    until,
    user,
    wait_until_settled,
)
from .client import post

pytestmark = browser.NEEDED


def test_the_page_begins_with_a_curious_user(show):
    page = show()
    assert (
        find(page, "#colluders").get_attribute("value") == "1"
        and run_command(page)["adversary"] == "curious"
    )


def test_a_slider_is_moved_and_the_number_is_that_of_decor_plan(show):
    page = show()
    before = text(page, "#sigma-cdp")
    find(page, "#epsilon-slider").send_keys(Keys.ARROW_RIGHT * 3)
    wait_until_settled(page)
    asked_for = float(find(page, "#epsilon").get_attribute("value"))
    assert asked_for > 3 and text(page, "#sigma-cdp") != before
    for name, keys in (
        ("steps", Keys.ARROW_LEFT),
        ("clip", Keys.ARROW_LEFT),
        ("colluders", Keys.ARROW_RIGHT),
        ("users", Keys.ARROW_RIGHT),
    ):
        find(page, f"#{name}-slider").send_keys(keys)
    wait_until_settled(page)
    plan = run_command(page)
    assert (
        plan["users"] == 17
        and plan["steps"] < 1000
        and plan["clip"] < 1
        and plan["adversary"] == "colluding:2"
    )
    assert plan["epsilon"] <= asked_for
    assert_same_plan(page, plan)


def test_a_graph_is_drawn_with_the_mouse_and_saved_and_planned_in_a_terminal(show, tmp_path):
    page = show()
    begin_drawing(page)
    wait_until_settled(page)
    assert (
        "The drawing is empty" in text(page, "#problem")
        and not find(page, "#sigma-cdp").is_displayed()
    )
    draw(page, [(0.2, 0.2), (0.8, 0.2), (0.8, 0.8), (0.2, 0.8), (0.5, 0.5), (0.5, 0.1)])
    connect(
        page, "01", "12", "23", "30", "04", "24", "35", "50", "05"
    )  # the last two take an edge away and nothing is left of it
    connect(page, "05", "14")
    wait_until_settled(page)
    assert page.find_elements(By.CSS_SELECTOR, "#problem:not([hidden])") == []
    before = user(page, "5").get_attribute("transform")
    ActionChains(page, duration=50).click_and_hold(user(page, "5")).move_by_offset(
        30, 40
    ).release().perform()
    assert user(page, "5").get_attribute("transform") != before
    assert len(page.find_elements(By.CSS_SELECTOR, ".user")) == 6, "a drag adds nobody"
    page.execute_cdp_cmd(
        "Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)}
    )
    click(page, "#save")
    end = time.monotonic() + 60
    while not (tmp_path / "graph.txt").exists() and time.monotonic() < end:
        time.sleep(0.02)
    edges = {frozenset(line.split()) for line in (tmp_path / "graph.txt").read_text().splitlines()}
    assert edges == {
        frozenset(pair) for pair in ("01", "12", "23", "30", "04", "24", "35", "05", "14")
    }
    assert_same_plan(page, run_command(page, tmp_path))


def test_a_graph_is_drawn_with_the_keyboard_alone(show, planner):
    page = show()
    find(page, "#topology").send_keys("drawn")
    wait_until_settled(page)
    record_announcements(page)
    find(page, "#clear").send_keys(Keys.ENTER)
    find(page, "#table summary").send_keys(Keys.ENTER)
    for _ in range(3):
        find(page, "#add-row").send_keys(Keys.ENTER)
    for a, b in ((0, 1), (1, 2), (0, 2), (0, 2)):
        select(page, "#from", a)
        select(page, "#to", b)
        find(page, "#connect").send_keys(Keys.ENTER)
    neighbours = (
        "[...document.querySelectorAll('#everybody tbody td:nth-child(3)')].map((cell) "
        "=> cell.textContent).join(';')"
    )
    until(page, f"{neighbours} === '1;0, 2;1'")
    wait_until_settled(page)
    name = find(page, 'input[aria-label="Name of user 1"]')
    name.send_keys(Keys.CONTROL, "a")
    name.send_keys("bonn", Keys.TAB)
    # on the picture itself: a new user, a walk to another, and an edge between the two
    wait_until_settled(page)
    user(page, "0").send_keys("n")
    until(page, "document.activeElement.dataset.user === '1'")
    page.switch_to.active_element.send_keys(Keys.ENTER)
    until(page, "document.activeElement.getAttribute('aria-pressed') === 'true'")
    until(page, "window.announced.some((sentence) => sentence.includes('is chosen'))")
    page.switch_to.active_element.send_keys(Keys.HOME)
    until(page, "document.activeElement.dataset.user === '0'")
    page.switch_to.active_element.send_keys(Keys.SPACE)
    until(
        page,
        """document.querySelector('.user[data-user="0"]').getAttribute('aria-label').includes('neighbours: bonn, 1')""",
    )
    wait_until_settled(page)
    moved = user(page, "1").get_attribute("transform")
    user(page, "1").send_keys(Keys.SHIFT, Keys.ARROW_UP)
    until(
        page,
        """document.querySelector('.user[data-user="1"]').getAttribute('transform') !== arguments[0]""",
        moved,
    )
    user(page, "2").send_keys(Keys.DELETE)
    wait_until_settled(page)
    assert {u.get_attribute("data-user") for u in page.find_elements(By.CSS_SELECTOR, ".user")} == {
        "0",
        "bonn",
        "1",
    }
    drawn = {"names": ["0", "bonn", "1"], "edges": [[0, 1], [0, 2]]}
    _, expected = post(
        planner, "plan", {"drawn": drawn, "epsilon": 3, "delta": 1e-5, "steps": 1000, "clip": 1}
    )
    assert_same_plan(page, expected)


def test_undo_goes_back_over_everything_and_redo_forth(show):
    page = show()
    first = text(page, "#sigma-cdp")
    type_into(page, "#epsilon", 10)
    find(page, "#epsilon").send_keys(Keys.TAB)
    Select(find(page, "#topology")).select_by_value("star")
    wait_until_settled(page)
    click(page, "#edit")
    click(page, "#add")
    wait_until_settled(page)
    assert len(page.find_elements(By.CSS_SELECTOR, ".user")) == 17
    for _ in range(4):
        click(page, "#undo")
    wait_until_settled(page)
    assert (
        text(page, "#sigma-cdp") == first and find(page, "#epsilon").get_attribute("value") == "3"
    )
    assert not find(page, "#undo").is_enabled()
    for _ in range(4):
        find(page, "body").send_keys(Keys.CONTROL, Keys.SHIFT, "z")
    wait_until_settled(page)
    assert len(page.find_elements(By.CSS_SELECTOR, ".user")) == 17 and "drawn" in find(
        page, "#topology"
    ).get_attribute("value")


def test_what_was_chosen_is_there_again_when_the_page_is_loaded_again_and_the_token_is_not_in_its_address(
    show,
):
    page = show()
    type_into(page, "#epsilon", 7)
    find(page, "#epsilon").send_keys(Keys.TAB)
    assert "#" not in page.current_url
    page.refresh()
    wait_until_settled(page)
    assert find(page, "#epsilon").get_attribute("value") == "7" and run_command(page)[
        "epsilon"
    ] == pytest.approx(7, rel=1e-4)


def test_a_stale_number_is_dimmed_until_the_answer_to_what_the_controls_say_is_there(
    show, monkeypatch
):
    page = show()
    own, is_looked_at = answer.describe_plan, threading.Event()
    monkeypatch.setattr(
        answer, "describe_plan", lambda question: (is_looked_at.wait(60), own(question))[-1]
    )
    typed_now = find(page, "#epsilon")
    typed_now.send_keys(Keys.CONTROL, "a")
    typed_now.send_keys("9")
    assert (
        find(page, "#answer").get_attribute("aria-busy") == "true"
        and float(style(page, "#figures", "opacity")) < 0.5
    )
    assert "being computed" in user(page, "0").get_attribute("aria-label")
    is_looked_at.set()
    monkeypatch.undo()
    wait_until_settled(page)
    assert style(page, "#figures", "opacity") == "1"
    assert_same_plan(page, run_command(page))


def test_of_many_moves_the_last_one_is_answered_and_few_are_asked(show, monkeypatch):
    page = show()
    own, asked_for = answer.describe_plan, []

    def slow(question):
        asked_for.append(question.budget.epsilon)
        time.sleep(0.05)
        return own(question)

    monkeypatch.setattr(answer, "describe_plan", slow)
    page.execute_script("""const slider = document.getElementById('epsilon-slider');
    for (let k = 0; k < 200; k += 1) { slider.value = 100 + k; slider.dispatchEvent(new Event('input', { bubbles: true })); }""")
    wait_until_settled(page)
    assert len(asked_for) <= 3 and asked_for[-1] == float(
        find(page, "#epsilon").get_attribute("value")
    )


MISTAKES = [
    ("epsilon", -1, "Epsilon must be a positive"),
    ("delta", 3, "Delta must lie"),
    ("users", 1000, "up to 256 users"),
    ("colluders", 16, "leave no user"),
    ("steps", "", "Steps must be"),
]


@pytest.mark.parametrize(("field", "value", "words"), MISTAKES, ids=str)
def test_a_mistake_is_a_sentence_and_no_number_is_left_standing(show, field, value, words):
    page = show()
    box = find(page, f"#{field}")
    box.send_keys(Keys.CONTROL, "a")
    box.send_keys(str(value) or Keys.DELETE)
    until(page, "!document.getElementById('problem').hidden")
    assert words in text(page, "#problem")
    assert (
        find(page, "#sigma-cdp").get_attribute("textContent") == "–"
        and text(page, "#command") == ""
        and text(page, "#against") == ""
    )
    box.send_keys(Keys.CONTROL, "a")
    box.send_keys(
        {"epsilon": "3", "delta": "1e-5", "users": "16", "colluders": "1", "steps": "1000"}[field]
    )
    wait_until_settled(page)
    until(page, "document.getElementById('problem').hidden")
    assert float(text(page, "#sigma-cdp")) > 0


def test_one_record_is_planned_for_and_the_command_says_so(show):
    page = show()
    click(page, "#controls details summary")
    Select(find(page, "#unit")).select_by_value("example")
    type_into(page, "#steps", 100)
    type_into(page, "#users", 4)
    type_into(page, "#batch_size", 16)
    plan = run_command(page)
    assert plan["unit"] == "example" and "one example" in plan["statement"]
    assert_same_plan(page, plan)


HOSTILE = "<img/src=x/onerror=alert(1)>"


def test_names_from_a_file_stay_text(show, tmp_path):
    page = show()
    # a name with a double quote and a semicolon stands in quotes, its double quote twice
    quotes = '"""\'&amp;"'
    (tmp_path / "bad.txt").write_text(
        f"{HOSTILE} </script><b>\n</script><b> {quotes}\n{quotes} {HOSTILE}\n"
    )
    Select(find(page, "#topology")).select_by_visible_text("drawn by hand")
    click(page, "#table summary")
    find(page, "#open").send_keys(str(tmp_path / "bad.txt"))
    until(page, "document.querySelectorAll('.user').length === 3")
    wait_until_settled(page)
    assert HOSTILE in user(page, HOSTILE).get_attribute("aria-label")
    assert "\"'&amp;" in user(page, "\\\"'&amp;").get_attribute("aria-label")
    assert page.execute_script(
        "return [document.images.length, document.scripts.length, "
        "document.querySelectorAll('b').length]"
    ) == [0, 1, 3]
    browser.hover(page, find(page, f'.user[data-user="{HOSTILE}"] .node'))
    assert HOSTILE in text(page, "#tip")
    assert HOSTILE in text(page, "#statement")


def test_the_names_of_forty_branches_cover_no_other_name_and_no_dot(show, tmp_path):
    page = show()
    pairs = [(k, (k + step) % 40) for k in range(40) for step in (1, 7)]
    lines = [f'"Branch {a:02d}","Branch {b:02d}"' for a, b in pairs]
    (tmp_path / "branches.csv").write_text("\n".join(lines))
    Select(find(page, "#topology")).select_by_visible_text("drawn by hand")
    click(page, "#table summary")
    find(page, "#open").send_keys(str(tmp_path / "branches.csv"))
    until(page, "document.querySelectorAll('.user text').length === 40")
    assert page.execute_script(OVERLAPS) == []
    assert "Branch 39" in user(page, "Branch 39").text


OVERLAPS = """
const box = (element) => element.getBoundingClientRect();
const users = [...document.querySelectorAll('.user')];
const meet = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1.5
  && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 1.5;
return users.flatMap((one, k) => users.flatMap((other, j) => (
  (j < k && meet(box(one.lastChild), box(other.lastChild)))
  || (j !== k && meet(box(one.lastChild), box(other.firstChild))) ? [[k, j]] : [])));
"""
