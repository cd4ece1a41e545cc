"""Keys of an edge: all orders of events of two ends are explored, with crashes and rollbacks.

The invariant: one key serves one message that left, the two ends' keys of a step differ only
after one of them has drawn a fresh key, and whoever seizes an end gets one past key at most.
"""

from dataclasses import dataclass, field, replace

import pytest

from decor.net.edge_keys import NO_KEY, EdgeKeys
from decor.noise.agreement import key_id


class Secret:
    """An edge's secret whose keys can be read: b"number/step"."""

    def __init__(self, number, step=0):
        self.number, self.step = number, step

    def key(self, step):
        assert step >= self.step, "a past key"
        self.step = step + 1
        return f"{self.number}/{step}".encode()

    def copy(self):
        return Secret(self.number, self.step)


@dataclass
class End:
    """One end: its keys in memory, its ledger, and its view of the connection."""

    keys: EdgeKeys = field(default_factory=EdgeKeys)
    ledger: tuple = ()  # (step, key id, drawn afresh, its number) of each recorded message
    taken: tuple | None = None  # the same of a message that is being computed
    stage: str = "off"  # off, confirmed, open
    seen: int = -1  # the neighbour's last message, in memory: the receipt
    saved: int = -1  # and in the ledger
    asked: bool = False  # for a key, on this connection
    ended: bool = False

    def copy(self):
        keys = replace(self.keys)
        keys._older = [each.copy() for each in keys._older]
        keys._current = keys._current and (keys._current[0], keys._current[1].copy())
        return replace(self, keys=keys)

    def frozen(self):
        k = self.keys
        secrets = tuple((each.number, each.step) for each in k._older)
        current = k._current and (k._current[0], k._current[1].number, k._current[1].step)
        kept = k.next_step, k.last_id, k.is_confirming, k.wanted, current, secrets
        mine = self.ledger, self.taken, self.stage, self.seen, self.saved, self.asked, self.ended
        return kept, k._found, k._spare, k._past, mine

    @property
    def next_step(self):
        return self.ledger[-1][0] + 1 if self.ledger else 0


@dataclass
class State:
    ends: tuple
    flight: tuple = ((), ())  # messages on their way to end 0 and to end 1
    secrets: int = 0
    drawn: int = 0
    crashes: int = 0
    rollbacks: int = 0
    made: int = 0  # messages, of both
    left: frozenset = frozenset()  # (end, step, key id, number) of what the other has got

    def copy(self):
        return replace(self, ends=tuple(end.copy() for end in self.ends))

    def frozen(self):
        return (
            tuple(end.frozen() for end in self.ends),
            self.flight,
            self.secrets,
            self.drawn,
            self.crashes,
            self.rollbacks,
            self.made if self.rollbacks else 0,
            self.left,
        )


@dataclass(frozen=True)
class Limits:
    steps: int = 2
    connections: int = 2
    draws: int = 1
    crashes: int = 1
    rollbacks: int = 0
    receipts: bool = True


def moves(state, limits):
    """Every event that may come next: (name, end)."""
    both_off = all(end.stage == "off" for end in state.ends)
    if both_off and state.secrets < limits.connections:
        yield "connect", 0
    for e, end in enumerate(state.ends):
        if end.ended:
            continue
        if end.stage == "connected":
            yield "confirm", e
        # an end confirms when the neighbour's offer comes, which is before its confirmation
        elif state.flight[e]:
            yield "deliver", e
        if end.stage != "off":
            yield "lose", e
        if state.crashes < limits.crashes:
            yield "crash", e
        if state.rollbacks < limits.rollbacks and end.ledger:
            yield "rollback", e
        if end.taken is not None:
            yield "record", e
        elif (step := end.next_step) < limits.steps and may_begin(end, step):
            if end.keys.is_ready(step):
                yield "take", e
            elif not end.keys.is_confirming:
                if end.keys.needs(step) and end.stage == "open" and not end.asked:
                    yield "ask", e
                if state.drawn < limits.draws:
                    yield "draw", e


