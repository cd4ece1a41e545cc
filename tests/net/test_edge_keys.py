"""Keys of an edge: all orders of events of two ends are explored, with crashes and rollbacks.

The invariant: one key serves one message that left, the two ends' keys of a step differ only
after one of them has drawn a fresh key, and whoever seizes an end and has recorded its traffic gets
one past key at most, and none of a step that both have made.
"""

import inspect
import types

import pytest
from edge_exploration import Limits, Secret, explore

from decor.net import edge_keys
from decor.net.edge_keys import EdgeKeys


@pytest.mark.parametrize(
    "limits",
    (
        Limits(steps=2, connections=2, draws=0, crashes=1),
        Limits(steps=1, connections=2, draws=1, crashes=1),
        Limits(steps=1, connections=3, draws=0, crashes=1),
        Limits(steps=1, connections=3, draws=1, crashes=0),
        Limits(steps=1, connections=2, draws=2, crashes=0),
        Limits(steps=1, connections=2, draws=0, crashes=1, rollbacks=1),
        Limits(steps=2, connections=2, draws=0, crashes=0, alone=True),
        Limits(steps=2, connections=2, draws=0, crashes=0, liar=True),
        Limits(steps=3, connections=1, draws=1, crashes=0, skips=1),
        Limits(steps=3, connections=1, draws=0, crashes=1, skips=1),
    ),
    ids=str,
)
def test_all_orders_of_events_keep_one_key_for_one_message(limits):
    assert explore(limits) > 1000


@pytest.mark.slow
@pytest.mark.parametrize(
    "limits",
    (
        Limits(steps=2, connections=2, draws=1, crashes=0, alone=True),
        Limits(steps=2, connections=2, draws=1, crashes=0, rollbacks=1),
        Limits(steps=3, connections=2, draws=0, crashes=0, skips=1),
        Limits(steps=2, connections=2, draws=1, crashes=0, skips=1),
    ),
    ids=str,
)
def test_more_orders_of_events_keep_one_key_for_one_message(limits):
    assert explore(limits) > 30_000


CRASH = Limits(steps=1, connections=2, draws=1, crashes=1)
TWO_STEPS = Limits(steps=2, connections=2, draws=0, crashes=1)
HALF_OPEN = Limits(steps=1, connections=3, draws=0, crashes=0)
LATE = Limits(steps=1, connections=3, draws=1, crashes=0)
APART = Limits(steps=1, connections=2, draws=2, crashes=0)
SKIPPING_ALONE = Limits(steps=2, connections=2, draws=1, crashes=0, skips=1)
SKIPPING = Limits(steps=3, connections=2, draws=0, crashes=0, skips=1)
ALONE = Limits(steps=2, connections=2, draws=0, crashes=0, alone=True)
RULES = {
    "an old secret does not go on once a new one is confirmed": (
        "if self._current is not None:\n            self._older",
        "if False:\n            self._older",
        CRASH,
    ),
    "nor a key that was found before": (
        "        self.wanted = self._found = None\n        return",
        "        return",
        CRASH,
    ),
    "a confirmation says the step that is next": (
        "return self.next_step, self.last_id",
        "return max(0, self.next_step - 1), self.last_id",
        CRASH,
    ),
    "a key is the one that was named": (
        "if self.wanted == (step, key_id(key)):",
        "if True:",
        HALF_OPEN,
    ),
    "a new secret serves from the larger step on": (
        "first = max(self.next_step, their_step)",
        "first = self.next_step",
        ALONE,
    ),
    "a key is given for its own step": (
        "if self._past is not None and self._past[0] == step else",
        "if self._past is not None else",
        ALONE,
    ),
    "a key is forgotten when the neighbour has used it": (
        "            self._past = None\n",
        "            pass\n",
        TWO_STEPS,
    ),
    "a key that was wanted is dropped": (
        "            self.wanted = self._found = None\n        self._spare",
        "            pass\n        self._spare",
        CRASH,
    ),
    "a key is of the step that is made, also after steps that were left out": (
        "self.next_step, self.last_id, self._past = step + 1,",
        "self.next_step, self.last_id, self._past = self.next_step + 1,",
        SKIPPING,
    ),
    "what was wanted of a step that was left out is dropped": (
        "self.wanted[0] <= step:",
        "self.wanted[0] == step:",
        SKIPPING,
    ),
    "so is a spare one": ("        self._spare = None\n", "", LATE),
    "older secrets go forward too": (
        "                older.key(step)\n",
        "                pass\n",
        CRASH,
    ),
    "and past steps that were left out": (
        "            if older.step <= step:\n",
        "            if older.step == step:\n",
        SKIPPING_ALONE,
    ),
    "no key is unsealed after another was taken": (
        "self._current is not None and self.wanted is None:",
        "False:",
        APART,
    ),
    "nor after the connection": (
        "self.is_confirming = False\n        if self._current is not None:",
        "self.is_confirming = False\n        if False:",
        APART,
    ),
}
"""Rule -> its text in the source, the text without it, and where that is noticed."""


@pytest.mark.parametrize("rule", RULES)
def test_the_exploration_notices_each_rule_of_an_end_that_is_removed(monkeypatch, rule):
    old, new, limits = RULES[rule]
    source = inspect.getsource(edge_keys)
    assert source.count(old) == 1
    changed = types.ModuleType("decor.net.changed_edge_keys")
    monkeypatch.setitem(__import__("sys").modules, changed.__name__, changed)
    exec(compile(source.replace(old, new), changed.__name__, "exec"), vars(changed))
    monkeypatch.setattr(edge_keys, "EdgeKeys", changed.EdgeKeys)
    with pytest.raises(AssertionError, match="; after "):
        explore(limits)


@pytest.mark.parametrize(
    ("rules", "limits", "broken"),
    [
        (
            {"the second forgets"},
            Limits(steps=1, connections=1, draws=0, crashes=0),
            "a past key that nobody needs",
        ),
        (
            {"ids are new"},
            Limits(steps=2, connections=2, draws=0, crashes=0, liar=True),
            "one key, one message",
        ),
        (
            {"greetings show receipts"},
            Limits(steps=1, connections=2, draws=1, crashes=0, rollbacks=1),
            "two messages of a step arrived",
        ),
    ],
)
def test_the_exploration_notices_a_rule_of_the_peer_that_is_removed(rules, limits, broken):
    with pytest.raises(AssertionError, match=broken):
        explore(Limits(**{**vars(limits), "without": frozenset(rules)}))


@pytest.mark.parametrize("limits", [TWO_STEPS, LATE])
def test_a_secret_that_seals_twice_would_make_recorded_traffic_a_second_past_key(
    monkeypatch, limits
):
    monkeypatch.setattr(Secret, "seals_once", False)
    with pytest.raises(AssertionError, match="past key"):
        explore(limits)


def test_a_past_key_is_gone_when_the_neighbour_has_used_it_or_the_next_is_taken():
    keys = EdgeKeys()
    first = keys.take(0, lambda: b"a" * 32)
    assert keys.give(0) == first and keys.give(1) is None
    keys.take(1, lambda: b"b" * 32)
    assert keys.give(0) is None and keys.give(1) == b"b" * 32
    keys.forget(1)
    assert keys.give(1) is None


def test_a_key_that_another_edge_has_taken_is_not_taken_again():
    keys = EdgeKeys(wanted=(0, edge_keys.key_id(b"a" * 32)))
    keys.receive(0, b"a" * 32)
    assert keys.take(0, lambda: b"b" * 32, [b"a" * 32]) == b"b" * 32
    assert keys.last_id == edge_keys.key_id(b"b" * 32) and keys.give(0) == b"b" * 32
