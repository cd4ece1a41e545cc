"""The state of every node and edge, from what nodes say of themselves and of each other."""

import time

import pytest

from decor.ui.federation_graph import FederationGraph
from decor.ui.node_poll import Observation
from decor.ui.node_status import NodeStatus

from .statuses import DIGEST, neighbour, seen, status

RING = {"bonn": ("ulm", "kiel"), "ulm": ("bonn", "kiel"), "kiel": ("bonn", "ulm")}
EDGES = [["bonn", "ulm"], ["ulm", "kiel"], ["bonn", "kiel"]]


def ring(**changed):
    """Three users that are all at work, but for the answers that are given."""
    return [seen(changed.get(name) or status(name, *others)) for name, others in RING.items()]


def states(observations):
    return {name: state for name, (state, _) in FederationGraph(observations).states.items()}


def edges(graph):
    names = [node.id for node in graph.nodes]
    return {(names[a], names[b]): graph.edge_state(a, b)[0] for a, b in graph.edges}


def silence(observation, why="connection refused"):
    observation.record_silence(why)
    return observation


def from_ledger(user, **more):
    """As the command reads a ledger whose node does not answer."""
    known = {"user": user, "running": False, "finished": False, "digest": DIGEST}
    return known | {"step": 20, "steps": 40, "users": list(RING), "edges": EDGES} | more


def test_users_at_work_are_connected():
    graph = FederationGraph(ring())
    assert set(states(ring()).values()) == {"working"}
    assert edges(graph) == dict.fromkeys(
        [("bonn", "ulm"), ("bonn", "kiel"), ("ulm", "kiel")], "connected"
    )


def test_a_paused_user_waits_and_says_for_whom():
    graph = FederationGraph(ring(ulm=status("ulm", "bonn", "kiel", paused="waits for kiel")))
    assert graph.states["ulm"] == ("waiting", "waits for kiel")


def test_a_user_that_does_not_answer_is_not_reachable_and_its_neighbours_are_heard():
    bonn, ulm, kiel = ring()
    graph = FederationGraph([bonn, ulm, silence(kiel)])
    state, why = graph.states["kiel"]
    assert state == "unreachable"
    assert why == "connection refused; bonn and ulm are connected to it"
    assert edges(graph)["bonn", "kiel"] == "connected"
    away = neighbour("kiel", here=False)
    bonn, ulm, _ = ring(bonn=status("bonn", "ulm", away), ulm=status("ulm", "bonn", away))
    graph = FederationGraph([bonn, ulm, kiel])
    assert graph.states["kiel"] == (
        "unreachable",
        "connection refused; not connected to bonn and ulm",
    )
    assert graph.edge_state(*sorted((graph.number["bonn"], graph.number["kiel"]))) == (
        "broken",
        "connection refused",
    )
    assert [node.id for node in graph.nodes] == ["bonn", "ulm", "kiel"], "nobody is removed"


def test_of_an_edge_the_end_that_has_lost_it_is_believed():
    graph = FederationGraph(ring(bonn=status("bonn", "ulm", neighbour("kiel", here=False))))
    assert edges(graph)["bonn", "kiel"] == "broken" and edges(graph)["ulm", "kiel"] == "connected"


def test_an_edge_of_which_nobody_speaks_is_unknown():
    graph = FederationGraph([silence(each) for each in ring()])
    assert set(edges(graph).values()) == {"unknown"}


@pytest.mark.parametrize(("step", "state"), [(20, "working"), (19, "working"), (18, "behind")])
def test_a_user_is_behind_when_a_neighbour_was_two_steps_ahead_before_it_was_asked(step, state):
    """One step is what waiting for each other allows."""
    bonn, ulm, _ = ring()
    kiel = seen(status("kiel", "bonn", "ulm", step=step))
    assert states([bonn, ulm, kiel])["kiel"] == state
    if state == "behind":
        _, why = FederationGraph([bonn, ulm, kiel]).states["kiel"]
        assert why == "2 steps behind bonn"


def test_a_neighbour_that_answers_later_may_be_ahead_of_anybody():
    asked_at = time.monotonic()
    kiel = seen(status("kiel", "bonn", "ulm", step=3), asked_at=asked_at)
    bonn, ulm, _ = ring()
    assert set(states([bonn, ulm, kiel]).values()) == {"working"}


