"""The federation in words: the sentence, the warnings, and the facts of each user."""

import time

import pytest

from decor.ui.federation_picture import describe_federation

from .statuses import neighbour, seen, status

NAMES = ("bonn", "ulm", "kiel", "jena", "celle")


def five(**changed):
    """A ring of five; `changed` are statuses."""
    observations = []
    for k, name in enumerate(NAMES):
        others = NAMES[k - 1], NAMES[(k + 1) % 5]
        observations.append(seen(changed.get(name) or status(name, *others)))
    return observations


def silent_since(observation, moment):
    observation.record_silence("connection refused")
    observation.changed_at = moment
    return observation


def test_the_sentence_says_how_many_are_at_work_and_who_is_not():
    assert describe_federation(five())["said"] == "5 of 5 at work, step 20 of 40."
    moment = time.time()
    observations = five(ulm=status("ulm", "bonn", "kiel", step=19, paused="waits for kiel"))
    silent_since(observations[2], moment)
    clock = time.strftime("%H:%M", time.localtime(moment))
    assert describe_federation(observations)["said"] == (
        f"3 of 5 at work, step 19 of 40; kiel is not reachable since {clock}; ulm waits."
    )


def test_since_when_is_said_of_those_who_are_away_and_not_of_those_who_are_done():
    observations = five(kiel=status("kiel", "ulm", "jena", step=20, done=True))
    silent_since(observations[2], time.time())
    picture = describe_federation(observations)
    assert picture["said"] == "4 of 5 at work, step 20 of 40; kiel has finished."
    assert picture["nodes"][2]["text"] == "finished: its process has ended"


def test_an_earlier_day_is_named():
    observations = five()
    silent_since(observations[2], time.mktime((2026, 3, 1, 12, 3, 0, 0, 0, -1)))
    said = describe_federation(observations)["said"]
    assert said.endswith("kiel is not reachable since 2026-03-01 12:03.")


def test_of_many_the_sentence_counts():
    observations = [silent_since(each, time.time()) for each in five()]
    assert describe_federation(observations)["said"] == "0 of 5 at work; 5 are not reachable."
    assert describe_federation(observations[:2])["said"].startswith("0 of 2 at work; bonn and ulm")


def test_the_end_is_said():
    done = {name: status(name, step=40, done=True) for name in NAMES}
    picture = describe_federation(five(**done))
    assert picture["said"] == "All 5 have finished." and picture["over"]
    assert describe_federation([])["said"] == "No node is here yet."


def test_a_user_has_its_step_its_noise_and_its_budget_rounded_up():
    bonn = status("bonn", "ulm", noise_left=1.30001, epsilon_planned=9.99999, last_progress=1e9)
    (user, ulm) = describe_federation([seen(bonn)])["nodes"]
    assert (user["name"], user["state"], user["text"]) == ("bonn", "working", "at work")
    assert (user["step"], user["steps"], user["noise_left"]) == (20, 40, "1.301")
    assert (user["epsilon"], user["of_plan"], user["delta"]) == ("5.433", "10", "1e-05")
    assert user["source"] == "bonn.example.org:9464" and user["progress"].startswith("2001")
    assert user["neighbours"] == [
        {"name": "ulm", "state": "connected", "way": "", "problem": ""},
    ]
    assert (ulm["state"], ulm["step"], ulm["epsilon"]) == ("unasked", None, None)


def test_before_the_first_message_an_older_node_promises_nothing_yet():
    old = status("bonn", messages=0, epsilon=0.0, epsilon_if_fixed=0.0)
    (user,) = describe_federation([seen(old)])["nodes"]
    assert user["epsilon"] == "0" and user["of_plan"] is None


def test_a_node_that_says_little_is_shown_with_what_it_says():
    picture = describe_federation([seen({"user": "bonn"})])
    (user,) = picture["nodes"]
    assert user["state"] == "working" and user["step"] is None and user["noise_left"] is None
    assert picture["said"] == "1 of 1 at work." and picture["slowest"] is None


def test_figures_are_those_of_the_slowest_and_of_the_largest_cost():
    kiel = status("kiel", "ulm", "jena", step=18, noise_left=2.0, epsilon_if_fixed=6.0)
    picture = describe_federation(five(kiel=kiel))
    assert (picture["working"], picture["asked"]) == (4, 5)
    assert (picture["slowest"], picture["fastest"], picture["steps"]) == (18, 20, 40)
    assert (picture["epsilon"], picture["of_plan"], picture["noise_left"]) == ("6", "10", "2")
    assert picture["spent_part"] == pytest.approx(0.6, rel=1e-5)


def test_nodes_with_different_files_are_flagged():
    assert describe_federation(five())["warnings"] == []
    other = status("kiel", "ulm", "jena", digest="cd" * 32)
    (warning,) = describe_federation(five(kiel=other))["warnings"]
    assert "different federation files" in warning and "kiel: cdcdcdcdcdcd" in warning
    assert "bonn, ulm, jena and celle: abababababab" in warning


def test_nodes_of_different_federations_are_flagged_without_digests():
    answers = {name: status(name, digest=None) for name in NAMES}
    answers["kiel"] = status("kiel", digest=None, federation="lung")
    (warning,) = describe_federation(five(**answers))["warnings"]
    assert "heart and lung" in warning


def test_one_name_at_two_places_is_flagged():
    found = describe_federation([seen(status("bonn"), "a:1"), seen(status("bonn"), "b:2")])
    (warning,) = found["warnings"]
    assert "a:1 and b:2" in warning and "must never run twice" in warning


def test_a_connection_through_a_relay_is_said_to_be():
    bonn = status("bonn", neighbour("ulm", way="relay"), neighbour("kiel", here=False, way="relay"))
    ulm, kiel = describe_federation([seen(bonn)])["nodes"][0]["neighbours"]
    assert (ulm["way"], kiel["way"]) == ("relay", "")
