"""Two sessions and a meddler between them, and bytes of every sort: nothing comes of it but
refusals.

`FUZZ_EXAMPLES=5000 pytest tests/net/test_fuzz.py` goes on for longer; `python tests/net/fuzz.py
--minutes 10` as long as is said.
"""

import asyncio
import hashlib
import os
import random
import shutil
import time
from dataclasses import replace

import fuzz
import liar as played
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from decor.errors import RemoteProtocolError
from decor.net import edge_keys, ledger, messages, peer_receiver, receipt_book, session
from decor.net.messages import (
    HEADER,
    Alive,
    Bye,
    Confirmation,
    Decoder,
    Done,
    Hello,
    KeyRequest,
    Model,
    NoiseTag,
    Offer,
    SealedKey,
    SignedReceipt,
    encode,
    limits,
)
from decor.net.neighbour import HELD
from decor.net.receipts import Receipt
from decor.net.session import (
    MOVES,
    Agreed,
    Ended,
    Finished,
    Greeted,
    Heard,
    KeyAsked,
    KeyGiven,
    Receipted,
    Received,
    State,
    Tagged,
)

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "600"))
SIDES, SIZE = st.integers(0, 1), 40
PLACES, NUMBERS = st.integers(0, 400), st.integers(0, 12) | st.sampled_from(fuzz.NUMBERS)
RECEIPTS = st.builds(
    Receipt,
    st.integers(0, 3),
    NUMBERS,
    st.binary(min_size=32, max_size=32),
    st.binary(min_size=64, max_size=64),
)
SEALED = st.just(b"") | st.binary(min_size=48, max_size=48)
FORGED = st.one_of(
    st.builds(
        Hello,
        st.sampled_from((fuzz.FEDERATION, bytes(32))),
        st.just(fuzz.FIELDS),
        NUMBERS,
        NUMBERS,
        st.none() | RECEIPTS,
        st.booleans(),
    ),
    st.builds(Offer, st.binary(min_size=96, max_size=96)),
    st.builds(
        Confirmation,
        st.binary(min_size=32, max_size=32),
        NUMBERS,
        st.binary(min_size=32, max_size=32),
    ),
    st.builds(Model, NUMBERS, st.integers(0, 3), st.sampled_from((bytes(SIZE), bytes(SIZE - 1)))),
    st.builds(NoiseTag, NUMBERS, st.binary(min_size=8, max_size=8)),
    st.builds(Bye, st.text(max_size=20)),
    st.sampled_from((Alive(), Done())),
    st.builds(SignedReceipt, RECEIPTS),
    st.builds(KeyRequest, NUMBERS),
    st.builds(SealedKey, NUMBERS, SEALED),
).map(encode)
WORDS = st.one_of(
    st.sampled_from(((Alive(), Heard()), (Done(), Finished()))),
    RECEIPTS.map(lambda receipt: (SignedReceipt(receipt), Receipted(receipt))),
    st.integers(0, 60).map(lambda step: (KeyRequest(step), KeyAsked(step))),
    st.tuples(st.integers(0, 60), SEALED).map(lambda key: (SealedKey(*key), KeyGiven(*key))),
)