def test_a_user_is_finished_when_it_or_a_neighbour_says_so_and_stays_so_when_all_have_left():
    assert states(ring(ulm=status("ulm", "bonn", "kiel", step=40, done=True)))["ulm"] == "finished"
    # an older node does not say it of itself
    told = status("bonn", neighbour("ulm", here=False, done=True), "kiel")
    observations = ring(bonn=told)
    assert states(observations)["ulm"] == "finished"
    graph = FederationGraph([silence(each) for each in observations])
    assert graph.states["ulm"] == ("finished", "its process has ended")
    assert edges(graph)["bonn", "ulm"] == "done"
    assert states(observations)["bonn"] == "unreachable"


def test_what_a_neighbour_said_of_another_run_does_not_count():
    old = status("bonn", neighbour("ulm", here=False, done=True), "kiel", digest="cd" * 32)
    assert states(ring(bonn=old))["ulm"] == "working"


def test_a_user_that_left_in_its_last_rounds_is_not_called_finished():
    (node,) = [silence(seen(status("bonn", step=40)))]
    assert FederationGraph([node]).states["bonn"] == (
        "unreachable",
        "connection refused; it was in its last rounds",
    )


def test_a_ledger_tells_what_a_user_that_is_not_running_has_done():
    graph = FederationGraph(
        [
            seen(from_ledger("bonn", finished=True)),
            seen(from_ledger("ulm", problem="its last event: failed why=disk")),
            seen(from_ledger("kiel", in_use=True, problem="does not answer")),
        ]
    )
    assert graph.states == {
        "bonn": ("finished", "its process has ended"),
        "ulm": ("stopped", "its last event: failed why=disk"),
        "kiel": ("waiting", "is starting"),
    }
    assert edges(graph) == {
        ("bonn", "ulm"): "done",
        ("bonn", "kiel"): "done",
        ("ulm", "kiel"): "unknown",
    }


def test_a_process_that_has_answered_and_answers_no_more_is_not_starting():
    kiel = seen(status("kiel", "bonn", "ulm"))
    kiel.record(NodeStatus.of_json(from_ledger("kiel", in_use=True, problem="no answer")), 0.0)
    assert states([kiel])["kiel"] == "unreachable"


def test_users_that_nobody_asks_are_known_by_name():
    graph = FederationGraph([seen(status("bonn", "ulm", neighbour("kiel", here=False)))])
    assert graph.states == {
        "bonn": ("working", ""),
        "ulm": ("unasked", "bonn is connected to it"),
        "kiel": ("unasked", "not connected to bonn"),
    }


def test_a_user_that_nobody_asks_has_finished_when_a_neighbour_says_so():
    left = neighbour("ulm", here=False, done=True)
    assert states([seen(status("bonn", left))]) == {"bonn": "working", "ulm": "finished"}


def test_one_ledger_shows_the_whole_graph_in_the_order_of_the_file():
    graph = FederationGraph([seen(from_ledger("kiel"))])
    assert [node.id for node in graph.nodes] == ["bonn", "ulm", "kiel"] and len(graph.edges) == 3


def test_an_address_that_has_never_answered_is_a_node_without_edges():
    alone = silence(Observation("kiel.example.org:9464"))
    graph = FederationGraph([*ring(), alone])
    assert graph.states["kiel.example.org:9464"] == ("unreachable", "connection refused")
    xs, ys = zip(*graph.places, strict=True)
    assert len(graph.places) == 4 and ys[3] < min(ys[:3]) and min(xs) <= xs[3] <= max(xs)


def test_two_nodes_of_one_name_are_both_shown():
    graph = FederationGraph([seen(status("bonn", "ulm"), "a:1"), seen(status("bonn"), "b:2")])
    assert [node.id for node in graph.nodes] == ["bonn", "bonn (b:2)", "ulm"]


def test_a_node_that_names_itself_or_strangers_makes_no_edge_to_them():
    mine = status("bonn", "bonn", "ulm", users=["bonn", "ulm"], edges=[["bonn", "who"], ["x", "y"]])
    graph = FederationGraph([seen(mine)])
    assert graph.edges == [(0, 1)] and len(graph.nodes) == 2


def test_no_node_is_no_error():
    graph = FederationGraph([])
    assert graph.nodes == [] and graph.places == []
