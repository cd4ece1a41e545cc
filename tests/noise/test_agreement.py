"""Two neighbours agree on a secret of their own, and forget the keys that they have used."""

import copy
import pickle

import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from decor.errors import AgreementError, InputError
from decor.noise import agreement
from decor.noise.agreement import (
    KEY_ID_BYTES,
    OFFER_BYTES,
    SEALED_BYTES,
    TAG_BYTES,
    Agreement,
    Edge,
    EdgeSecret,
    key_id,
)

FEDERATION = bytes(range(32))


def public(key):
    return key.public_key().public_bytes_raw()


def pair(epoch=0, federation=FEDERATION):
    a, b = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    edge = Edge(public(a), public(b), federation, epoch)
    return a, b, edge


def agreed(epoch=0):
    a, b, edge = pair(epoch)
    one, two = Agreement(a, edge), Agreement(b, edge)
    return one.accept(two.offer), two.accept(one.offer)


def test_both_ends_have_the_same_key_in_every_step_and_another_in_each():
    one, two = agreed()
    one.confirm(two.tag())
    two.confirm(one.tag())
    keys = [one.key(step) for step in range(20)]
    assert (
        keys == [two.key(step) for step in range(20)]
        and len(set(keys)) == 20
        and all(len(key) == 32 for key in keys)
    )
    # or a tag could be sent back to its sender
    assert one.tag() != two.tag() and len(one.tag()) == TAG_BYTES


def test_two_agreements_of_the_same_two_share_nothing():
    a, b, edge = pair()
    first = [Agreement(a, edge), Agreement(b, edge)]
    second = [Agreement(a, edge), Agreement(b, edge)]
    keys = {one.accept(two.offer).key(0) for one, two in (first, second)}
    assert len(keys) == 2


def test_a_key_is_all_of_32_bytes_of_the_randomness_it_is_given():
    """Fewer can be tried one after the other, and then the edge's noise is known."""
    a, b, edge = pair()
    asked = []

    def random(count):
        asked.append(count)
        return bytes(range(7, 7 + count))

    offer = Agreement(a, edge, random).offer
    assert asked == [32]
    assert (
        offer[:32]
        == X25519PrivateKey.from_private_bytes(bytes(range(7, 39))).public_key().public_bytes_raw()
    )
    # every byte counts: X25519 itself fixes three bits of the first, and two of the last
    for place in range(32):
        other = bytearray(range(7, 39))
        other[place] ^= 0x18
        assert Agreement(a, edge, lambda count, other=other: bytes(other)).offer[:32] != offer[:32]
    Agreement(b, edge).accept(offer)


def test_the_secret_needs_the_exchange_and_not_only_what_was_said():
    """Whoever has heard every word, and knows the identities too, lacks what the two ephemeral keys
    make of each other.
    """
    a, b, edge = pair()
    one, two, again = Agreement(a, edge), Agreement(b, edge), Agreement(a, edge)
    # the same end once more, with the same words and another key behind them
    again._public = one._public
    real, guessed = one.accept(two.offer), again.accept(two.offer)
    assert (
        real._transcript == guessed._transcript
        and real.key(0) != guessed.key(0)
        and real.tag() != guessed.tag()
    )


def test_steps_only_go_forward_and_skipped_ones_are_lost():
    one, two = agreed()
    assert one.key(7) == [two.key(step) for step in range(8)][-1]
    for gone in (0, 6, 7):
        with pytest.raises(AgreementError, match=f"step {gone} is gone: the edge is at step 8"):
            one.key(gone)
    assert one.key(8) == two.key(8)


def test_the_chain_after_a_step_does_not_hold_that_steps_key():
    """One way: the chain that is left is a hash, and the bytes it had before are overwritten."""
    one, two = agreed()
    chain = one._chain
    before = bytes(chain)
    used = one.key(0)
    assert chain is one._chain and bytes(chain) != before and used not in (before, bytes(chain))
    assert two.key(0) == used and bytes(two._chain) == bytes(one._chain)


@pytest.mark.parametrize("at", [0, 31, 32, 60, OFFER_BYTES - 1])
def test_a_changed_offer_is_refused(at):
    a, b, edge = pair()
    one, two = Agreement(a, edge), Agreement(b, edge)
    wrong = bytearray(two.offer)
    wrong[at] ^= 1
    with pytest.raises(AgreementError, match="not signed by this neighbour"):
        one.accept(bytes(wrong))
    # a wrong one does not spoil the right one
    assert one.accept(two.offer).key(0) == two.accept(one.offer).key(0)


