"""What is read from an answer: all of a good one, and nothing wrong from a bad one."""

import dataclasses
import math

import pytest

from decor.ui.node_status import NeighbourStatus, NodeStatus

from .statuses import DIGEST, neighbour, status


def test_an_answer_of_a_node_is_read():
    answer = status("bonn", "ulm", neighbour("kiel", here=False), paused="waits for kiel")
    known = NodeStatus.of_json(answer)
    assert (known.user, known.federation, known.digest) == ("bonn", "heart", DIGEST)
    assert (known.step, known.steps, known.messages, known.missed, known.late) == (20, 40, 20, 0, 0)
    assert (known.epsilon, known.epsilon_if_fixed, known.delta) == (9.99999, 5.43211, 1e-5)
    assert known.paused == "waits for kiel" and known.running and not known.done
    assert known.neighbours == (
        NeighbourStatus("ulm", True, False, "", ""),
        NeighbourStatus("kiel", False, False, "", "connection refused"),
    )


def test_what_an_older_node_does_not_say_is_unknown_and_not_zero():
    known = NodeStatus.of_json({"user": "bonn", "step": 3})
    assert known == NodeStatus(user="bonn", step=3)
    assert known.missed is None and known.epsilon is None and known.noise_left is None


BAD = [
    None,
    True,
    [],
    {},
    -1,
    math.nan,
    -math.inf,
    10**400,
    [None, 3, [], {}, {"name": ""}],
    [[1, 2]],
]


@pytest.mark.parametrize("value", BAD, ids=repr)
def test_a_field_of_another_kind_is_unknown(value):
    empty = dataclasses.asdict(NodeStatus())
    fields = [field.name for field in dataclasses.fields(NodeStatus)]
    known = dataclasses.asdict(NodeStatus.of_json(dict.fromkeys(fields, value)))
    for name in fields:
        if not isinstance(empty[name], bool):
            assert known[name] == empty[name], name


def test_an_infinite_epsilon_is_one_and_not_unknown():
    assert NodeStatus.of_json({"epsilon": math.inf}).epsilon == math.inf


def test_long_and_invisible_texts_are_cut_and_shown():
    known = NodeStatus.of_json({"user": "x" * 10_000, "problem": "a\n\x1b[31mb\u202ec\u200b"})
    assert len(known.user) == 300
    assert known.problem == "a??[31mb?c?"
    many = NodeStatus.of_json({"neighbours": [neighbour(f"u{k}") for k in range(5000)]})
    assert len(many.neighbours) == 1000


def test_what_an_answer_leaves_out_is_taken_from_the_one_before():
    before = NodeStatus.of_json(status("bonn", "ulm", paused="waits for ulm"))
    now = NodeStatus.of_json({"running": False, "user": "bonn", "problem": "killed", "step": 21})
    known = now.complete_from(before)
    assert (known.step, known.steps, known.neighbours) == (21, 40, before.neighbours)
    assert not known.running and known.paused == "" and known.problem == "killed"


def test_another_run_takes_nothing_from_the_one_before():
    before = NodeStatus.of_json(status("bonn", "ulm"))
    other = NodeStatus.of_json({"user": "bonn", "digest": "cd" * 32})
    assert other.complete_from(before) == other
