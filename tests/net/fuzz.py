"""A fuzzer for sessions: whatever bytes arrive, nothing worse than a refusal may happen.

`python tests/net/fuzz.py --minutes 10 --seed 1` prints one JSON row; a finding ends it with the
seed, and with a line that `--replay` takes. The sessions here draw their ephemeral keys from a
fixed place, so that a recorded exchange stays valid: what is mutated is a conversation that would
have gone well.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import random
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from decor.errors import RemoteProtocolError
from decor.net import messages, session
from decor.net.messages import (
    HEADER,
    KINDS,
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
from decor.net.receipts import Receipt
from decor.net.session import MOVES, Agreed, Received, Session, SessionConfig, State
from decor.noise import agreement

NAME, FEDERATION = "bonn", hashlib.sha256(b"federation").digest()
FIELDS = (("steps", b"12345678"), ("users.a.address", b"abcdefgh"))
IDENTITIES = [Ed25519PrivateKey.from_private_bytes(bytes([k]) * 32) for k in (1, 2)]
PUBLIC = [key.public_key().public_bytes_raw() for key in IDENTITIES]
NUMBERS = (
    0,
    1,
    2,
    3,
    7,
    255,
    2**16,
    2**31,
    2**32 - 1,
    2**32,
    2**53,
    2**62 - 1,
    2**62,
    2**63 - 1,
    2**63,
    2**64 - 1,
)
SECONDS, GROWTH = 1.0, 8 << 20
"""The most CPU time that one input may take, and the most by which memory may grow."""


class Finding(Exception):
    """Something that must not happen has happened."""


@dataclass
class Seen:
    """What a run has reached."""

    inputs: int = 0
    moves: Counter = field(default_factory=Counter)
    states: Counter = field(default_factory=Counter)
    refusals: Counter = field(default_factory=Counter)
    lines: set = field(default_factory=set)
    """Where refusals were raised: (file, line)."""

    def refused(self, problem: RemoteProtocolError) -> None:
        said = str(problem)
        if (
            not said.startswith(f"{NAME} ")
            or not said.isascii()
            or not said.isprintable()
            or len(said) > 300
        ):
            raise Finding(f"a refusal that names no neighbour, or is not fit for a log: {said!r}")
        self.refusals[refusal(said)] += 1
        self.lines.add(raised_at(problem.__context__))

    def missing(self) -> dict[str, list]:
        """What no input has reached: moves of the table, refusals, lines that refuse."""
        found = {
            "moves": [
                f"{state.name} {kind.__name__}"
                for state, kind in MOVES
                if (state, kind) not in self.moves
            ],
            "refusals": sorted(every_refusal() - set(self.refusals)),
            "unknown": sorted(set(self.refusals) - every_refusal()),
            "lines": sorted(every_line() - self.lines),
        }
        return {name: what for name, what in found.items() if what}


def raised_at(problem: BaseException) -> tuple[str, int]:
    """File and line."""
    frame = problem.__traceback__
    while frame.tb_next is not None:
        frame = frame.tb_next
    return Path(frame.tb_frame.f_code.co_filename).name, frame.tb_lineno


def refusal(said: str) -> str:
    """A refusal without its numbers."""
    said = said.removeprefix(f"{NAME} ").split(": fields that differ")[0]
    return re.sub(r"\d+(,\d+)*", "#", re.sub(r"\(.*?\)", "(#)", said))


@cache
def every_refusal() -> frozenset[str]:
    kinds = [kind.__name__ for kind in KINDS.values()]
    return frozenset(
        {f"sent a {kind} of # bytes; the limit is #" for kind in kinds}
        | {f"sent a malformed {kind} (#)" for kind in kinds if kind not in ("Bye", "Alive", "Done")}
        | {
            f"sent a {kind.__name__} while this side {state.value}"
            for kind in KINDS.values()
            for state in State
            if state is not State.CLOSED and (state, kind) not in MOVES
        }
        | {
            "sent a frame of an unknown kind (#)",
            "runs decor federation probe, and this side a node; start its node",
            "speaks version # of the protocol, and this side version #; install the same version "
            "of decor at both",
            "names # fields of its federation; the limit is #",
            "has another federation file",
            "could not agree on a secret: the offer is not signed by this neighbour for this "
            "federation and epoch",
            "could not agree on a secret: the offer's key is of small order, which no honest "
            "neighbour sends",
            "could not agree on a secret: the neighbour has another secret: the connection is "
            "intercepted, or one of the two is faulty",
            "sent a model of # bytes instead of #",
            "sent a model of step #, round # after one of step #, round #: an old or a repeated one",
        }
    )


@cache
def every_line(*modules: ModuleType) -> frozenset[tuple[str, int]]:
    """Every `raise RemoteProtocolError` of modules (of sessions unless given), less the one that
    adds the neighbour's name.
    """
    found = set()
    for module in modules or (messages, session):
        for function in ast.walk(ast.parse(Path(module.__file__).read_text())):
            if isinstance(function, ast.FunctionDef) and function.name != "receive":
                for node in ast.walk(function):
                    if isinstance(node, ast.Raise) and "RemoteProtocolError" in ast.dump(node):
                        found.add((Path(module.__file__).name, node.lineno))
    return frozenset(found)


@contextmanager
def ephemeral(draw: Callable[[], bytes]) -> Iterator[None]:
    """Agreements take their keys from `draw` instead of the operating system."""
    kept = agreement.X25519PrivateKey
    agreement.X25519PrivateKey = SimpleNamespace(
        from_private_bytes=lambda _: X25519PrivateKey.from_private_bytes(draw())
    )
    try:
        yield
    finally:
        agreement.X25519PrivateKey = kept


@contextmanager
def watched(seen: Seen) -> Iterator[None]:
    """Counts the moves of the table that sessions take."""
    kept = dict(MOVES)

    def counted(entry, move):
        def taken(*args):
            events = move(*args)
            seen.moves[entry] += 1
            return events

        return taken

    MOVES.update({entry: counted(entry, move) for entry, move in kept.items()})
    try:
        yield
    finally:
        MOVES.update(kept)


@dataclass(frozen=True)
class Scene:
    """The session under attack, and what an honest neighbour would have sent, frame by frame."""

    size: int
    steps: tuple[int, int]
    epochs: tuple[int, int]
    is_lower: bool

    def claim(self, k: int) -> tuple[int, bytes]:
        """What a side says of its keys in its confirmation."""
        return self.steps[k] + k, hashlib.sha256(b"key of %d" % k).digest()

    def ephemeral_key(self, k: int) -> bytes:
        """Another in every scene: what proves one agreement proves no other."""
        return hashlib.sha256(f"{self} {k}".encode()).digest()

    def side(self, k: int, take_claim: Callable[[], tuple[int, bytes]] | None = None) -> Session:
        """0 is attacked, 1 is its neighbour."""
        ends = SessionConfig(
            IDENTITIES[k],
            NAME,
            PUBLIC[1 - k],
            self.is_lower == (k == 0),
            FEDERATION,
            FIELDS,
            self.size,
        )
        claim = (lambda: self.claim(k)) if take_claim is None else take_claim
        receipt = made_receipt(1 - k, self.steps[1 - k]) if self.steps[1 - k] else None
        return Session(ends, self.epochs[k], self.steps[k], claim, receipt)

    @cache  # noqa: B019 - scenes live as long as the process
    def transcript(self) -> list[bytes]:
        attacked, neighbour = self.side(0), self.side(1)
        heard = b""
        while True:
            said = neighbour.outgoing()
            if not said:
                break
            heard += said
            with ephemeral(lambda: self.ephemeral_key(0)):
                attacked.receive(said)
            with ephemeral(lambda: self.ephemeral_key(1)):
                neighbour.receive(attacked.outgoing())
        first = max(self.steps)
        for step in range(first, first + 3) if self.size < 1 << 20 else ():
            neighbour.send(SignedReceipt(made_receipt(1, step)))
            neighbour.send_model(step, 0, bytes([step % 256]) * self.size)
            neighbour.send_tag(step, hashlib.sha256(b"%d" % step).digest()[:8])
            neighbour.send_model(step, 1, bytes(self.size))
            neighbour.send(Alive())
            neighbour.send(KeyRequest(step))
            neighbour.send(SealedKey(step, bytes(48) if step % 2 else b""))
        neighbour.send(Done())
        neighbour.close("done")
        return list(frames(heard + neighbour.outgoing()))


SCENES = [
    Scene(40, (0, 0), (1, 1), True),
    Scene(40, (3, 7), (2, 5), False),
    Scene(0, (9, 2), (4, 4), True),
    Scene(4096, (0, 1), (1, 2), False),
    Scene(1 << 31, (0, 0), (1, 1), True),
]


def made_receipt(user: int, step: int) -> Receipt:
    """A receipt that its user has signed."""
    digest = hashlib.sha256(b"message %d" % step).digest()
    return Receipt.sign(IDENTITIES[user], FEDERATION, user, step, digest)


def frames(said: bytes) -> Iterator[bytes]:
    """Frame by frame; what is no whole one comes as it is."""
    while said:
        end = HEADER.size + (HEADER.unpack_from(said)[1] if len(said) >= HEADER.size else 0)
        yield said[:end]
        said = said[end:]


def forged(rng: random.Random, scene: Scene) -> bytes:
    """One frame that an attacker with the neighbour's keys could have made, more or less."""
    number = lambda: rng.choice(NUMBERS)  # noqa: E731
    receipt = Receipt(number() % 2**32, number(), rng.randbytes(32), rng.randbytes(64))
    kind = rng.randrange(16)
    if kind == 0:
        digests = [
            (rng.choice(("steps", "clip", "x" * 60, "name")) + str(k), rng.randbytes(8))
            for k in range(rng.choice((0, 2, 64)))
        ]
        federation, shown = rng.choice((FEDERATION, bytes(32))), rng.choice((None, receipt))
        fetches = rng.random() < 0.5
        return encode(Hello(federation, tuple(digests), number(), number(), shown, fetches))
    if kind == 1:
        payload = bytearray(Hello(FEDERATION, FIELDS, 1, 0).payload())
        # the version, two booleans, how many fields, a name's length, a name
        at = rng.choice((0, 50, 51, 52, 54, 55, rng.randrange(len(payload))))
        payload[at] = rng.choice((0, 1, 2, 65, 128, 255))
        return HEADER.pack(Hello.kind, len(payload)) + payload
    if kind == 2:
        key, epoch = (
            rng.choice((bytes(32), b"\1" + bytes(31), rng.randbytes(32))),
            max(scene.epochs),
        )
        low, high = PUBLIC if scene.is_lower else PUBLIC[::-1]
        edge = agreement.Edge(low, high, FEDERATION, epoch)
        return encode(
            Offer(key + IDENTITIES[1].sign(agreement._offer_text(edge, not scene.is_lower, key)))
        )
    if kind == 3:
        return encode(Offer(rng.randbytes(96)))
    if kind == 4:
        tag = scene.transcript()[2][HEADER.size :][:32]
        tag = rng.choice((tag, rng.randbytes(32)))
        step, used = scene.claim(1)
        return encode(
            Confirmation(tag, rng.choice((step, number())), rng.choice((used, rng.randbytes(32))))
        )
    if kind == 5:
        size = min(scene.size, 5000)
        return encode(
            Model(
                number(),
                number() % 2**32,
                rng.randbytes(rng.choice((size, size, max(size - 1, 0), 0))),
            )
        )
    if kind == 6:
        return encode(NoiseTag(number(), rng.randbytes(rng.choice((8, 8, 7)))))
    if kind == 7:
        return HEADER.pack(Bye.kind, length := rng.randrange(201)) + rng.randbytes(length)
    if kind == 8:  # a header that promises
        longest = limits(scene.size)
        chosen = rng.choice(list(KINDS))
        promised = rng.choice(
            (longest[chosen] + 1, longest[chosen], 2**32 - 1, 2**31, number() % 2**32)
        )
        return HEADER.pack(chosen, min(promised, 2**32 - 1)) + rng.randbytes(
            rng.choice((0, 8, 60, 6000))
        )
    if kind == 9:
        return encode(rng.choice((Alive(), Done())))
    if kind == 10:
        return encode(SignedReceipt(rng.choice((receipt, made_receipt(1, number())))))
    if kind == 11:
        return encode(KeyRequest(number()))
    if kind == 12:
        return encode(SealedKey(number(), rng.randbytes(rng.choice((0, 48, 47)))))
    length = rng.choice((0, 1, 7, 8, 15, 16, 40, 54, 56, 72, 96, 108, rng.randrange(300)))
    known = rng.choice(list(KINDS)) if kind < 15 else rng.randrange(256)
    return HEADER.pack(known, length) + rng.randbytes(length)