class Neighbours(RuleBasedStateMachine):
    """Two honest ends, what is under way to each, and in some runs an attacker that changes it."""

    seen = fuzz.Seen()

    def __init__(self):
        super().__init__()
        rng = random.Random(1)
        self.keys = fuzz.ephemeral(lambda: rng.randbytes(32))
        self.keys.__enter__()

    @initialize(
        steps=st.tuples(st.integers(0, 50), st.integers(0, 50)),
        epochs=st.tuples(st.integers(1, 9), st.integers(1, 9)),
        lower=st.booleans(),
        meddles=st.booleans(),
        turns=st.sampled_from((0, 0, 1, 2, 3)),
    )
    def begin(self, steps, epochs, lower, meddles, turns):
        self.scene = scene = fuzz.Scene(SIZE, steps, epochs, lower)
        self.ends, self.meddles, self.disturbed = [scene.side(0), scene.side(1)], meddles, False
        self.under_way, self.said, self.heard = [bytearray(), bytearray()], [b"", b""], [[], []]
        self.failed, self.last, self.sent = [False, False], [(-1, 0), (-1, 0)], [[], []]
        self.hidden, self.over = set(), [False, False]
        self.collect()
        for _ in range(turns):
            self.turn()

    @rule(k=SIDES, count=st.integers(1, 200))
    def deliver(self, k, count):
        """Some of what is under way to k arrives."""
        data = bytes(self.under_way[k][:count])
        del self.under_way[k][:count]
        end = self.ends[k]
        was_over = end.is_over
        try:
            found = end.receive(data)
        except RemoteProtocolError as problem:
            assert self.disturbed, f"refused without reason: {problem}"
            assert end.is_over and not was_over
            self.failed[k] = True
            self.seen.refused(problem)
            assert not any(secret[:8].hex() in str(problem) for secret in self.hidden)
            found = []
        assert not (was_over and found)
        self.seen.states[end.state] += 1
        self.heard[k] += found
        for held in [end._secret, *(e.secret for e in found if isinstance(e, Agreed))]:
            if held is not None:
                self.hidden |= {bytes(held._chain), held._confirmation, held.tag()}
        self.collect()

    @rule()
    def turn(self):
        """Everything that is under way arrives."""
        for k, count in enumerate([len(held) for held in self.under_way]):
            self.deliver(k, count)

    @rule(k=SIDES, skipped=st.integers(0, 2), another_round=st.booleans(), fill=st.integers(0, 255))
    def model(self, k, skipped, another_round, fill):
        if self.ends[k].state is State.OPEN:
            step, round_ = self.last[k]
            step, round_ = (
                (step, round_ + 1) if another_round and step >= 0 else (step + 1 + skipped, 0)
            )
            self.last[k] = step, round_
            self.ends[k].send_model(step, round_, bytes([fill]) * SIZE)
            self.sent[k].append(Received(step, round_, bytes([fill]) * SIZE))
            self.collect()

    @rule(k=SIDES)
    def tag(self, k):
        step = 1 + max((e.step for e in self.sent[k] if isinstance(e, Tagged)), default=-1)
        if self.ends[k].state is State.OPEN:
            tag = hashlib.sha256(b"%d" % step).digest()[:8]
            self.hidden.add(tag)
            self.ends[k].send_tag(step, tag)
            self.sent[k].append(Tagged(step, tag))
            self.collect()

    @rule(k=SIDES, word=WORDS)
    def word(self, k, word):
        if self.ends[k].state is State.OPEN:
            self.ends[k].send(word[0])
            self.sent[k].append(word[1])
            self.collect()

    @rule(k=SIDES, reason=st.text(max_size=300))
    def close(self, k, reason):
        self.ends[k].close(reason)
        self.collect()

    def collect(self):
        for k, end in enumerate(self.ends):
            said = end.outgoing()
            assert not (self.over[k] and said), "a closed session speaks"
            self.over[k] = end.is_over
            self.said[k] += said
            self.under_way[1 - k] += said

    def touched(self, k, data, arrives=False):
        self.disturbed |= bytes(data) != bytes(self.under_way[k])
        self.under_way[k][:] = data
        if arrives:
            self.deliver(k, len(self.under_way[k]))

    @precondition(lambda self: self.meddles)
    @rule(k=SIDES, at=PLACES, count=st.integers(1, 100))
    def drop(self, k, at, count):
        held = self.under_way[k]
        self.touched(k, held[:at] + held[at + count :])

    @precondition(lambda self: self.meddles)
    @rule(k=SIDES, at=PLACES)
    def truncate(self, k, at):
        self.touched(k, self.under_way[k][:at])

    @precondition(lambda self: self.meddles)
    @rule(k=SIDES, at=PLACES, bit=st.integers(0, 7), arrives=st.booleans())
    def flip(self, k, at, bit, arrives):
        held = bytearray(self.under_way[k])
        if held:
            held[at % len(held)] ^= 1 << bit
        self.touched(k, held, arrives)

    @precondition(lambda self: self.meddles)
    @rule(
        k=SIDES,
        data=st.data(),
        how=st.sampled_from(("drop", "twice", "swap")),
        arrives=st.booleans(),
    )
    def shuffle(self, k, data, how, arrives):
        """Whole frames are lost, come twice, or in another order."""
        held = list(fuzz.frames(bytes(self.under_way[k])))
        if held:
            a, b = (
                data.draw(st.integers(0, len(held) - 1)),
                data.draw(st.integers(0, len(held) - 1)),
            )
            if how == "drop":
                del held[a]
            elif how == "twice":
                held.insert(b, held[a])
            else:
                held[a], held[b] = held[b], held[a]
            self.touched(k, b"".join(held), arrives)

    @precondition(lambda self: self.meddles)
    @rule(k=SIDES, frame=FORGED, first=st.booleans(), arrives=st.booleans())
    def inject(self, k, frame, first, arrives):
        held = self.under_way[k]
        self.touched(k, frame + held if first else held + frame, arrives)

    @precondition(lambda self: self.meddles)
    @rule(k=SIDES, data=st.data(), of=SIDES, arrives=st.booleans())
    def replay(self, k, data, of, arrives):
        """A frame that either side has sent before."""
        held = list(fuzz.frames(self.said[of]))
        self.touched(k, self.under_way[k] + data.draw(st.sampled_from(held)), arrives)

    @invariant()
    def nobody_holds_more_than_a_frame_that_may_come_now(self):
        for end in self.ends:
            may = [limits(SIZE)[kind.kind] for state, kind in MOVES if state is end.state]
            assert not may or len(end._decoder) < HEADER.size + max(may)

    @invariant()
    def models_come_in_order_and_everything_as_it_was_sent(self):
        for k, heard in enumerate(self.heard):
            models = [(e.step, e.round) for e in heard if isinstance(e, Received)]
            assert models == sorted(set(models))
            if not self.disturbed:
                exchanged = [e for e in heard if not isinstance(e, Greeted | Agreed | Ended)]
                assert exchanged == self.sent[1 - k][: len(exchanged)]

    def teardown(self):
        self.keys.__exit__(None, None, None)
        if not hasattr(self, "ends"):
            return
        for k in (0, 1):
            spoken = list(Decoder(limits(SIZE)).feed(self.said[k]))
            assert isinstance(spoken[0], Hello) and not any(isinstance(m, Bye) for m in spoken[:-1])
            assert isinstance(spoken[-1], Bye) or not self.failed[k]
            open_words = b"".join(encode(m) for m in spoken if isinstance(m, Hello | Bye))
            assert not any(secret[:8] in open_words for secret in self.hidden)
        agreed = [[e for e in heard if isinstance(e, Agreed)] for heard in self.heard]
        assert all(len(found) <= 1 for found in agreed)
        for k, found in enumerate(agreed):
            # also with an attacker in between: the proof covers the claim
            claims = [(each.their_step, each.their_key) for each in found]
            assert claims in ([], [self.scene.claim(1 - k)])
        if all(agreed):
            (one,), (two,) = agreed
            assert one.secret.key(60) == two.secret.key(60) and one.epoch == two.epoch


