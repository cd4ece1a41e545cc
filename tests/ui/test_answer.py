"""The answers are those of `decor plan` and `decor graph`, to the last bit."""

import json
import shlex
import subprocess

import pytest
from command_server import decor_command

from decor.graph import named
from decor.text import rounded_up
from decor.ui.question import FILE

from .client import HELD, KITE, TOWNS, USUAL, WHEEL, post, send

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


def name_of(value):
    graph, adversary = value.get("topology", "drawn"), value.get("adversary", "usual")
    return f"{graph}-{adversary}-{value.get('unit', 'user')}"


def command_output(command, *more, **kwargs):
    """What the command of an answer prints."""
    decor, *words = shlex.split(command)
    assert decor == "decor"
    done = subprocess.run(
        [*decor_command(), *words, *more], capture_output=True, text=True, **kwargs
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("value", ASKED, ids=name_of)
def test_the_page_shows_what_its_command_prints(value, planner, tmp_path):
    value = USUAL | value
    status, answer = post(planner, "plan", value)
    assert status == 200 and "error" not in answer, answer
    keys = {"topology", "users", "degree", "probability", "graph_seed", "drawn"} & set(value)
    _, graph = post(planner, "graph", {key: value[key] for key in keys})
    if graph["edge_list"] is not None:
        assert f"--graph {FILE}" in answer["command"]
        (tmp_path / FILE).write_text(graph["edge_list"])
    printed = json.loads(command_output(answer["command"], "--json", cwd=tmp_path))
    assert {key: answer[key] for key in printed} == printed
    assert graph["labels"] == printed.get("labels", [str(k) for k in range(printed["users"])])


def test_shown_numbers_are_rounded_up(planner):
    _, answer = post(planner, "plan", USUAL | {"topology": "star", "users": 7})
    shown = answer["shown"]
    for name in ("sigma_cdp", "sigma_cor"):
        assert shown[name] == rounded_up(answer[name])
    for text, epsilon in zip(shown["per_user"], answer["per_user_epsilon"], strict=True):
        assert text == rounded_up(epsilon) and float(text) >= epsilon * (1 - 1e-9)


def test_errors_and_adversaries_are_those_that_decor_plan_prints(planner):
    value = USUAL | {"topology": "torus", "users": 16, "adversary": "curious"}
    _, plan = post(planner, "plan", value)
    rows = post(planner, "against", value)[1]["against"]
    assert [row["adversary"] for row in rows] == plan["listed"]
    quick = ("eavesdropper", "curious", "everyone")
    assert [row for row in rows if row["adversary"] in quick] == plan["against"]
    lines = [" ".join(line.split()) for line in command_output(plan["command"]).splitlines()]
    for row in rows:
        start = f"{row['adversary']} {row['text'].replace('≤', '<=')} "
        assert any(line.startswith(start) for line in lines)
    shown, errors = plan["shown"], {each["kind"]: each for each in plan["errors"]}
    central, own, local = (errors[kind] for kind in ("central", "decor", "local"))
    assert f"this plan {shown['sigma_cdp']} {shown['sigma_cor']} {own['text']}" in lines
    assert f"local DP {local['sigma_cdp']} 0 {local['text']}" in lines
    assert f"central DP {central['sigma_cdp']} 0 1" in lines
    assert 1 < own["value"] < local["value"]


def test_the_best_edges_are_those_that_decor_plan_names(planner):
    value = USUAL | {"topology": "path", "users": 8, "adversary": "curious"}
    _, plan = post(planner, "plan", value)
    said = post(planner, "against", value)[1]["best_edges"]
    assert said.startswith("Best edges to add") and said in command_output(
        plan["command"] + " --best-edges 3"
    )
    assert post(planner, "against", value | {"adversary": "everyone"})[1]["best_edges"] == ""


def test_the_facts_of_a_graph_are_those_of_decor_graph(planner):
    _, graph = post(planner, "graph", {"topology": "torus", "users": 12})
    out = command_output("decor graph --topology torus --users 12").strip()
    for name, key in (
        ("a(G)", "algebraic_connectivity"),
        ("vertex connectivity", "vertex_connectivity"),
        ("p ", "consensus_rate"),
    ):
        (line,) = [line.strip() for line in out.splitlines() if line.strip().startswith(name)]
        assert line.removeprefix(name).split()[0] == graph["facts"][key]
    assert out.endswith(graph["advice"])
    assert len(graph["places"]) == 12 and len(graph["edges"]) == 24


def test_slow_facts_of_a_large_graph_are_left_out(planner):
    _, graph = post(planner, "graph", {"topology": "random-regular", "users": 128, "degree": 14})
    assert graph["facts"]["vertex_connectivity"] == "not computed" and "isolate" in graph["advice"]


def test_a_fragile_graph_gets_a_warning(planner):
    fragile = {"topology": "ring", "users": 8, "adversary": "colluding:2"}
    _, answer = post(planner, "plan", USUAL | fragile)
    (warning,) = answer["warnings"]
    assert "isolate user 0" in warning and answer["sigma_cor"] == 0


def test_a_disconnected_graph_gets_a_warning(planner):
    pairs = {"names": ["0", "1", "2", "3"], "edges": [[0, 1], [2, 3]]}
    _, answer = post(planner, "plan", USUAL | {"drawn": pairs})
    assert any("2 parts" in warning for warning in answer["shown"]["warnings"])


def test_a_single_user_has_local_dp(planner):
    single = {"drawn": {"names": ["0"], "edges": []}}
    assert "choose eavesdropper" in post(planner, "plan", USUAL | single)[1]["error"]
    _, answer = post(planner, "plan", USUAL | single | {"adversary": "eavesdropper"})
    assert answer["users"] == 1 and answer["sigma_cor"] == 0
    assert len(answer["per_user_epsilon"]) == 1
    assert "user" in post(planner, "graph", single)[1]["advice"]


def test_named_users_are_paired_with_their_records_by_name_alone(planner):
    records = dict(HELD)
    example = USUAL | {"drawn": TOWNS, "unit": "example", "batch_size": 8, "steps": 50}
    orders = (records, dict(reversed(records.items())))
    answers = [post(planner, "plan", example | {"records": order})[1] for order in orders]
    assert {each["user"]: each["records"] for each in answers[0]["per_user"]} == records
    assert answers[0]["per_user"] == answers[1]["per_user"]
    assert (
        "records is a list"
        in post(planner, "plan", example | {"records": list(records.values())})[1]["error"]
    )
    del records["kiel"]
    assert (
        "records has nothing for kiel"
        in post(planner, "plan", example | {"records": records})[1]["error"]
    )


def test_every_named_graph_is_known_to_the_page(planner):
    script = send(planner, "GET", "/planner.js")[2].decode()
    assert f"const TOPOLOGIES = {list(named.NAMES)}" in script


def test_colours_are_those_of_reports_and_figures(planner):
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    from decor.results.axes import COLOURS
    from decor.results.palette import HUES

    script, style = (send(planner, "GET", f"/planner.{kind}")[2].decode() for kind in ("js", "css"))
    ramp = [to_hex(colormaps[COLOURS](k / 11)) for k in range(12)]
    assert f"page.ramp = {ramp}" in script
    for scheme in (0, 1):
        hues = {kind: HUES[kind][0][scheme] for kind in ("central", "decor", "local")}
        assert " ".join(f"--{kind}: {hue};" for kind, hue in hues.items()) in style
