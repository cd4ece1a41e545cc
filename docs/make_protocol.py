"""The table and the picture of docs/protocol.md, from the session itself: `make docs`.

What may come in a state is `decor.net.session.MOVES`. What follows is found by doing it: a session
is brought into the state, given the message, and asked what it says, what it tells its owner, and
where it is.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from xml.sax.saxutils import escape

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from decor.net.edge_keys import NO_KEY
from decor.net.messages import (
    KINDS,
    Alive,
    Bye,
    Decoder,
    Done,
    KeyRequest,
    Message,
    Model,
    NoiseTag,
    SealedKey,
    SignedReceipt,
    encode,
    limits,
)
from decor.net.receipts import Receipt
from decor.net.session import MOVES, Session, SessionConfig, State
from decor.results import axes

PAGE, PICTURE = Path(__file__).parent / "protocol.md", "protocol.svg"
BEGIN, END = "<!-- made by make_protocol.py from decor.net.session.MOVES -->\n", "<!-- end -->\n"
SIZE = 16


@dataclass(frozen=True)
class Move:
    """In a state a message comes: the session says something, is in another state, and tells its
    owner.
    """

    state: State
    message: str
    says: tuple[str, ...]
    then: State
    event: str


def moves() -> list[Move]:
    """All of the table, in the order of states and of messages."""
    order = {kind: number for number, kind in KINDS.items()}
    states = list(State)
    return [
        _played(*key)
        for key in sorted(MOVES, key=lambda key: (states.index(key[0]), order[key[1]]))
    ]


def _played(state: State, kind: type[Message]) -> Move:
    one, two = _pair()
    waiting: deque[Message] = deque()
    while True:
        two.receive(one.outgoing())
        waiting.extend(_messages(two))
        if one.state is state:
            break
        one.receive(encode(waiting.popleft()))
    ready: dict[type[Message], Message] = {
        Bye: Bye("done"),
        Model: Model(0, 0, bytes(SIZE)),
        NoiseTag: NoiseTag(0, bytes(8)),
        Alive: Alive(),
        Done: Done(),
        SignedReceipt: SignedReceipt(Receipt(0, 0, bytes(32), bytes(64))),
        KeyRequest: KeyRequest(0),
        SealedKey: SealedKey(0, b""),
    }
    told = one.receive(encode(ready.get(kind) or waiting.popleft()))
    says = tuple(type(message).__name__ for message in _messages(one))
    return Move(
        state, kind.__name__, says, one.state, ", ".join(type(event).__name__ for event in told)
    )


def _messages(session: Session) -> list[Message]:
    """What a session has to say."""
    return list(Decoder(limits(SIZE)).feed(session.outgoing()))


def _pair() -> tuple[Session, Session]:
    keys = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    public = [key.public_key().public_bytes_raw() for key in keys]
    ends = [
        SessionConfig(
            keys[k], "neighbour", public[1 - k], k == 0, bytes(32), (("all", bytes(8)),), SIZE
        )
        for k in (0, 1)
    ]
    one, two = (Session(end, 1, 0, lambda: (0, NO_KEY)) for end in ends)
    return one, two


def table() -> str:
    """As Markdown."""
    lines = [
        "| in the state | comes | it says | then it is | its owner hears |",
        "|---|---|---|---|---|",
    ]
    for move in moves():
        lines.append(
            f"| {move.state.name} | {move.message} | {', '.join(move.says) or '-'} | "
            f"{move.then.name} | {move.event or '-'} |"
        )
    return "\n".join(lines) + "\n"


WIDTH, HEIGHT, ROUND, GAP, LEFT, TOP = 132, 68, 10, 96, 20, 100
SLATE = "#5b6472"


def picture() -> str:
    """The same as SVG: states from left to right, and below them the way out."""
    states, all_ = list(State), moves()
    x = {state: LEFT + k * (WIDTH + GAP) for k, state in enumerate(states)}
    wide, rail = LEFT + len(states) * (WIDTH + GAP) - GAP + 20, TOP + HEIGHT + 62
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {rail + 46}" width="{wide}" '
        f'height="{rail + 46}" '
        f'font-family="DejaVu Sans, Arial, sans-serif" font-size="12">',
        "<title>A session: what may come in which state, and where it leads</title>",
        f'<rect width="{wide}" height="{rail + 46}" fill="white"/>',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto">'
        f'<path d="M0 0L8 4L0 8z" fill="{axes.INK}"/></marker></defs>',
        _text(
            LEFT,
            22,
            "A session: what may come in which state, and where it leads",
            size=14,
            bold=True,
        ),
        _text(
            LEFT,
            42,
            "bold: the message that comes; below it: what is said in answer; all else is refused",
            colour=SLATE,
        ),
    ]
    for state in states:
        colour = axes.BLUE if state is State.OPEN else SLATE if state is State.CLOSED else axes.INK
        parts.append(
            f'<rect x="{x[state]}" y="{TOP}" width="{WIDTH}" height="{HEIGHT}" rx="{ROUND}" '
            f'fill="white" stroke="{colour}" '
            'stroke-width="2"/>'
        )
        parts.append(
            _text(x[state] + WIDTH / 2, TOP + 18, state.name, middle=True, bold=True, colour=colour)
        )
        for k, line in enumerate(_broken(state.value)):
            parts.append(
                _text(
                    x[state] + WIDTH / 2,
                    TOP + 33 + 12 * k,
                    line,
                    middle=True,
                    size=9.5,
                    colour=SLATE,
                )
            )
    middle = TOP + HEIGHT / 2
    for here, there in pairwise(states):
        for move in (m for m in all_ if (m.state, m.then) == (here, there) and m.message != "Bye"):
            parts.append(_arrow(f"M{x[here] + WIDTH} {middle}H{x[there]}"))
            centre = x[here] + WIDTH + GAP / 2
            parts.append(_text(centre, middle - 7, move.message, middle=True, bold=True, size=11))
            parts.append(
                _text(
                    centre,
                    middle + 17,
                    ", ".join(move.says),
                    middle=True,
                    size=11,
                    colour=axes.BLUE,
                )
            )
    for state in states:
        loops = [m.message for m in all_ if m.state is m.then is state]
        if loops:
            a, b = x[state] + WIDTH * 0.3, x[state] + WIDTH * 0.7
            parts.append(_arrow(f"M{a} {TOP}C{a} {TOP - 34} {b} {TOP - 34} {b} {TOP}"))
            parts.append(
                _text((a + b) / 2, TOP - 29, ", ".join(loops), middle=True, bold=True, size=11)
            )
    leaving = [m for m in all_ if m.message == "Bye" and m.then is State.CLOSED]
    end = x[State.CLOSED] + WIDTH / 2
    for move in leaving:
        at = x[move.state] + WIDTH / 2
        parts.append(
            f'<path d="M{at} {TOP + HEIGHT}V{rail}" fill="none" stroke="{axes.INK}" '
            'stroke-width="1.3"/>'
        )
    first = min(x[m.state] for m in leaving) + WIDTH / 2
    parts.append(_arrow(f"M{first} {rail}H{end}V{TOP + HEIGHT}"))
    parts.append(_text(first + 8, rail - 8, "Bye", bold=True, size=11))
    parts.append(
        _text(
            first,
            rail + 20,
            "What is refused goes the same way: the neighbour hears Bye, its "
            "owner an error that names it.",
        )
    )
    return "\n".join([*parts, "</svg>"]) + "\n"


def _broken(words: str, most: int = 27) -> list[str]:
    lines = [""]
    for word in words.split():
        if len(lines[-1]) + len(word) + 1 > most:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


def _arrow(path: str) -> str:
    return (
        f'<path d="{path}" fill="none" stroke="{axes.INK}" stroke-width="1.3" '
        'marker-end="url(#tip)"/>'
    )


def _text(
    x: float,
    y: float,
    words: str,
    middle: bool = False,
    bold: bool = False,
    size: float = 12,
    colour: str = axes.INK,
) -> str:
    more = (' text-anchor="middle"' if middle else "") + (' font-weight="bold"' if bold else "")
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size:g}" '
        f'fill="{colour}"{more}>{escape(words)}</text>'
    )


def page(text: str) -> str:
    """The page with the table as it is now."""
    before, rest = text.split(BEGIN)
    return before + BEGIN + table() + END + rest.split(END)[1]