def test_two_neighbours_and_a_meddler_come_to_one_secret_or_to_a_refusal():
    Neighbours.seen = seen = fuzz.Seen()
    with fuzz.watched(seen):
        # keys are drawn anew every time, and once in a while a rare move is not met
        for again in range(4):
            run_state_machine_as_test(
                Neighbours,
                settings=settings(
                    max_examples=EXAMPLES,
                    stateful_step_count=25,
                    derandomize=not again and "FUZZ_EXAMPLES" not in os.environ,
                    database=None,
                    deadline=None,
                    suppress_health_check=list(HealthCheck),
                ),
            )
            if set(seen.moves) == set(MOVES) and len(seen.refusals) >= 15:
                break
    print(
        {
            "runs": EXAMPLES,
            "ends": seen.states,
            "moves": len(seen.moves),
            "refusals": len(seen.refusals),
        }
    )
    assert (
        set(seen.moves) == set(MOVES)
        and len(seen.refusals) >= 15
        and set(seen.states) == set(State)
    )


def test_no_bytes_whatever_break_a_session_and_every_way_to_refuse_them_is_met():
    seen, row = fuzz.fuzzed(seed=5, inputs=12_000)
    assert seen.missing() == {} and set(seen.states) == set(State), row


def test_the_fuzzer_knows_every_line_that_refuses():
    lines = [
        (name, line) for name, line in fuzz.every_line() if name in ("messages.py", "session.py")
    ]
    assert len(lines) == len(fuzz.every_line()) >= 9


def test_a_finding_is_told_with_its_input_and_comes_again(monkeypatch, capsys):
    """The fuzzer itself is tried on sessions that are broken on purpose."""

    def crash(*_):
        raise KeyError("broken")

    monkeypatch.setitem(MOVES, (State.GREETING, Hello), crash)
    with pytest.raises(fuzz.Finding, match="KeyError instead of a refusal") as found:
        fuzz.fuzzed(seed=3, inputs=100)
    line = found.value.__notes__[0].split(": ")[1]
    with pytest.raises(fuzz.Finding, match="KeyError"):
        fuzz.tried(fuzz.Case.read(line), fuzz.Seen())
    assert str(fuzz.Case.read(line)) == line


