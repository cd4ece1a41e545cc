"""Two ends of an edge, and every order of events that may happen to them.

The ends are real `EdgeKeys`. What a peer does with them (net/peer_receiver.py, net/peer_barrier.py) is written out here, on
secrets whose keys can be read. `explore` visits every state that can be reached and checks it.
"""

from dataclasses import dataclass, field
from functools import cache

from decor.net import edge_keys
from decor.net.edge_keys import NO_KEY
from decor.noise import agreement

key_id = cache(agreement.key_id)


def copy(one):
    """A copy that shares its values; the module of this name takes five times as long."""
    other = object.__new__(type(one))
    vars(other).update(vars(one))
    return other


class Secret:
    """An edge's secret whose keys can be read: b"number/step". As `EdgeSecret`, it seals once."""

    seals_once = True

    def __init__(self, number, step=0, seals=True):
        self.number, self.step, self.seals = number, step, seals

    def key(self, step):
        assert step >= self.step, "a past key"
        self.step = step + 1
        return f"{self.number}/{step}".encode()

    def seal(self, step, key):
        assert self.seals, "a second key under one cipher"
        self.seals = not self.seals_once
        return self.number, step, key

    def unseal(self, step, sealed):
        assert self.seals and sealed[:2] == (self.number, step)
        self.seals = not self.seals_once
        return sealed[2]

    def forget_sealing(self):
        self.seals = False

    def copy(self):
        return copy(self)

    def frozen(self):
        return self.number, self.step, self.seals


@dataclass
class End:
    """One end: its keys in memory, its ledger, and its view of the connection."""

    keys: edge_keys.EdgeKeys = field(default_factory=lambda: edge_keys.EdgeKeys())
    ledger: tuple = ()  # (step, key id, drawn afresh, its number) of each recorded message
    taken: tuple | None = None  # the same of a message that is being computed
    stage: str = "off"  # off, connected, confirmed, open
    seen: int = -1  # the step of the neighbour's last message, in memory: the receipt
    seen_number: int = 0  # and which message it was
    saved: int = -1  # and in the ledger
    asked: bool = False  # for a key, on this connection
    ended: bool = False
    first_key: bytes | None = None  # for a liar, which offers it again

    def copy(self):
        other = copy(self)
        keys = other.keys = copy(self.keys)
        keys._older = [each.copy() for each in keys._older]
        keys._current = keys._current and (keys._current[0], keys._current[1].copy())
        return other

    def frozen(self):
        k = self.keys
        secrets = tuple(each.frozen() for each in k._older)
        current = k._current and (k._current[0], *k._current[1].frozen())
        kept = k.next_step, k.last_id, k.is_confirming, k.wanted, current, secrets
        mine = self.ledger, self.taken, self.stage, self.saved, self.asked, self.ended
        seen = self.seen, self.seen_number
        return kept, k._found, k._spare, k._past, mine, seen, self.first_key

    @property
    def next_step(self):
        return self.ledger[-1][0] + 1 if self.ledger else 0

    @property
    def messages(self):
        """(step, number) of each message in its ledger."""
        return [(step, number) for step, _, _, number in self.ledger]

    @property
    def secrets(self):
        """The secrets in its memory."""
        k = self.keys
        return [*k._older, *([k._current[1]] if k._current else [])]


@dataclass(frozen=True)
class Limits:
    """How much may happen, and what a peer does not do."""

    steps: int = 2
    connections: int = 2
    draws: int = 1
    crashes: int = 1
    rollbacks: int = 0
    skips: int = 0
    """A user that is behind its other neighbours leaves out a step, and makes the next one."""
    alone: bool = False
    """With a quorum below 1 an end goes on without the other."""
    liar: bool = False
    """End 1 may name a key that it has used before, and give it."""
    without: frozenset = frozenset()
    """Rules of the peer that are left out."""