def may_begin(end, step):
    # with quorum 1 a step begins when the neighbour's message of the step before is here
    return step == 0 or end.seen >= step - 1


def after(state, move, e, receipts):
    """The state after an event."""
    state = state.copy()
    end, other = state.ends[e], state.ends[1 - e]
    flight = [list(each) for each in state.flight]
    match move:
        case "connect":
            state.secrets += 1
            for one, two in ((end, other), (other, end)):
                # greetings show what each has of the other
                lacks = receipts and two.seen >= one.next_step
                one.ended, one.stage = one.ended or lacks, "off" if lacks else "connected"
                one.asked = False
            if end.ended or other.ended:
                end.stage = other.stage = "off"
        case "confirm":
            flight[1 - e].append(("confirmation", *end.keys.confirm()))
            end.stage = "confirmed"
        case "deliver":
            kind, *rest = flight[e].pop(0)
            receive(state, e, flight, kind, rest, receipts)
        case "lose":
            end.stage = "off"
            end.keys.lose()
        case "take" | "draw":
            state.drawn += move == "draw"
            fresh = f"fresh {state.drawn}".encode()
            drawn = []
            end.keys.take(end.next_step, lambda: drawn.append(1) or fresh)
            assert bool(drawn) == (move == "draw"), "ready means that the key is there"
            state.made += 1
            end.taken = end.next_step, end.keys.last_id, move == "draw", state.made
        case "ask":
            end.asked = True
            flight[1 - e].append(("ask", end.next_step))
        case "record":
            end.ledger, end.taken = (*end.ledger, end.taken), None
            end.saved = end.seen  # receipts are stored with the next message
            if end.stage == "open":
                flight[1 - e].append(("model", *end.ledger[-1]))
        case "crash" | "rollback":
            state.crashes += move == "crash"
            if move == "rollback":
                state.rollbacks += 1
                end.ledger = end.ledger[:-1]
            last = end.ledger[-1][1] if end.ledger else NO_KEY
            end.keys, end.taken = EdgeKeys(end.next_step, last), None
            end.seen, end.stage = end.saved, "off"
    # what is sent to an end that has lost the connection goes nowhere
    gone = [each.stage == "off" for each in state.ends]
    state.flight = tuple(() if off else tuple(each) for off, each in zip(gone, flight, strict=True))
    return state


def receive(state, e, flight, kind, rest, receipts):
    end, other = state.ends[e], 1 - e
    match kind:
        case "confirmation":
            first = end.keys.open(Secret(state.secrets), *rest)
            assert first >= end.keys.next_step
            end.stage = "open"
            # a restarted user sends its last message again
            if end.ledger and end.taken is None:
                flight[other].append(("model", *end.ledger[-1]))
        case "model":
            step, used, _, number = rest
            if step >= end.seen:
                state.left |= {(other, step, used, number)}
                end.seen = step
                if receipts:
                    end.keys.forget(step)
        case "ask":
            key = end.keys.give(rest[0])
            # never for a step whose message the neighbour has made
            if key is not None and not (receipts and end.seen >= rest[0]):
                flight[other].append(("key", rest[0], key))
        case "key":
            step, key = rest
            known = {used for _, used, *_ in end.ledger}
            if key_id(key) not in known and end.taken is None:
                end.keys.receive(step, key)


def check(state):
    for e, end in enumerate(state.ends):
        ids = [used for _, used, *_ in end.ledger]
        assert len(set(ids)) == len(ids), "one key, one message"
        assert len(past_keys(state, e)) <= 1, "more than one past key can be seized"
        for step, used, _, number in end.ledger:
            for who, when, before, sent in state.left:
                if who == e and sent != number:
                    assert before != used, f"step {step}: two messages under one key"
                    assert when != step or state.rollbacks, f"step {step}: two messages"
    mine = {step: (used, fresh) for step, used, fresh, _ in state.ends[0].ledger}
    for step, used, fresh, _ in state.ends[1].ledger:
        if step in mine and not fresh and not mine[step][1]:
            assert mine[step][0] == used, f"step {step}: two keys, and nobody drew afresh"


