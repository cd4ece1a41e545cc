"""A session without sockets: two of them agree, and no bytes whatever break one."""

import itertools

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from decor.errors import LocalProtocolError, RemoteProtocolError
from decor.net import session
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
    Session,
    SessionConfig,
    State,
    Tagged,
)

SIZE = 40
FIELDS = (("steps", b"12345678"), ("users.a.address", b"abcdefgh"))
RECEIPT = Receipt(3, 2**40, bytes(range(32)), bytes(range(64)))


def nothing_taken():
    return 0, bytes(32)


def pair(
    size=SIZE,
    steps=(0, 0),
    epochs=(1, 1),
    digests=(FIELDS, FIELDS),
    federations=(bytes(32), bytes(32)),
    claims=(nothing_taken, nothing_taken),
    greetings=({}, {}),
):
    keys = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    public = [key.public_key().public_bytes_raw() for key in keys]
    return [
        Session(
            SessionConfig(
                keys[k],
                "aachen" if k == 0 else "bonn",
                public[1 - k],
                k == 0,
                federations[k],
                digests[k],
                size,
            ),
            epochs[k],
            steps[k],
            claims[k],
            **greetings[k],
        )
        for k in (0, 1)
    ]


def talk(one, two):
    """Everything each has to say, until both are silent; events of the two."""
    events = [[], []]
    while True:
        a, b = one.outgoing(), two.outgoing()
        if not a and not b:
            return events
        events[1] += two.receive(a)
        events[0] += one.receive(b)


def opened(**how):
    one, two = pair(**how)
    events = talk(one, two)
    assert one.state is two.state is State.OPEN
    return one, two, events


def test_two_neighbours_come_to_the_same_secret_and_know_each_others_last_keys():
    claims = (lambda: (4, b"a" * 32)), (lambda: (7, b"b" * 32))
    _, _, (one, two) = opened(steps=(3, 7), epochs=(2, 5), claims=claims)
    assert [type(e) for e in one] == [type(e) for e in two] == [Greeted, Agreed]
    assert one[0] == Greeted(7) and two[0] == Greeted(3)
    assert (one[1].their_step, one[1].their_key) == (7, b"b" * 32)
    assert (two[1].their_step, two[1].their_key) == (4, b"a" * 32)
    assert one[1].epoch == two[1].epoch == 5
    assert (
        one[1].secret.key(7) == two[1].secret.key(7)
        and one[1].secret.is_lower != two[1].secret.is_lower
    )


def test_a_greeting_shows_the_newest_receipt_and_who_only_fetches():
    _, _, (one, two) = opened(greetings=({"receipt": RECEIPT}, {"fetches": True}))
    assert two[0] == Greeted(0, RECEIPT, False) and one[0] == Greeted(0, None, True)


def test_the_claim_is_made_with_the_confirmation_and_not_before():
    """A step that begins between the greeting and the confirmation takes a key: a claim of before
    would let both ends use another key for it.
    """
    at = [0]

    def claim():
        calls.append(at[0])
        return at[0], bytes(32)

    calls = []
    one, two = pair(claims=(claim, nothing_taken))
    one.receive(two.outgoing())  # its hello
    assert calls == []
    at[0] = 1
    two.receive(one.outgoing())
    one.receive(two.outgoing())  # its offer
    assert calls == [1]
    (agreed,) = [e for e in two.receive(one.outgoing()) if isinstance(e, Agreed)]
    assert agreed.their_step == 1 and calls == [1]


@pytest.mark.parametrize("at", [HEADER.size, HEADER.size + 32, HEADER.size + 40])
def test_nobody_in_between_can_change_the_proof_or_what_it_claims(at):
    one, two = pair()
    for sender, receiver in ((one, two), (two, one), (two, one), (one, two)):
        receiver.receive(sender.outgoing())
    confirmation = bytearray(two.outgoing())
    assert one.state is State.CONFIRMING and confirmation[0] == Confirmation.kind
    confirmation[at] ^= 1
    with pytest.raises(RemoteProtocolError, match="could not agree on a secret: .*another secret"):
        one.receive(bytes(confirmation))