@dataclass
class State:
    ends: tuple
    flight: tuple = ((), ())  # messages on their way to end 0 and to end 1
    secrets: int = 0
    drawn: int = 0
    crashes: int = 0
    rollbacks: int = 0
    skips: int = 0
    made: int = 0  # messages, of both
    left: frozenset = frozenset()  # (end, step, key id, number) of what the other has got
    recorded: frozenset = frozenset()  # sealed keys, by someone who records all traffic

    def copy(self):
        other = copy(self)
        other.ends = tuple(end.copy() for end in self.ends)
        return other

    def frozen(self):
        return (
            tuple(end.frozen() for end in self.ends),
            self.flight,
            self.secrets,
            self.drawn,
            self.crashes,
            self.rollbacks,
            self.skips,
            self.made if self.rollbacks else 0,
            self.left,
            self.recorded,
        )


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
            if limits.liar and e == 1 and end.first_key:
                yield "lie", e
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
            continue
        step = end.next_step
        if step < limits.steps and may_begin(end, step, limits):
            for move in ways_to_a_key(state, end, step, limits):
                yield move, e
        # to a step that more of the others have signed than may lie: this neighbour or not
        if step + 1 < limits.steps and state.skips < limits.skips:
            for move in ways_to_a_key(state, end, step + 1, limits):
                yield f"skip and {move}", e


def ways_to_a_key(state, end, step, limits):
    """What an end may do about the key of a step."""
    if end.keys.is_ready(step):
        yield "take"
    elif not end.keys.is_confirming:
        if end.keys.needs(step) and end.stage == "open" and not end.asked:
            yield "ask"
        if state.drawn < limits.draws:
            yield "draw"


def may_begin(end, step, limits):
    # with quorum 1 a step begins when the neighbour's message of the step before is here
    return step == 0 or end.seen >= step - 1 or limits.alone


def after(state, move, e, limits):
    """The state after an event."""
    state = state.copy()
    end, other = state.ends[e], state.ends[1 - e]
    flight = [list(each) for each in state.flight]
    match move:
        case "connect":
            connect(state, limits)
        case "confirm":
            flight[1 - e].append(("confirmation", *end.keys.confirm()))
            end.stage = "confirmed"
        case "lie":
            end.keys.confirm()
            flight[1 - e].append(("confirmation", other.keys.next_step + 1, key_id(end.first_key)))
            end.stage = "confirmed"
        case "deliver":
            kind, *rest = flight[e].pop(0)
            receive(state, e, flight, kind, rest, limits)
        case "lose":
            end.stage = "off"
            end.keys.lose()
        case "take" | "draw":
            take(state, e, end.next_step, move == "draw", limits)
        case "skip and take" | "skip and draw":
            state.skips += 1
            take(state, e, end.next_step + 1, move == "skip and draw", limits)
        case "ask" | "skip and ask":
            end.asked = True
            flight[1 - e].append(("ask", end.next_step + (move != "ask")))
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
            end.keys, end.taken = edge_keys.EdgeKeys(end.next_step, last), None
            end.seen, end.stage = end.saved, "off"
    # what is sent to an end that has lost the connection goes nowhere
    gone = [each.stage == "off" for each in state.ends]
    state.flight = tuple(() if off else tuple(each) for off, each in zip(gone, flight, strict=True))
    return state


def connect(state, limits):
    state.secrets += 1
    one, two = state.ends
    for end, other in ((one, two), (two, one)):
        # greetings show what each has of the other
        lacks = other.seen >= 0 and (other.seen, other.seen_number) not in end.messages
        lacks = lacks and "greetings show receipts" not in limits.without
        end.ended, end.stage, end.asked = end.ended or lacks, "connected", False
    if one.ended or two.ended:
        one.stage = two.stage = "off"


