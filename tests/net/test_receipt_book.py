"""Receipts that a node holds: what they prove, and what no liar can make of them."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decor.errors import RemoteProtocolError
from decor.net.identity import Identity
from decor.net.receipt_book import ReceiptBook
from decor.net.receipts import Receipt

FEDERATION, STEPS = bytes(range(32)), 50
IDENTITIES = [Identity.new() for _ in range(6)]


def make_book(users=4, liars=1, stored=(), number=0):
    members = tuple(identity.public for identity in IDENTITIES[:users])
    return ReceiptBook(IDENTITIES[number], number, members, FEDERATION, STEPS, liars, stored)


def made(user, step, digest=b"d" * 32, federation=FEDERATION):
    """A receipt that its user has signed."""
    return Receipt.sign(IDENTITIES[user].key, federation, user, step, digest)


def forged(user, step, digest=b"d" * 32):
    return Receipt(user, step, digest, bytes(64))


def nobody(*_, **__):
    raise AssertionError("there is nothing to log")


class Log:
    def __init__(self):
        self.lines = []

    def __call__(self, event, **facts):
        self.lines.append((event, facts))


# second messages


def test_a_second_digest_of_a_step_is_refused_and_both_signatures_are_logged():
    book, log = make_book(), Log()
    first, second = made(1, 5), made(1, 5, b"e" * 32)
    assert book.hear_own(1, first)
    assert book.report_second(second, log) == (first, second)
    with pytest.raises(RemoteProtocolError, match="second message of step 5: its ledger is old or"):
        book.hear_own(1, second)
    assert [event for event, _ in log.lines] == ["two messages of one step"] * 2
    # anyone who reads the log can check that the user has signed both
    shown = [
        Receipt(
            facts["signer"],
            facts["step"],
            bytes.fromhex(facts["sha256"]),
            bytes.fromhex(facts["signature"]),
        )
        for _, facts in log.lines
    ]
    assert shown == [first, second]
    assert all(each.is_valid(IDENTITIES[1].public, FEDERATION) for each in shown)
    assert book.newest(1) == first


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (made(1, 5), forged(1, 5, b"e" * 32)),
        (forged(1, 5), made(1, 5, b"e" * 32)),
        (made(1, 5), made(1, 5, b"e" * 32, federation=bytes(32))),
    ],
)
def test_what_is_not_signed_is_refused_too_but_is_no_proof(first, second):
    book = make_book()
    book.hear_own(1, first)
    with pytest.raises(RemoteProtocolError, match="second message"):
        book.hear_own(1, second)


def test_a_second_digest_that_is_passed_on_is_logged_once_and_changes_nothing():
    book, log = make_book(), Log()
    first, second = made(1, 5), made(1, 5, b"e" * 32)
    book.hear_own(1, first)
    assert book.report_second(second, log)
    assert [facts["signature"] for _, facts in log.lines] == [
        each.signature.hex() for each in (first, second)
    ]
    assert not book.hear_passed(second) and book.newest(1) == first
    # a liar's signatures must not fill the log
    for digest in (b"e" * 32, b"f" * 32):
        assert not book.report_second(made(1, 5, digest), log)
    assert len(log.lines) == 2


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (made(1, 5), made(1, 5)),
        (made(1, 5), made(1, 4, b"e" * 32)),
        (made(1, 5), made(2, 5, b"e" * 32)),
        (forged(1, 5), made(1, 5, b"e" * 32)),
        (made(1, 5), forged(1, 5, b"e" * 32)),
        (made(1, 5), made(1, 5, b"e" * 32, federation=bytes(32))),
    ],
)
def test_one_message_or_one_signature_is_no_proof(first, second):
    book = make_book()
    book.hear_own(1, first)
    assert not book.report_second(second, nobody)


def test_two_messages_of_a_step_that_is_long_over_are_a_proof_too():
    """What others have noticed comes when this user holds newer receipts of the one they accuse."""
    book, log = make_book(), Log()
    for step in (8, 9):
        book.hear_own(1, made(1, step))
    first, second = made(1, 5), made(1, 5, b"e" * 32)
    # a forged one before them, or of another step, neither hides the proof nor is one
    for other in (forged(1, 5, b"f" * 32), first, made(1, 4, b"e" * 32), first):
        assert not book.report_second(other, log)
    assert book.report_second(second, log) == (first, second) and len(log.lines) == 2
    assert book.newest(1) == made(1, 9) and book.hear_own(1, made(1, 10))


def test_who_passes_on_a_forged_second_digest_is_refused():
    book = make_book()
    book.hear_own(1, made(1, 5))
    with pytest.raises(RemoteProtocolError, match="user 1 that this user has not signed"):
        book.hear_passed(forged(1, 5, b"e" * 32))
    assert not book.hear_passed(made(1, 5)) and not book.hear_passed(forged(1, 4))


def test_the_same_message_again_is_nothing_new():
    book = make_book()
    assert book.hear_own(1, made(1, 5))
    assert not book.hear_own(1, made(1, 5))
    assert book.hear_own(1, made(1, 6)) and not book.hear_own(1, made(1, 5))


def test_a_second_digest_is_known_after_a_restart_and_if_others_have_told_of_the_first():
    known = [
        make_book(stored=[made(1, 5)]),
        make_book(),
    ]
    known[1].hear_passed(made(1, 5))
    for book in known:
        with pytest.raises(RemoteProtocolError, match="second message"):
            book.hear_own(1, made(1, 5, b"e" * 32))


def test_an_older_step_is_not_kept_so_its_message_is_not_accepted():
    book = make_book()
    book.hear_own(1, made(1, 9))
    for step in (0, 8):
        assert not book.hear_own(1, made(1, step, b"e" * 32))
        assert book.of(1, step) is None
    assert book.newest(1) == made(1, 9)


def test_the_last_two_steps_of_a_user_are_known_and_no_more():
    book = make_book()
    for step in (3, 4, 7):
        book.hear_own(1, made(1, step))
    assert [book.of(1, step) is not None for step in (3, 4, 7)] == [False, True, True]


# receipts of this user


def test_a_receipt_of_this_user_counts_only_with_its_own_signature():
    book = make_book()
    assert book.is_own(made(0, 3)) and not book.is_own(made(1, 3))
    others = (
        forged(0, 3),
        replace(made(1, 3), user=0),  # another user's
        replace(made(0, 4), step=3),  # of another step
        made(0, 3, federation=bytes(32)),  # of another federation
        replace(made(0, 3), digest=bytes(32)),
    )
    for wrong in others:
        with pytest.raises(RemoteProtocolError, match="that this user has not signed"):
            book.is_own(wrong)


def test_this_users_own_receipt_is_signed_for_its_number_and_kept():
    book = make_book(number=2)
    receipt = book.sign(4, b"d" * 32)
    assert receipt == made(2, 4) and book.of(2, 4) == receipt
    assert book.take_unsaved() == []  # its message is in the ledger already


# receipts that neighbours pass on


@pytest.mark.parametrize(
    "wrong",
    [
        forged(2, 5),
        replace(made(1, 5), user=2),
        replace(made(2, 6), step=5),
        made(2, 5, federation=bytes(32)),
    ],
)
def test_a_receipt_that_is_passed_on_counts_only_with_its_users_signature(wrong):
    book = make_book()
    with pytest.raises(RemoteProtocolError, match="user 2 that this user has not signed"):
        book.hear_passed(wrong)
    assert book.newest(2) is None
    assert book.hear_passed(made(2, 5)) and book.newest(2) == made(2, 5)


def test_what_is_passed_on_is_new_once_and_never_goes_back():
    book = make_book()
    assert book.hear_passed(made(2, 5)) and not book.hear_passed(made(2, 5))
    assert not book.hear_passed(made(2, 4)) and book.newest(2).step == 5
    assert book.hear_passed(made(2, 6))


@pytest.mark.parametrize("wrong", [{"step": 40}, {"step": 40, "digest": b"e" * 32}])
def test_a_signature_that_was_verified_counts_for_nothing_else(wrong):
    book = make_book()
    book.hear_passed(made(2, 5))
    assert book.is_valid(made(2, 5)) and not book.is_valid(replace(made(2, 5), **wrong))
    with pytest.raises(RemoteProtocolError, match="has not signed"):
        book.hear_passed(replace(made(2, 5), **wrong))


def test_nothing_is_passed_on_that_the_next_user_would_refuse():
    """A liar's own receipt is verified when it is used: an honest user that passed it on unverified
    would be taken for the liar.
    """
    book = make_book()
    book.hear_own(1, forged(1, 9))
    book.hear_own(2, made(2, 7))
    book.sign(3, b"d" * 32)
    assert sorted(each.user for each in book.all_newest()) == [0, 2]
    receiver = make_book(number=3)
    for each in book.all_newest():
        receiver.hear_passed(each)
    assert not book.is_valid(forged(1, 9)) and book.is_valid(made(1, 9))


@pytest.mark.parametrize("wrong", [made(1, STEPS), replace(made(1, 3), user=4)])
def test_a_step_or_user_that_the_run_does_not_have_is_refused(wrong):
    for hear in (
        lambda book, receipt: book.hear_own(receipt.user, receipt),
        ReceiptBook.hear_passed,
    ):
        with pytest.raises(RemoteProtocolError, match="which this run does not have"):
            hear(make_book(), wrong)


def test_what_has_come_since_the_last_message_is_given_to_the_ledger_once():
    book = make_book(stored=[made(3, 1)])
    book.hear_own(1, made(1, 3))
    book.hear_own(1, made(1, 4))
    book.hear_passed(made(2, 9))
    unsaved = sorted(book.take_unsaved(), key=lambda receipt: receipt.user)
    assert unsaved == [made(1, 4), made(2, 9)] and book.take_unsaved() == []


# progress


def test_progress_needs_more_other_users_than_may_lie():
    book = make_book(users=4, liars=1)
    book.sign(STEPS - 1, b"d" * 32)  # this user itself is no proof
    book.hear_own(1, made(1, 9))
    assert not book.is_proven(9)
    book.hear_passed(made(2, 8))
    assert book.is_proven(8) and not book.is_proven(9)
    book.hear_passed(made(2, 9))
    assert book.is_proven(9) and not book.is_proven(10)


def test_more_receipts_of_one_user_prove_nothing_more():
    book = make_book(users=4, liars=1)
    for step in range(10):
        book.hear_own(1, made(1, step))
    assert not book.is_proven(0)


def test_a_receipt_that_is_not_signed_proves_nothing():
    book = make_book(users=4, liars=1)
    book.hear_own(1, forged(1, 9))
    book.hear_own(2, made(2, 9))
    assert not book.is_proven(9)
    book.hear_own(3, made(3, 9))
    assert book.is_proven(9)


def test_the_rounds_after_the_last_step_are_proven_by_messages_of_the_last():
    book = make_book(users=3, liars=1)
    for user in (1, 2):
        book.hear_own(user, made(user, STEPS - 1))
    assert book.is_proven(STEPS) and book.is_proven(STEPS + 1)


@pytest.mark.parametrize(
    ("users", "liars", "needed"), [(2, 1, 1), (2, 0, 1), (3, 1, 2), (3, 2, 2), (5, 2, 3), (5, 0, 1)]
)
def test_in_small_federations_every_other_user_has_to_sign(users, liars, needed):
    book = make_book(users, liars)
    for other in range(1, users):
        assert book.is_proven(4) == (other - 1 >= needed)
        book.hear_own(other, made(other, 4))
    assert book.is_proven(4) == (users - 1 >= needed)


@given(st.data())
def test_no_liar_moves_anyone_past_the_furthest_honest_user(data):
    """Whatever the liars sign, show and pass on, in any order."""
    users, liars = data.draw(st.sampled_from([(3, 1), (4, 1), (5, 1), (6, 2)]))
    book = make_book(users, liars)
    lying = set(data.draw(st.permutations(range(1, users)))[:liars])
    honest = [user for user in range(1, users) if user not in lying]
    reached = {user: data.draw(st.integers(0, 20)) for user in honest}
    for _ in range(data.draw(st.integers(0, 12))):
        user, step = data.draw(st.integers(1, users - 1)), data.draw(st.integers(0, STEPS - 1))
        # an honest user has signed what it has made; a liar signs anything, and forges the others',
        # or shows their signatures with another step
        is_made = user in lying or step <= reached[user]
        receipt = made(user, step if is_made else reached[user])
        if not is_made and data.draw(st.booleans()):
            receipt = forged(user, step)
        elif not is_made:
            receipt = replace(receipt, step=step)
        try:
            if user in lying and data.draw(st.booleans()):
                book.hear_own(user, receipt)
            else:
                book.hear_passed(receipt)
        except RemoteProtocolError:
            assert not is_made
    furthest = max(reached.values())
    assert not any(book.is_proven(step) for step in range(furthest + 1, STEPS + 2))
    # and where all honest users are is proven, if they are more than may lie
    for user in honest:
        book.hear_passed(made(user, reached[user]))
    if len(honest) > liars:
        assert book.is_proven(min(reached.values()))