def test_everything_arrives_as_it_was_sent():
    one, two, _ = opened()
    one.send(SignedReceipt(RECEIPT))
    one.send_model(4, 0, bytes(range(SIZE)))
    one.send_tag(4, b"12345678")
    one.send(Alive())
    one.send(KeyRequest(3))
    one.send(SealedKey(2, bytes(range(48))))
    one.send(SealedKey(1, b""))
    one.send_model(4, 1, bytes(SIZE))
    one.send(Done())
    assert two.receive(one.outgoing()) == [
        Receipted(RECEIPT),
        Received(4, 0, bytes(range(SIZE))),
        Tagged(4, b"12345678"),
        Heard(),
        KeyAsked(3),
        KeyGiven(2, bytes(range(48))),
        KeyGiven(1, b""),
        Received(4, 1, bytes(SIZE)),
        Finished(),
    ]
    one.close("done")
    assert (
        two.receive(one.outgoing()) == [Ended("done")]
        and two.state is State.CLOSED
        and two.receive(b"more") == []
    )


def test_nothing_of_the_secret_is_on_the_wire():
    one, two = pair()
    said = b""
    held = []
    while True:
        a, b = one.outgoing(), two.outgoing()
        if not a and not b:
            break
        said += a + b
        held += [e.secret for e in one.receive(b) + two.receive(a) if isinstance(e, Agreed)]
    for secret in held:
        for hidden in (bytes(secret._chain), secret._confirmation, secret.key(0)):
            assert hidden not in said and hidden[:8] not in said


@pytest.mark.parametrize("bits", [1, 7, 64])
def test_it_does_not_matter_how_the_bytes_are_cut(bits):
    one, two, _ = opened()
    for k in range(3):
        one.send_model(k, 0, bytes([k] * SIZE))
    sent = one.outgoing()
    events = list(
        itertools.chain(*(two.receive(sent[k : k + bits]) for k in range(0, len(sent), bits)))
    )
    assert [e.step for e in events] == [0, 1, 2]


def test_different_files_are_refused_with_the_fields_that_differ():
    other = (("steps", b"87654321"), ("users.a.address", b"abcdefgh"), ("clip", b"11111111"))
    one, two = pair(digests=(FIELDS, other), federations=(bytes(32), b"\1" * 32))
    with pytest.raises(
        RemoteProtocolError,
        match="aachen has another federation file: fields that differ: steps, and 1 that",
    ):
        one.receive(two.outgoing())
    assert one.state is State.CLOSED


SPOKEN = {
    Hello: Hello(bytes(32), FIELDS, 1, 0),
    Offer: Offer(bytes(96)),
    Confirmation: Confirmation(bytes(32), 0, bytes(32)),
    Model: Model(0, 0, bytes(SIZE)),
    NoiseTag: NoiseTag(0, bytes(8)),
    Bye: Bye("x"),
    Alive: Alive(),
    Done: Done(),
    SignedReceipt: SignedReceipt(RECEIPT),
    KeyRequest: KeyRequest(0),
    SealedKey: SealedKey(0, bytes(48)),
}


def frames(data):
    while data:
        end = HEADER.size + HEADER.unpack_from(data)[1]
        yield data[:end]
        data = data[end:]


def in_state(state):
    """A session that has heard just enough to be in this state."""
    one, two = pair()
    heard = []
    while one.state is not state:
        two.receive(one.outgoing())
        heard += frames(two.outgoing())
        one.receive(heard.pop(0))
    one.outgoing()
    return one