def past_keys(state, e):
    """Ids of keys, of both ends' messages before this end's next step, that its memory yields."""
    keys = state.ends[e].keys
    used = {row[1] for end in state.ends for row in end.ledger if row[0] < keys.next_step}
    held = [*keys._older, *([keys._current[1]] if keys._current else [])]
    steps = range(keys.next_step)
    known = {each.copy().key(step) for each in held for step in steps if step >= each.step}
    known |= {pair[1] for pair in (keys._past, keys._spare) if pair} | {keys._found or b""}
    return used & set(map(key_id, known))


def explore(limits):
    """Checks every state that can be reached; returns how many there are."""
    first = State((End(), End()))
    todo, known = [(first, ())], {first.frozen()}
    while todo:
        state, path = todo.pop()
        for move, e in moves(state, limits):
            new, way = after(state, move, e, limits.receipts), (*path, f"{move} {e}")
            try:
                check(new)
            except AssertionError as broken:
                raise AssertionError(f"{broken}; after {', '.join(way)}") from None
            if (frozen := new.frozen()) not in known:
                known.add(frozen)
                todo.append((new, way))
    return len(known)


@pytest.mark.parametrize(
    "limits",
    (
        Limits(steps=2, connections=2, draws=0, crashes=1),
        Limits(steps=1, connections=2, draws=1, crashes=1),
        Limits(steps=1, connections=3, draws=0, crashes=1),
        Limits(steps=1, connections=2, draws=0, crashes=1, rollbacks=1),
    ),
    ids=str,
)
def test_all_orders_of_events_keep_one_key_for_one_message(limits):
    assert explore(limits) > 1000


def _go_on_with_the_old_secret(keys):
    return keys.next_step, keys.last_id


def _go_on_with_the_key_found_before(keys):
    wanted, found = keys.wanted, keys._found
    claim = CONFIRM(keys)
    keys.wanted, keys._found = wanted, found
    return claim


def _announce_the_step_that_is_computed(keys):
    step, last = CONFIRM(keys)
    return max(0, step - 1), last


def _believe_any_key(keys, step, key):
    keys._found = key
    return True


CONFIRM = EdgeKeys.confirm
WITH_CRASH = Limits(steps=1, connections=2, draws=1, crashes=1)
HALF_OPEN = Limits(steps=1, connections=3, draws=0, crashes=0)


@pytest.mark.parametrize(
    "name, fault, limits",
    (
        ("confirm", _go_on_with_the_old_secret, WITH_CRASH),
        ("confirm", _go_on_with_the_key_found_before, WITH_CRASH),
        ("confirm", _announce_the_step_that_is_computed, WITH_CRASH),
        ("receive", _believe_any_key, HALF_OPEN),
    ),
)
def test_the_exploration_notices_a_rule_that_is_broken(monkeypatch, name, fault, limits):
    monkeypatch.setattr(EdgeKeys, name, fault)
    with pytest.raises(AssertionError):
        explore(limits)


def test_without_receipts_a_rollback_gives_two_messages_under_one_key():
    limits = Limits(steps=1, connections=2, draws=0, crashes=0, rollbacks=1, receipts=False)
    with pytest.raises(AssertionError, match="two messages under one key"):
        explore(limits)


def test_a_past_key_is_gone_when_the_neighbour_has_used_it_or_the_next_is_taken():
    keys = EdgeKeys()
    first = keys.take(0, lambda: b"a" * 32)
    assert keys.give(0) == first and keys.give(1) is None
    keys.take(1, lambda: b"b" * 32)
    assert keys.give(0) is None and keys.give(1) == b"b" * 32
    keys.forget(1)
    assert keys.give(1) is None