def mutated(rng: random.Random, whole: bytes) -> bytes:
    """A few wounds anywhere in the bytes."""
    data = bytearray(whole)
    for _ in range(rng.choice((1, 1, 1, 2, 4, 8))):
        at = rng.randrange(len(data) + 1)
        end = min(len(data), at + rng.choice((1, 2, 8, 50)))
        wound = rng.randrange(6)
        if wound == 0 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif wound == 1 and at < len(data):
            data[at] = rng.choice((0, 1, 127, 128, 255))
        elif wound == 2:
            del data[at:end]
        elif wound == 3:
            data[at:at] = data[at:end]
        elif wound == 4:
            data[at:at] = rng.randbytes(rng.choice((1, 4, 8, 30)))
        elif wound == 5:
            del data[at:]
    return bytes(data)


def stream(rng: random.Random, scene: Scene) -> bytes:
    """What the attacked session is to hear, all in all."""
    said = list(scene.transcript())
    way = rng.randrange(8)
    if way == 0:
        return rng.randbytes(rng.choice((3, 8, 20, 300)))
    if way == 1:
        return mutated(rng, b"".join(said))
    if way == 2:
        return b"".join(said)
    if way == 3:  # frames lost, said twice, or in another order
        for _ in range(rng.randrange(1, 4)):
            a, b = rng.randrange(len(said)), rng.randrange(len(said))
            rng.choice(
                (
                    lambda a=a: said.pop(a) if len(said) > 1 else None,
                    lambda a=a, b=b: said.insert(a, said[b]),
                )
            )()
        return b"".join(said)
    if way == 4:  # another conversation from here on
        other = rng.choice(SCENES).transcript()
        return b"".join(said[: rng.randrange(len(said))] + other[rng.randrange(len(other)) :])
    part = said[: rng.randrange(len(said))]
    following = said[len(part) :]
    if rng.random() < 0.2:  # the right kind at the right time, of a wrong length
        cut = rng.randrange(len(following[0]) - HEADER.size + 1)
        part.append(HEADER.pack(following[0][0], cut) + following[0][HEADER.size :][:cut])
    else:
        part += [forged(rng, scene) for _ in range(rng.choice((1, 1, 2, 5)))] + following[
            : rng.randrange(3)
        ]
    return mutated(rng, b"".join(part)) if way == 7 else b"".join(part)