GREET = session.Session._greet


def _open_unproven(self, confirmation):
    self.state = State.OPEN
    step, key = confirmation.next_step, confirmation.key_id
    return [Agreed(self._secret, self.epoch, step, key)]


@pytest.mark.parametrize(
    ("where", "name", "broken", "said"),
    [
        (
            session,
            "limits",
            lambda size: dict.fromkeys(messages.KINDS, 1 << 40),
            "holds .* bytes while",
        ),
        (session.Session, "close", lambda self, _: None, "goes on after a refusal"),
        (
            session.Session,
            "_model",
            lambda self, m: [Received(m.step, m.round, m.values)],
            "out of order, or of another size",
        ),
        (
            session.Session,
            "_bye",
            lambda self, _: next(k for k in iter(int, 1) if k),
            "took more than",
        ),
        (
            session.Session,
            "_confirm",
            lambda self, m: _open_unproven(self, m),
            "open without the neighbour's proof",
        ),
        (
            session.Session,
            "_greet",
            lambda self, m: self._take_claim() and GREET(self, m),
            "claim was made at another time",
        ),
        (
            messages.SealedKey,
            "parse",
            classmethod(lambda cls, data: cls(int.from_bytes(data[:8], "little"), bytes(data[8:]))),
            "a SealedKey has two forms",
        ),
    ],
)
def test_the_fuzzer_finds_what_is_broken_on_purpose(monkeypatch, where, name, broken, said):
    monkeypatch.setattr(fuzz, "SECONDS", 0.2)
    for entry, move in list(MOVES.items()):
        if move is getattr(where, name):
            monkeypatch.setitem(MOVES, entry, broken)
    monkeypatch.setattr(where, name, broken)
    with pytest.raises(fuzz.Finding, match=said):
        fuzz.fuzzed(seed=3, inputs=3000)


# a peer, and a neighbour that agrees on secrets and then sends anything


