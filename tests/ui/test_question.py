"""Questions of the page are checked, and become a command."""

import math

import pytest

from decor.errors import DecorError, GraphError, InputError
from decor.ui import answer
from decor.ui.question import MAX_USERS, parse_edge_list, parse_graph, parse_question

from .client import USUAL, post

STRANGE = ("", " ", "a ", "x" * 41, "a\nb", "a\0b", "\u2028")


WRONG = [
    ({"epsilon": -1}, "epsilon must be a positive"),
    ({"epsilon": 0}, "epsilon must be a positive"),
    ({"epsilon": 1e300}, "between"),
    ({"epsilon": None}, "epsilon"),
    ({"epsilon": "3"}, "epsilon"),
    ({"epsilon": True}, "epsilon"),
    ({"epsilon": [3]}, "epsilon"),
    ({"delta": 2}, "delta must lie"),
    ({"delta": 0}, "delta"),
    ({"steps": 0}, "steps"),
    ({"steps": 1.5}, "steps"),
    ({"steps": 10**10}, "up to 1,000,000,000 steps"),
    ({"clip": 0}, "clip"),
    ({"users": 10**9}, "up to 256 users, not 1,000,000,000"),
    ({"users": -3}, "users"),
    ({"users": 0}, "users"),
    ({"users": 2.5}, "whole number"),
    ({"users": None}, "whole number"),
    ({"topology": "moebius"}, "unknown topology"),
    ({"topology": ["ring"]}, "topology must be a name"),
    ({"topology": "hypercube", "users": 12}, "power of two"),
    ({"topology": "random-regular", "users": 9, "degree": 3}, "9"),
    ({"topology": "random-regular", "degree": 1e9}, "degree"),
    ({"topology": "erdos-renyi", "probability": 7}, "probability"),
    ({"topology": "erdos-renyi", "users": 200, "probability": 0.9}, "up to 5,000 edges"),
    ({"adversary": "colluding:16"}, "16 colluding users"),
    ({"adversary": "colluding:99999999999"}, "unknown adversary"),
    ({"adversary": "average-only"}, "not an adversary"),
    ({"adversary": 3}, "unknown adversary"),
    ({"unit": "example"}, "needs batch_size and records"),
    ({"unit": "example", "batch_size": 100, "records": 10}, "smallest shard"),
    ({"unit": "planet"}, "unit"),
    ({"batch_size": 3}, "do not apply"),
    ({"gossip_rounds": 1, "accelerate": "designed"}, "2 rounds or more"),
    ({"gossip_rounds": 4, "accelerate": "magic"}, "chebyshev"),
    ({"gossip_rounds": 4, "accelerate": True}, "chebyshev"),
    ({"gossip_rounds": 1000}, "up to 100 rounds"),
    ({"sigma": 3}, "unknown field"),
    ({"drawn": {"names": [], "edges": []}}, "drawing is empty"),
    ({"drawn": {"names": ["a"] * 300, "edges": []}}, "up to 256"),
    ({"drawn": {"names": ["a", "a"], "edges": []}}, "'a'"),
    ({"drawn": {"names": ["a", "b"], "edges": [[0, 0]]}}, "itself"),
    ({"drawn": {"names": ["a", "b"], "edges": [[0, 1], [1, 0]]}}, "twice"),
    ({"drawn": {"names": ["a", "b"], "edges": [[0, 2]]}}, "user"),
    ({"drawn": {"names": ["a", "b"], "edges": [[0, "x"]]}}, "edges must be pairs"),
    ({"drawn": {"names": ["a", "b"], "edges": "ab"}}, "a drawn graph is"),
    ({"drawn": {"names": ["a", 3], "edges": []}}, "a drawn graph is"),
    ({"drawn": [1, 2]}, "a drawn graph is"),
    *(({"drawn": {"names": [name, "b"], "edges": []}}, "a user's name has") for name in STRANGE),
]  # fmt: skip


@pytest.mark.parametrize(("value", "words"), WRONG, ids=str)
def test_a_wrong_question_is_refused_with_a_sentence(value, words):
    with pytest.raises(DecorError) as caught:
        graph = {} if "drawn" in value else {"topology": "ring", "users": 16}
        answer.describe_plan(parse_question(USUAL | graph | value))
    error = str(caught.value)
    assert words in error and "\n" not in error and len(error) < 400, error


def test_floats_that_json_cannot_hold_never_reach_a_question():
    for value in (math.nan, math.inf, -math.inf):
        with pytest.raises(InputError):
            parse_question(USUAL | {"epsilon": value})


@pytest.mark.parametrize(
    "text",
    [
        "0 1\n1 2\n",
        "ulm bonn 0.5\nbonn,kiel\n# a comment\njena\n",
        "5 3\n3 7\n",
        "b a\na c\nc b\nd\n",
    ],
)
def test_an_edge_list_that_is_opened_is_saved_as_the_same_graph(text):
    opened = parse_edge_list(text)
    again = parse_edge_list(opened.text)
    assert opened.topology == again.topology and opened.text == again.text
    names = [opened.topology.name(k) for k in range(opened.topology.users)]
    drawn = parse_graph({"drawn": {"names": names, "edges": opened.topology.edges.tolist()}})
    assert drawn.topology == opened.topology


@pytest.mark.parametrize(
    "text",
    [
        "1 1",
        "a b\nb a",
        "a b c d",
        "x" * 50 + " y",
        "\n".join(f"{k} {k + 1}" for k in range(MAX_USERS)),
    ],
)
def test_an_edge_list_that_is_no_graph_is_refused(text, planner):
    with pytest.raises(GraphError):
        parse_edge_list(text)
    assert post(planner, "edge-list", {"text": text})[1]["error"]


@pytest.mark.parametrize("name", ["Branch 00", "a,b", "a#b", "a;b", 'San "Carlo"', "x" * 40])
def test_a_name_is_whatever_an_edge_list_can_hold(name):
    drawn = parse_graph({"drawn": {"names": [name, "b", "c d"], "edges": [[0, 1], [1, 2]]}})
    opened = parse_edge_list(drawn.text)
    assert opened.topology == drawn.topology and drawn.topology.name(0) == name


def test_names_in_an_edge_list_stay_text(planner):
    _, graph = post(planner, "edge-list", {"text": "<img/src=x/onerror=alert(1)> b\n"})
    assert graph["labels"] == ["<img/src=x/onerror=alert(1)>", "b"]


def test_a_question_that_names_no_adversary_is_about_a_curious_user(planner):
    _, answer = post(planner, "plan", USUAL | {"topology": "ring", "users": 8})
    assert answer["adversary"] == "curious"


def test_a_large_delta_is_refused_unless_it_is_allowed(planner):
    large = USUAL | {"topology": "ring", "users": 16, "delta": 0.01}
    assert "delta 0.01 is too large for 16 users" in post(planner, "plan", large)[1]["error"]
    _, answer = post(planner, "plan", large | {"any_delta": True})
    assert (
        answer["delta"] == 0.01
        and answer["expected_failures"] == 0.16
        and "--any-delta" in answer["command"]
    )
    assert "true or false" in post(planner, "plan", large | {"any_delta": "yes"})[1]["error"]