@given(st.binary(max_size=200))
def test_no_bytes_but_an_offer_are_taken(garbage):
    a, _, edge = pair()
    with pytest.raises(AgreementError):
        Agreement(a, edge).accept(garbage)


def test_an_offer_counts_for_one_neighbour_one_federation_one_epoch_and_one_direction():
    a, b, edge = pair(epoch=3)
    stranger = Ed25519PrivateKey.generate()
    theirs = Agreement(b, edge).offer
    others = [
        Agreement(b, Edge(edge.lower, edge.higher, bytes(32), 3)).offer,
        Agreement(b, Edge(edge.lower, edge.higher, FEDERATION, 4)).offer,
        Agreement(b, Edge(public(stranger), edge.higher, FEDERATION, 3)).offer,
        Agreement(b, Edge(edge.higher, edge.lower, FEDERATION, 3)).offer,
        Agreement(stranger, Edge(public(stranger), edge.higher, FEDERATION, 3)).offer,
        Agreement(a, edge).offer,  # one's own, reflected
    ]
    for offer in others:
        with pytest.raises(AgreementError, match="not signed"):
            Agreement(a, edge).accept(offer)
    Agreement(a, edge).accept(theirs)


def test_keys_of_small_order_are_refused_even_if_signed():
    a, b, edge = pair()
    for point in (bytes(32), b"\x01" + bytes(31)):
        signed = point + b.sign(agreement._offer_text(edge, False, point))
        with pytest.raises(AgreementError, match="small order"):
            Agreement(a, edge).accept(signed)


def test_a_man_in_the_middle_without_the_identities_gets_nothing():
    a, b, edge = pair()
    eve = Ed25519PrivateKey.generate()
    fake = Agreement(eve, Edge(public(eve), edge.higher, FEDERATION, 0))
    with pytest.raises(AgreementError, match="not signed"):
        Agreement(b, edge).accept(fake.offer)


def test_different_secrets_are_noticed_before_they_are_used():
    one, _ = agreed()
    _, two = agreed()
    with pytest.raises(AgreementError, match="another secret"):
        one.confirm(two.tag())
    with pytest.raises(AgreementError, match="another secret"):
        one.confirm(one.tag())


def test_an_agreement_is_used_once():
    a, b, edge = pair()
    one, two = Agreement(a, edge), Agreement(b, edge)
    one.accept(two.offer)
    with pytest.raises(AgreementError, match="used already"):
        one.accept(two.offer)


def test_secrets_are_not_printed_copied_or_written():
    one, _ = agreed()
    shown = repr(one) + str(one) + f"{one}"
    assert shown == "EdgeSecret(step 0)" * 3 and bytes(one._chain).hex() not in shown
    for way in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="must not be written"):
            way(one)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda a, b: Edge(a, a, FEDERATION, 0),
        lambda a, b: Edge(a, b[:31], FEDERATION, 0),
        lambda a, b: Edge(a, b, b"", 0),
        lambda a, b: Edge(a, b, FEDERATION, -1),
        lambda a, b: Agreement(Ed25519PrivateKey.generate(), Edge(a, b, FEDERATION, 0)),
    ],
)
def test_what_cannot_be_an_edge_is_refused(wrong):
    a, b, _ = pair()
    with pytest.raises(InputError):
        wrong(public(a), public(b))


def test_a_proof_counts_for_one_claim():
    one, two = agreed()
    two.confirm(one.tag(b"next step 5"), b"next step 5")
    for claim in (b"next step 6", b"", b"next step 5 "):
        with pytest.raises(AgreementError, match="another secret"):
            two.confirm(one.tag(b"next step 5"), claim)


def test_a_sealed_key_is_opened_by_the_other_end_alone_and_for_its_step():
    one, two = agreed()
    key = bytes(range(32))
    sealed = one.seal(7, key)
    assert len(sealed) == SEALED_BYTES and key not in sealed
    changed = bytearray(sealed)
    changed[3] ^= 1
    for secret, step, data in (
        (two, 8, sealed),  # of another step
        (agreed()[0], 7, sealed),  # under another connection's secret
        (two, 7, bytes(changed)),
        (two, 7, bytes(SEALED_BYTES)),
    ):
        with pytest.raises(AgreementError, match=f"step {step} was not sealed by this neighbour"):
            secret.unseal(step, data)
    # what is refused does not keep the right one from being opened
    assert two.unseal(7, sealed) == key


