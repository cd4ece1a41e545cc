"""The numbers of the page are those of `decor plan --json`, to the last bit; what cannot be meant
is a sentence.
"""

import json
import math
import shlex
import subprocess
import sys

import pytest
from asking import asked

from decor.errors import DecorError, GraphError, InputError
from decor.graph import named
from decor.text import rounded_up
from decor.ui import answer
from decor.ui.question import FILE, MOST_USERS, from_text, graph_of, question

USUAL = {"epsilon": 3, "delta": 1e-5, "steps": 1000, "clip": 1}
KITE = {"names": ["0", "1", "2", "3", "4"], "edges": [[0, 1], [1, 2], [2, 0], [2, 3], [3, 4]]}
TOWNS = {
    "names": ["ulm", "bonn", "7", "kiel", "jena", "celle"],
    "edges": [[3, 0], [3, 1], [0, 1], [2, 3], [1, 2], [4, 0], [4, 2]],
}
WHEEL = {
    "names": [*"hubcdef"],
    "edges": [*([0, k] for k in range(1, 7)), *([k, k % 6 + 1] for k in range(1, 7))],
}

HELD = {"kiel": 81, "bonn": 90, "7": 100, "ulm": 80, "jena": 92, "celle": 101}

ASKED = [
    {"topology": "ring", "users": 16, "adversary": "eavesdropper"},
    {"topology": "torus", "users": 64, "adversary": "curious", "epsilon": 0.37, "steps": 12345, "clip": 0.3},
    {"topology": "random-regular", "users": 24, "degree": 5, "graph_seed": 3, "adversary": "colluding:2", "delta": 3e-7},
    {"topology": "erdos-renyi", "users": 20, "probability": 0.3, "graph_seed": 1, "adversary": "everyone"},
    {"drawn": KITE, "adversary": "eavesdropper", "epsilon": 7.77},
    {"drawn": TOWNS, "adversary": "colluding:2"},
    {"drawn": WHEEL, "adversary": "colluding:2", "epsilon": 11},
    {"topology": "star", "users": 9, "unit": "example", "batch_size": 32, "records": 1000, "sampling": "poisson", "steps": 200},
    {"drawn": TOWNS, "unit": "example", "batch_size": 8, "records": HELD,
     "sampling": "fixed", "relation": "replace", "steps": 50, "adversary": "curious"},
    {"topology": "grid", "users": 12, "gossip_rounds": 4, "accelerate": "designed"},
]  # fmt: skip