class Attack:
    """One neighbour of a peer that makes its steps meanwhile; raises a Finding."""

    def __init__(self, rng, folder):
        self.rng, self.folder, self.lines, self.peer = rng, folder, set(), None

    def restart(self):
        """The peer again, from its ledger, or a new one near the end of its run."""
        if self.peer is not None:
            self.peer.ledger.close()
        if self.peer is None or self.peer.next_step > played.STEPS - 3:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir()
        self.peer = played.make_peer(self.folder, neighbours=2, users=4)
        self.attacker, honest = (played.Liar(self.peer, number) for number in (1, 2))
        if self.rng.random() < 0.8:
            honest.connect()

    def number(self):
        near = max(self.peer.next_step + self.rng.randrange(-2, 3), 0)
        return near if self.rng.random() < 0.75 else self.rng.choice(fuzz.NUMBERS)

    def receipt(self):
        rng, step = self.rng, min(self.number(), 2**64 - 1)
        user = rng.choice((0, 1, 1, 2, 3, 3, 4, 2**32 - 1))
        # of itself it signs anything, and others' are real or forged
        made = played.make_receipt(user if user < 4 else 1, step, rng.choice((b"d", b"e")) * 32)
        if user == 0:
            held = self.peer.ledger.digest(self.peer.run, min(step, 2**62))
            made = played.make_receipt(0, step, held) if held else replace(made, step=step ^ 1)
        if rng.random() < 0.2:
            made = replace(made, signature=rng.randbytes(64))
        return replace(made, user=user)

    def message(self):
        rng, step = self.rng, self.number()
        if self.attacker.link.awaits_key and rng.random() < 0.8:
            step = self.peer.next_step
            key = rng.choice((b"k" * 32, b"k" * 32, rng.randbytes(32)))
            sealed = rng.choice((b"", bytes(48), *[self.attacker.secret.seal(step, key)] * 3))
            return SealedKey(step, sealed)
        return rng.choice(
            (
                Model(step, rng.choice((0, 0, 1, 2, 3)), bytes([rng.choice((0, 0, 255))]) * 16),
                SignedReceipt(self.receipt()),
                SignedReceipt(self.receipt()),
                KeyRequest(step),
                SealedKey(step, b""),
                NoiseTag(step, rng.randbytes(8)),
                Alive(),
                Done(),
                Bye("enough"),
            )
        )

    def act(self):
        rng, one = self.rng, self.peer
        before = len(one.log.lines), rng.randrange(1, 9)
        try:
            used = edge_keys.NO_KEY if rng.random() < 0.3 else edge_keys.key_id(b"k" * 32)
            claim = self.number() % 2**62, used
            if rng.random() < 0.5:  # it has made a message that this user has not
                claim = one.next_step + 1, edge_keys.key_id(b"k" * 32)
            shown = self.receipt() if rng.random() < 0.3 else None
            self.attacker.connect(self.number() % 2**62, claim, shown)
            for _ in range(before[1]):
                if rng.random() < 0.3:
                    one._barrier.are_keys_ready(
                        one.next_step, time.monotonic() + rng.choice((-1, 5))
                    )
                if rng.random() < 0.2 and not self.attacker.link.keys.is_confirming:
                    played.make_message(one, one.next_step)
                if not self.attacker.link.is_open:
                    break
                count = 3000 if rng.random() < 0.05 else 1
                self.attacker.send(*[self.message()] * count)
                if count > 1 and self.attacker.link.is_open:
                    raise fuzz.Finding("a flood is not refused")
        except RemoteProtocolError as problem:
            said = str(problem)
            if not said.isascii() or not said.isprintable() or len(said) > 300:
                raise fuzz.Finding(f"a refusal that is not fit for a log: {said!r}") from problem
            self.lines.add(fuzz.raised_at(problem))
        except fuzz.Finding:
            raise
        except Exception as problem:
            raise fuzz.Finding(f"{type(problem).__name__} instead of a refusal") from problem
        self.check(len(one.log.lines) - before[0])

    def check(self, logged):
        one, link = self.peer, self.attacker.link
        if logged > 60:
            raise fuzz.Finding(f"one connection has filled the log with {logged} lines")
        if len(link.inbox) > HELD or len(link.tags._theirs) > played.STEPS:
            raise fuzz.Finding("more is kept than may be")
        (entry,) = one.ledger.entries()
        if entry.ended is not None or entry.repeated:
            raise fuzz.Finding("what this user never signed has ended its run")
        ids = [used for row in one.ledger.noise_rows(one.run) for used in ledger.split(row[1], 32)]
        if len(ids) != len(set(ids)):
            raise fuzz.Finding("one key has served two messages")


def attack(folder, seed, inputs):
    """The lines that refused."""
    attacked = Attack(random.Random(seed), folder / "peer")

    async def run():
        with fuzz.hurried() as hurry:
            for k in range(inputs):
                hurry()
                if k % 20 == 0 or attacked.peer.next_step > played.STEPS - 3:
                    attacked.restart()
                attacked.act()

    asyncio.run(run())
    attacked.peer.ledger.close()
    return attacked.lines


def test_nothing_that_a_neighbour_sends_breaks_a_peer_and_every_way_to_refuse_it_is_met(tmp_path):
    missing = fuzz.every_line(peer_receiver, receipt_book)
    assert len(missing) >= 15
    for seed in range(1, 5):  # keys are drawn anew, and once in a while a rare line is not met
        missing -= attack(tmp_path, seed, 1500)
        if not missing:
            return
    raise AssertionError(missing)


Receiver = peer_receiver.PeerReceiver


def _give_what_is_sealed(link, step, sealed):
    link.keys.unseal(step, sealed)


@pytest.mark.parametrize(
    ("where", "name", "broken", "said"),
    [
        (Receiver, "_handle_key", lambda self, *rest: _give_what_is_sealed(*rest), "AgreementErr"),
        (receipt_book.ReceiptBook, "is_own", lambda self, r: r.user == 0, "PrivacyStop|Overflow"),
        (receipt_book.ReceiptBook, "_check_step", lambda *_: None, "IndexError|OverflowError"),
        (Receiver, "_count_word", lambda *_: None, "a flood is not refused"),
        (ledger.Ledger, "has_key", lambda *_: False, "one key has served two messages"),
    ],
)
def test_the_attack_on_a_peer_finds_what_is_broken_on_purpose(
    tmp_path, monkeypatch, where, name, broken, said
):
    monkeypatch.setattr(where, name, broken)
    with pytest.raises(fuzz.Finding, match=said):
        attack(tmp_path, 1, 1500)