def test_a_sealed_key_that_is_sent_back_to_its_sender_is_not_opened():
    one, two = agreed()
    two._sealing = one._sealing  # or the sender could not try at all
    sealed = one.seal(7, bytes(32))
    one._sealing = two._sealing
    with pytest.raises(AgreementError, match="step 7 was not sealed by this neighbour"):
        one.unseal(7, sealed)


def test_a_secret_seals_one_key_and_neither_end_can_open_the_recorded_one_again():
    """A machine that is seized later, with its recorded traffic, must not yield the key."""
    one, two = agreed()
    key = bytes(range(32))
    sealed = one.seal(7, key)
    assert two.unseal(7, sealed) == key
    for end in (one, two):
        for attempt in (end.seal, end.unseal):
            with pytest.raises(AgreementError, match="has sealed one already"):
                attempt(7, sealed)
        # nothing that is left of the secret is the cipher, or the key it was made from
        left = [value for value in vars(end).values() if isinstance(value, AESGCM)]
        left += [AESGCM(bytes(each)) for each in (end._chain, end._confirmation, end._transcript)]
        for cipher in left:
            with pytest.raises(InvalidTag):
                cipher.decrypt(*end._sealing_parts(7, sealed, by_lower=True))


def test_a_secret_that_has_forgotten_how_to_seal_still_has_its_keys():
    one, two = agreed()
    one.forget_sealing()
    with pytest.raises(AgreementError, match="step 3 cannot be sealed or unsealed"):
        one.seal(3, bytes(32))
    assert one.key(3) == two.key(3)


def test_no_nonce_serves_two_directions_or_steps():
    """Two ciphertexts under one nonce would reveal the difference of two keys."""
    one, two = agreed()
    nonces = {end._sealing_parts(step, b"", end.is_lower)[0] for end in agreed() for step in (0, 9)}
    assert len(nonces) == 4
    assert one.seal(3, bytes(32)) != two.seal(3, bytes(32))


def test_the_key_that_seals_is_none_of_the_noise_keys():
    """Keys of the next steps must not follow from what decrypts a sealed one, nor the reverse."""
    one, two = agreed()
    sealed = one.seal(0, bytes(32))
    for guess in (bytes(one._chain), one._confirmation, one.key(0)):
        wrong = EdgeSecret(guess, guess, guess, two._edge, two._transcript, two.is_lower)
        with pytest.raises(AgreementError):
            wrong.unseal(0, sealed)
    assert two.unseal(0, sealed) == bytes(32)


def test_an_id_names_its_key_and_is_not_a_part_of_it():
    one, two = agreed()
    keys = [one.key(step) for step in range(20)]
    ids = [key_id(key) for key in keys]
    assert [key_id(two.key(step)) for step in range(20)] == ids
    assert len(set(ids) | set(keys)) == 40 and {len(each) for each in ids} == {KEY_ID_BYTES}


def test_the_derivation_does_not_change_between_releases():
    """Known answers: peers of different releases must agree, and a seized key must not be an
    earlier one.
    """
    edge = Edge(b"a" * 32, b"b" * 32, FEDERATION, 1)
    secret = EdgeSecret(bytes(32), bytes(range(32)), bytes(range(1, 33)), edge, b"said", True)
    assert secret.tag().hex() == TAG
    assert secret.tag(b"claim").hex() == TAG_OF_CLAIM
    assert secret.seal(5, b"k" * 32).hex() == SEALED
    assert key_id(b"k" * 32).hex() == KEY_ID
    assert secret.key(0).hex() == KEY_0
    assert secret.key(5).hex() == KEY_5


TAG = "3a38431ca3b13b01e65aaaba39d7f290d3924ff3388787231efa0f9554d13d7c"
KEY_0 = "dc42e9dc57449b797a8479726c06fb2aac5b559ba431cc42ec4b8c01798d5664"
KEY_5 = "caea4901e56ba63956b5cf7a13e2d2e767067c1576516c521e26e3407d927c95"
TAG_OF_CLAIM = "99b523119378ad78002887f87f549cccae11af2774064a4ee7bb5dad28689441"
SEALED = (
    "bd8144e6173d6a39ccdbd5cf91e2f6c1f3985f8413dc7b7accaa8281243360b3"
    "2edb9d21a6defbeb53daeeb2abb7a0e0"
)
KEY_ID = "dbae270b550faac9a674bbacf23f8809c5d09a92c0dde5478b2403bdb24f660a"