@pytest.mark.parametrize(
    "value",
    ASKED,
    ids=lambda v: (
        f"{v.get('topology', 'drawn')}-{v.get('adversary', 'usual')}-{v.get('unit', 'user')}"
    ),
)
def test_the_page_says_what_its_command_prints(value, planner, tmp_path):
    value = USUAL | value
    status, answer = asked(planner, "plan", value)
    assert status == 200 and "error" not in answer, answer
    _, graph = asked(
        planner,
        "graph",
        {
            k: value[k]
            for k in ("topology", "users", "degree", "probability", "graph_seed", "drawn")
            if k in value
        },
    )
    words = shlex.split(answer["command"])
    if graph["edge_list"] is not None:
        assert words[2:4] == ["--graph", FILE]
        (tmp_path / FILE).write_text(graph["edge_list"])
    done = subprocess.run(
        [sys.executable, "-m", *words, "--json"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    own = {key: answer[key] for key in printed}
    assert own == printed
    assert graph["labels"] == printed.get("labels", [str(k) for k in range(printed["users"])])


def test_what_is_shown_is_rounded_up_as_everywhere(planner):
    _, answer = asked(planner, "plan", USUAL | {"topology": "star", "users": 7})
    assert answer["shown"]["sigma_cdp"] == rounded_up(answer["sigma_cdp"]) and answer["shown"][
        "sigma_cor"
    ] == rounded_up(answer["sigma_cor"])
    assert answer["shown"]["per_user"] == [
        rounded_up(epsilon) for epsilon in answer["per_user_epsilon"]
    ]
    assert all(
        float(text) >= epsilon * (1 - 1e-9)
        for text, epsilon in zip(
            answer["shown"]["per_user"], answer["per_user_epsilon"], strict=True
        )
    )


def test_errors_and_adversaries_are_those_that_decor_plan_prints(planner):
    value = USUAL | {"topology": "torus", "users": 16, "adversary": "curious"}
    _, plan = asked(planner, "plan", value)
    _, all_of_them = asked(planner, "against", value)
    assert [row["adversary"] for row in all_of_them["against"]] == plan["listed"]
    assert [
        row
        for row in all_of_them["against"]
        if row["adversary"] in ("eavesdropper", "curious", "everyone")
    ] == plan["against"]
    done = subprocess.run(
        [sys.executable, "-m", *shlex.split(plan["command"])],
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [line.split() for line in done.stdout.splitlines()]
    for row in all_of_them["against"]:
        assert [row["adversary"], *row["text"].replace("≤", "<=").split()] in [
            line[: 1 + len(row["text"].split())] for line in lines
        ]
    errors = {each["kind"]: each for each in plan["errors"]}
    assert [line for line in lines if line[:2] == ["this", "plan"]][0][2:] == [
        plan["shown"]["sigma_cdp"],
        plan["shown"]["sigma_cor"],
        errors["decor"]["text"],
    ]
    assert [line for line in lines if line[:2] == ["local", "DP"]][0][2:] == [
        errors["local"]["sigma_cdp"],
        "0",
        errors["local"]["text"],
    ]
    assert [line for line in lines if line[:2] == ["central", "DP"]][0][2:] == [
        errors["central"]["sigma_cdp"],
        "0",
        "1",
    ]
    assert 1 < errors["decor"]["value"] < errors["local"]["value"]


def test_what_a_graph_is_worth_is_what_decor_graph_says(planner):
    _, graph = asked(planner, "graph", {"topology": "torus", "users": 12})
    done = subprocess.run(
        [sys.executable, "-m", "decor", "graph", "--topology", "torus", "--users", "12"],
        capture_output=True,
        text=True,
    )
    for name, key in (
        ("a(G)", "algebraic_connectivity"),
        ("vertex connectivity", "vertex_connectivity"),
        ("p ", "consensus_rate"),
    ):
        (line,) = [line for line in done.stdout.splitlines() if line.strip().startswith(name)]
        assert line.strip().removeprefix(name).split()[0] == graph["facts"][key]
    assert done.stdout.strip().endswith(graph["advice"])
    assert len(graph["places"]) == 12 and len(graph["edges"]) == 24


def test_what_would_take_long_of_a_large_graph_is_left_out_and_said_so(planner):
    _, graph = asked(planner, "graph", {"topology": "random-regular", "users": 128, "degree": 14})
    assert (
        graph["facts"]["vertex_connectivity"] == "not computed"
        and "together isolate" in graph["advice"]
    )


def test_a_fragile_graph_is_warned_of(planner):
    _, answer = asked(
        planner, "plan", USUAL | {"topology": "ring", "users": 8, "adversary": "colluding:2"}
    )
    assert (
        len(answer["warnings"]) == 1
        and "isolate user 0" in answer["warnings"][0]
        and answer["sigma_cor"] == 0
    )


def test_a_graph_in_parts_is_answered_and_says_what_that_means(planner):
    _, answer = asked(
        planner,
        "plan",
        USUAL | {"drawn": {"names": ["0", "1", "2", "3"], "edges": [[0, 1], [2, 3]]}},
    )
    assert any(
        "2 parts that never hear of each other" in warning
        for warning in answer["shown"]["warnings"]
    )


def test_one_user_alone_is_local_dp(planner):
    lonely = USUAL | {"drawn": {"names": ["0"], "edges": []}}
    assert (
        "nobody beside it who could be curious; choose eavesdropper"
        in asked(planner, "plan", lonely)[1]["error"]
    )
    _, answer = asked(planner, "plan", lonely | {"adversary": "eavesdropper"})
    assert (
        answer["users"] == 1 and answer["sigma_cor"] == 0 and len(answer["per_user_epsilon"]) == 1
    )
    _, graph = asked(planner, "graph", {"drawn": {"names": ["0"], "edges": []}})
    assert "alone" in graph["advice"]


def test_named_users_are_paired_with_their_records_by_name_alone(planner):
    records = dict(HELD)
    example = USUAL | {"drawn": TOWNS, "unit": "example", "batch_size": 8, "steps": 50}
    orders = (records, dict(reversed(records.items())))
    answers = [asked(planner, "plan", example | {"records": order})[1] for order in orders]
    assert {each["user"]: each["records"] for each in answers[0]["per_user"]} == records
    assert answers[0]["per_user"] == answers[1]["per_user"]
    assert (
        "records is a list"
        in asked(planner, "plan", example | {"records": list(records.values())})[1]["error"]
    )
    del records["kiel"]
    assert (
        "records has nothing for kiel"
        in asked(planner, "plan", example | {"records": records})[1]["error"]
    )


def test_a_large_delta_is_refused_unless_it_is_meant(planner):
    large = USUAL | {"topology": "ring", "users": 16, "delta": 0.01}
    assert "delta 0.01 is too large for 16 users" in asked(planner, "plan", large)[1]["error"]
    _, answer = asked(planner, "plan", large | {"any_delta": True})
    assert (
        answer["delta"] == 0.01
        and answer["expected_failures"] == 0.16
        and "--any-delta" in answer["command"]
    )
    assert "true or false" in asked(planner, "plan", large | {"any_delta": "yes"})[1]["error"]


def test_a_question_that_names_no_adversary_is_about_a_curious_user(planner):
    _, answer = asked(planner, "plan", USUAL | {"topology": "ring", "users": 8})
    assert answer["adversary"] == "curious"


STRANGE = ("", "x" * 41, "a b", "a,b", "a#b", "a\nb", "a\0b", "\u2028")
WRONG = [
    ({"epsilon": -1}, "epsilon must be a positive"),
    ({"epsilon": 0}, "epsilon must be a positive"),
    ({"epsilon": 1e300}, "between"),
    ({"epsilon": None}, "epsilon"),
    ({"epsilon": "3"}, "epsilon"),
    ({"epsilon": True}, "epsilon"),
    ({"epsilon": [3]}, "epsilon"),
    ({"delta": 2}, "delta must lie strictly between"),
    ({"delta": 0}, "delta"),
    ({"steps": 0}, "steps"),
    ({"steps": 1.5}, "steps"),
    ({"steps": 10**10}, "up to 1,000,000,000 steps"),
    ({"clip": 0}, "clip"),
    ({"users": 10**9}, "up to 256 users, not 1,000,000,000; ask decor plan"),
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
    ({"adversary": "colluding:16"}, "leave nobody to protect"),
    ({"adversary": "colluding:99999999999"}, "unknown adversary"),
    ({"adversary": "average-only"}, "no adversary"),
    ({"adversary": 3}, "unknown adversary"),
    ({"unit": "example"}, "needs batch_size and records"),
    ({"unit": "example", "batch_size": 100, "records": 10}, "larger than the smallest shard"),
    ({"unit": "planet"}, "unit"),
    ({"batch_size": 3}, "do not apply"),
    ({"gossip_rounds": 1, "accelerate": "designed"}, "2 rounds or more"),
    ({"gossip_rounds": 4, "accelerate": "magic"}, "chebyshev"),
    ({"gossip_rounds": 4, "accelerate": True}, "chebyshev"),
    ({"gossip_rounds": 1000}, "up to 100 rounds"),
    ({"sigma": 3}, "nothing that can be asked"),
    ({"drawn": {"names": [], "edges": []}}, "nobody is drawn yet"),
    ({"drawn": {"names": ["a"] * 300, "edges": []}}, "up to 256"),
    ({"drawn": {"names": ["a", "a"], "edges": []}}, "two users are called 'a'"),
    ({"drawn": {"names": ["a", "b"], "edges": [[0, 0]]}}, "itself"),
    ({"drawn": {"names": ["a", "b"], "edges": [[0, 1], [1, 0]]}}, "given twice"),
    ({"drawn": {"names": ["a", "b"], "edges": [[0, 2]]}}, "user"),
    ({"drawn": {"names": ["a", "b"], "edges": [[0, "x"]]}}, "edges must be pairs"),
    ({"drawn": {"names": ["a", "b"], "edges": "ab"}}, "a drawn graph is"),
    ({"drawn": {"names": ["a", 3], "edges": []}}, "a drawn graph is"),
    ({"drawn": [1, 2]}, "a drawn graph is"),
    *(({"drawn": {"names": [name, "b"], "edges": []}}, "a user is named by") for name in STRANGE),
]  # fmt: skip


@pytest.mark.parametrize(("value", "words"), WRONG, ids=str)
def test_what_cannot_be_meant_is_refused_with_a_sentence(value, words):
    with pytest.raises(DecorError) as caught:
        asked_for = {"topology": "ring", "users": 16} if "drawn" not in value else {}
        answer.planned(question(USUAL | asked_for | value))
    said = str(caught.value)
    assert words in said and "\n" not in said and len(said) < 400, said


def test_floats_that_json_cannot_hold_never_reach_a_question():
    for value in (math.nan, math.inf, -math.inf):
        with pytest.raises(InputError):
            question(USUAL | {"epsilon": value})


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
    opened = from_text(text)
    again = from_text(opened.text)
    assert opened.topology == again.topology and opened.text == again.text
    names = [opened.topology.name(k) for k in range(opened.topology.users)]
    drawn = graph_of({"drawn": {"names": names, "edges": opened.topology.edges.tolist()}})
    assert drawn.topology == opened.topology


@pytest.mark.parametrize(
    "text",
    [
        "1 1",
        "a b\nb a",
        "a b c d",
        "x" * 50 + " y",
        "\n".join(f"{k} {k + 1}" for k in range(MOST_USERS)),
    ],
)
def test_an_edge_list_that_is_no_graph_is_refused(text, planner):
    with pytest.raises(GraphError):
        from_text(text)
    assert asked(planner, "edge-list", {"text": text})[1]["error"]


def test_names_in_an_edge_list_stay_text(planner):
    _, graph = asked(planner, "edge-list", {"text": "<img/src=x/onerror=alert(1)> b\n"})
    assert graph["labels"] == ["<img/src=x/onerror=alert(1)>", "b"]


def test_every_named_graph_is_known_to_the_page(planner):
    from asking import sent

    script = sent(planner, "GET", "/planner.js")[2].decode()
    assert f"const TOPOLOGIES = {list(named.NAMES)}" in script


def test_colours_are_those_of_reports_and_figures(planner):
    from asking import sent
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    from decor.results.palette import HUES, RAMP
    from decor.results.plots import COLOURS

    assert [to_hex(colormaps[COLOURS](k / 11)) for k in range(12)] == list(RAMP)
    script, style = (sent(planner, "GET", f"/planner.{kind}")[2].decode() for kind in ("js", "css"))
    assert f"page.ramp = {list(RAMP)}" in script
    for k in (0, 1):
        assert (
            f"--central: {HUES['central'][0][k]}; --decor: {HUES['decor'][0][k]}; --local: "
            f"{HUES['local'][0][k]};"
        ) in style