@pytest.mark.parametrize("state", [s for s in State if s is not State.CLOSED])
@pytest.mark.parametrize("kind", SPOKEN)
def test_a_message_out_of_turn_is_refused_and_named(state, kind):
    one = in_state(state)
    if (state, kind) in MOVES:
        return
    with pytest.raises(RemoteProtocolError, match=f"aachen sent a {kind.__name__} while this side"):
        one.receive(encode(SPOKEN[kind]))
    assert one.state is State.CLOSED and isinstance(
        next(iter(Decoder(limits(SIZE)).feed(one.outgoing()[-50:])), None) or Bye(""), Bye
    )


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (Model(3, 0, bytes(SIZE - 1)), "39 bytes instead of 40"),
        (Model(2, 0, bytes(SIZE)), "old or a repeated one"),
        (Model(1, 5, bytes(SIZE)), "old or a repeated one"),
    ],
)
def test_models_of_another_shape_or_step_are_refused(wrong, said):
    one, two, _ = opened()
    one.send_model(2, 0, bytes(SIZE))
    two.receive(one.outgoing())
    with pytest.raises(RemoteProtocolError, match=f"bonn sent a model.*{said}"):
        two.receive(encode(wrong))


def test_what_is_too_long_is_refused_by_its_header_alone():
    for kind, longest in limits(SIZE).items():
        _, two, _ = opened()
        with pytest.raises(
            RemoteProtocolError,
            match=f"{KINDS[kind].__name__} of .* bytes; the limit is {longest:,}",
        ):
            two.receive(HEADER.pack(kind, longest + 1))
        assert len(two._decoder) <= HEADER.size


def test_another_secret_is_noticed():
    one = in_state(State.CONFIRMING)
    wrong = Confirmation(bytes(32), 0, bytes(32))
    with pytest.raises(
        RemoteProtocolError,
        match="aachen could not agree on a secret: .* another secret",
    ):
        one.receive(encode(wrong))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda s: s.send_model(0, 0, bytes(SIZE)),
        lambda s: s.send_tag(0, bytes(8)),
        lambda s: s.send(SignedReceipt(RECEIPT)),
        lambda s: s.send(SealedKey(0, bytes(48))),
    ],
)
def test_this_side_may_not_speak_out_of_turn_either(wrong):
    one, _ = pair()
    with pytest.raises(LocalProtocolError):
        wrong(one)
    one, _, _ = opened()
    with pytest.raises(LocalProtocolError, match="40 bytes, not 3"):
        one.send_model(0, 0, b"abc")


@settings(max_examples=300)
@given(st.binary(max_size=300), st.sampled_from([s for s in State if s is not State.CLOSED]))
def test_no_bytes_whatever_break_a_session(garbage, state):
    one = in_state(state)
    try:
        one.receive(garbage)
    except RemoteProtocolError as problem:
        assert str(problem).startswith("aachen ") and one.state is State.CLOSED
    assert len(one._decoder) <= len(garbage)


@settings(max_examples=300)
@given(st.data())
def test_no_change_of_one_byte_of_an_exchange_gives_an_open_session_with_another_secret(data):
    one, two = pair()
    at = data.draw(st.integers(0, 3))
    secrets = []
    try:
        for turn in range(8):
            sender, receiver = (one, two) if turn % 2 == 0 else (two, one)
            said = bytearray(sender.outgoing())
            if turn == at and said:
                said[data.draw(st.integers(0, len(said) - 1))] ^= data.draw(st.integers(1, 255))
            secrets += [e.secret for e in receiver.receive(bytes(said)) if isinstance(e, Agreed)]
    except RemoteProtocolError:
        pass
    if len(secrets) == 2:
        assert secrets[0].key(9) == secrets[1].key(9)


def test_every_kind_is_tried_out_of_turn():
    assert set(SPOKEN) == set(KINDS.values())


def test_the_table_has_a_move_for_every_message_in_some_state_and_none_when_closed():
    assert {kind for _, kind in MOVES} == set(KINDS.values()) and not any(
        state is State.CLOSED for state, _ in MOVES
    )
    assert session.State.OPEN in {state for state, _ in MOVES}