def take(state, e, step, is_drawn, limits):
    end = state.ends[e]
    state.drawn += is_drawn
    fresh, drawn = f"fresh {state.drawn}".encode(), []
    key = end.keys.take(step, lambda: drawn.append(1) or fresh)
    assert bool(drawn) == is_drawn, "ready means that the key is there"
    if limits.liar and e == 1 and end.first_key is None:
        end.first_key = key
    # a neighbour that was first needs no key of the step any more
    if end.seen >= step and "the second forgets" not in limits.without:
        end.keys.forget(step)
    state.made += 1
    end.taken = step, end.keys.last_id, is_drawn, state.made


def receive(state, e, flight, kind, rest, limits):
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
                end.seen, end.seen_number = step, number
                end.keys.forget(step)
        case "ask":
            give(state, e, flight, rest[0], limits)
        case "key":
            step, sealed = rest
            key = end.keys.unseal(step, sealed)
            known = {used for _, used, *_ in end.ledger}
            is_new = key is not None and key_id(key) not in known
            if key is not None and (is_new or "ids are new" in limits.without) and not end.taken:
                end.keys.receive(step, key)


def give(state, e, flight, step, limits):
    end = state.ends[e]
    if limits.liar and e == 1:
        sealed = (state.secrets, step, end.first_key) if end.first_key else b""
    # never for a step whose message the neighbour has made
    elif end.seen >= step and "no key past a receipt" not in limits.without:
        sealed = b""
    else:
        sealed = end.keys.seal(step)
        made = [row[1] for row in (*end.ledger, end.taken) if row and row[0] == step]
        assert not sealed or [key_id(sealed[2])] == made, "a key of another step"
    if sealed:
        state.recorded |= {sealed}
        flight[1 - e].append(("key", step, sealed))


def check(state, limits):
    for e, end in enumerate(state.ends[: 1 if limits.liar else 2]):
        ids = [used for _, used, *_ in end.ledger]
        assert len(set(ids)) == len(ids), "one key, one message"
        # a liar knows all keys that it gives
        past = 0 if limits.liar else len(past_keys(state, e))
        assert past <= 1, "more than one past key can be seized"
        assert not past or end.seen < end.keys.next_step - 1, "a past key that nobody needs"
        for step, used, _, number in end.ledger:
            for who, when, before, sent in state.left:
                if who == e and sent != number:
                    assert before != used, f"step {step}: two messages under one key"
                    assert when != step or state.rollbacks, f"step {step}: two messages"
    if limits.liar:
        return
    # a crash may lose the receipt of a message that no other has followed
    numbers = {(who, when): number for who, when, _, number in state.left}
    assert state.crashes or len(numbers) == len(state.left), "two messages of a step arrived"
    mine = {step: (used, fresh) for step, used, fresh, _ in state.ends[0].ledger}
    for step, used, fresh, _ in state.ends[1].ledger:
        if step in mine and not fresh and not mine[step][1]:
            assert mine[step][0] == used, f"step {step}: two keys, and nobody drew afresh"


def past_keys(state, e):
    """Ids of keys, of both ends' messages before this end's next step, that its memory yields."""
    end = state.ends[e]
    keys, steps = end.keys, range(end.keys.next_step)
    used = {row[1] for each in state.ends for row in each.ledger if row[0] < keys.next_step}
    known = {each.copy().key(step) for each in end.secrets for step in steps if step >= each.step}
    known |= {pair[1] for pair in (keys._past, keys._spare) if pair} | {keys._found or b""}
    # with what was recorded on the network
    able = {each.number for each in end.secrets if each.seals}
    known |= {key for number, _, key in state.recorded if number in able}
    return used & set(map(key_id, known))


def explore(limits):
    """Checks every state that can be reached; returns how many there are."""
    first = State((End(), End()))
    todo, known = [(first, ())], {first.frozen()}
    while todo:
        state, path = todo.pop()
        for move, e in moves(state, limits):
            way = (*path, f"{move} {e}")
            try:
                new = after(state, move, e, limits)
                if (frozen := new.frozen()) not in known:
                    check(new, limits)
                    known.add(frozen)
                    todo.append((new, way))
            except AssertionError as broken:
                raise AssertionError(f"{broken}; after {', '.join(way)}") from None
    return len(known)