@dataclass(frozen=True)
class Case:
    """One input: what is heard, in which pieces, and what the attacked side says or does between
    them.
    """

    scene: int
    acts: tuple[bytes | str, ...]

    @staticmethod
    def made(rng: random.Random) -> Case:
        scene = rng.randrange(len(SCENES))
        heard = stream(rng, SCENES[scene])
        cuts = rng.choice((0, 0, 1, 3, 20, len(heard) if len(heard) < 400 else 3))
        at = sorted({0, len(heard), *(rng.randrange(len(heard) + 1) for _ in range(cuts))})
        acts: list[bytes | str] = [heard[a:b] for a, b in zip(at, at[1:], strict=False)]
        if rng.random() < 0.2:
            acts.insert(rng.randrange(len(acts) + 1), rng.choice(("close", "model", "tag")))
        return Case(scene, tuple(acts))

    def __str__(self) -> str:
        return f"{self.scene}:" + ",".join(
            act if isinstance(act, str) else act.hex() or "-" for act in self.acts
        )

    @staticmethod
    def read(line: str) -> Case:
        scene, acts = line.split(":")
        known = ("close", "model", "tag")
        return Case(
            int(scene),
            tuple(a if a in known else bytes.fromhex(a.strip("-")) for a in acts.split(",")),
        )


def tried(case: Case, seen: Seen) -> None:
    """Runs one input; raises a Finding if something is not as it must be."""
    scene = SCENES[case.scene]
    claims = []

    def claim() -> tuple[int, bytes]:
        claims.append(attacked.state)
        return scene.claim(0)

    attacked = scene.side(0, claim)
    longest, latest, said = limits(scene.size), (-1, -1), bytearray()
    for act in case.acts:
        before = attacked.is_over
        events = []
        if act == "close":
            attacked.close("enough")
        elif isinstance(act, str):
            if attacked.state is State.OPEN:
                attacked.send_tag(
                    0, bytes(8)
                ) if act == "tag" or scene.size > 5000 else attacked.send_model(
                    0, 0, bytes(scene.size)
                )
        else:
            try:
                with ephemeral(lambda: scene.ephemeral_key(0)):
                    events = attacked.receive(act)
            except RemoteProtocolError as problem:
                seen.refused(problem)
                if attacked.state is not State.CLOSED:
                    raise Finding("a session goes on after a refusal") from problem
            except Finding:
                raise
            except Exception as problem:
                raise Finding(
                    f"{type(problem).__name__} instead of a refusal: {problem}"
                ) from problem
        seen.states[attacked.state] += 1
        if before and (events or attacked._out):
            raise Finding("a closed session hears or speaks")
        may = [longest[kind.kind] for state, kind in MOVES if state is attacked.state]
        if may and len(attacked._decoder) >= HEADER.size + max(may) + (max(may) == 0):
            raise Finding(
                f"a session holds {len(attacked._decoder)} bytes while it {attacked.state.value}"
            )
        for event in events:
            if isinstance(event, Received):
                if (event.step, event.round) <= latest or len(event.values) != scene.size:
                    raise Finding("a model out of order, or of another size")
                latest = event.step, event.round
            # whoever has not the neighbour's ephemeral key cannot prove anything else
            elif isinstance(event, Agreed) and scene.claim(1) != (
                event.their_step,
                event.their_key,
            ):
                raise Finding("a session is open without the neighbour's proof")
        if claims not in ([], [State.AGREEING]):
            raise Finding("a claim was made at another time than with the confirmation")
        if attacked.epoch >= 2**62:
            raise Finding(f"epoch {attacked.epoch} leaves no room for the next")
        said += attacked.outgoing()
    _check_said(attacked, bytes(said))
    _check_codec(b"".join(act for act in case.acts if isinstance(act, bytes)), longest)


def _check_said(attacked: Session, said: bytes) -> None:
    """What the session has said is well formed, ends with at most one Bye, and nothing is said or
    heard after the end.
    """
    try:
        spoken = list(Decoder(limits(attacked.config.model_bytes)).feed(said))
    except RemoteProtocolError as problem:
        raise Finding(f"the session itself {problem}") from problem
    if sum(len(encode(m)) for m in spoken) != len(said) or any(
        isinstance(m, Bye) for m in spoken[:-1]
    ):
        raise Finding("the session spoke after its Bye, or half a frame")
    if attacked.is_over and (
        attacked.receive(said) or attacked.receive(b"\xff" * 30) or attacked.outgoing()
    ):
        raise Finding("a closed session hears or speaks")


def _check_codec(heard: bytes, longest: dict[int, int]) -> None:
    """What is decoded encodes to the bytes that came: no message has two forms (but a Bye, which is
    made printable).
    """
    at = 0
    try:
        for message in Decoder(longest).feed(heard):
            made = encode(message)
            if not isinstance(message, Bye) and heard[at : at + len(made)] != made:
                raise Finding(f"a {type(message).__name__} has two forms")
            at += len(made)
    except RemoteProtocolError:
        pass


def resident() -> int:
    """Bytes of memory in use now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@contextmanager
def hurried() -> Iterator[Callable[[], object]]:
    """Call what it gives before every input: one that does not end, or not soon, is a finding where
    it stands.
    """

    def late(*_: object) -> None:
        raise Finding(f"an input took more than {SECONDS} s")

    kept = signal.signal(signal.SIGVTALRM, late)  # CPU time: a busy machine is no finding
    try:
        yield lambda: signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, kept)


def fuzzed(
    seed: int, seconds: float = float("inf"), inputs: float = float("inf")
) -> tuple[Seen, dict]:
    """Runs until the time or the inputs are used up; what was reached, and the row to print.

    Raises a Finding with its input.
    """
    rng, seen, began = random.Random(seed), Seen(), time.monotonic()
    warm, base, most, slowest = min(20_000, inputs / 4), 0, 0, 0.0
    with watched(seen), hurried() as hurry:
        while seen.inputs < inputs and time.monotonic() - began < seconds:
            case = Case.made(rng)
            started = time.thread_time()
            hurry()
            try:
                tried(case, seen)
            except Finding as problem:
                problem.add_note(f"seed {seed}, input {seen.inputs}: {case}")
                raise
            slowest = max(slowest, time.thread_time() - started)
            seen.inputs += 1
            if seen.inputs <= warm:
                base = most = resident() if seen.inputs % 100 == 0 or base == 0 else base
            elif seen.inputs % 1000 == 0:
                most = max(most, resident())
                if most - base > GROWTH:
                    raise Finding(
                        f"memory has grown by {most - base:,} bytes in "
                        f"{seen.inputs - warm:,.0f} inputs (seed {seed})"
                    )
    took = time.monotonic() - began
    row = {
        "benchmark": "fuzz",
        "seed": seed,
        "seconds": round(took, 1),
        "inputs": seen.inputs,
        "inputs_per_second": round(seen.inputs / took),
        "grown_kB": (most - base) // 1024,
        "slowest_input_ms": round(slowest * 1e3, 1),
        "states": {state.name: count for state, count in seen.states.items()},
        "moves": {
            f"{state.name} {kind.__name__}": count for (state, kind), count in seen.moves.items()
        },
        "refusals": dict(seen.refusals.most_common()),
        "missing": seen.missing(),
    }
    return seen, row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--replay", help="the line of a finding")
    args = parser.parse_args()
    try:
        if args.replay:
            with hurried() as hurry:
                hurry()
                tried(Case.read(args.replay), Seen())
            return 0
        seen, row = fuzzed(args.seed, 60 * args.minutes)
    except Finding as problem:
        print(
            json.dumps(
                {
                    "benchmark": "fuzz",
                    "seed": args.seed,
                    "finding": str(problem),
                    "notes": getattr(problem, "__notes__", []),
                }
            )
        )
        return 1
    print(json.dumps(row))
    return 1 if row["missing"] else 0


if __name__ == "__main__":
    sys.exit(main())
