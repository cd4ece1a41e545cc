"""Own loops in real federations: real processes, TLS, ledgers, and crashes."""

import re
import signal
from functools import partial

import numpy as np
import pytest
import torch

from decor.errors import InputError, LedgerError
from decor.federation.member import join
from decor.results.run import Run

STEPS, STEP = 8, 3


@pytest.fixture
def trial(trial):
    return partial(trial, users=3, steps=STEPS, timeout=30.0)


def rounds(one, name):
    """The steps that a user's loop was given, in its order, over all its processes."""
    return [int(n) for n in re.findall(r"^round (\d+)$", one.path(name, "out").read_text(), re.M)]


def test_own_loops_and_nodes_train_one_model_together(trial):
    one = trial()
    one.start("ulm", "kiel")
    one.start("bonn", loop={})
    one.finished()
    one.check()
    assert rounds(one, "bonn") == list(range(STEPS))
    runs = [Run.load(one.path(name, "run")) for name in one.names]
    models = np.stack([run.models["weight"][0, 0].numpy() for run in runs])
    # all gossip at the end brings them together, so that the loop's parameters are in their places
    assert np.abs(models - models.mean(0)).max() < 0.6 * np.abs(models).max()
    assert {run.guarantee.epsilon for run in runs} == {runs[0].guarantee.epsilon}
    assert all(run.steps_taken == STEPS and run.stopped is None for run in runs)


@pytest.mark.parametrize(
    "point",
    [
        "before a gradient",
        "before a share",
        "after a share",
        "before record",
        "after record",
        "between two sends",
        "while mixing",
        "before the end",
    ],
)
def test_a_loop_killed_anywhere_in_a_step_goes_on_and_never_sends_a_second_message(trial, point):
    one = trial()
    one.start("ulm", "kiel")
    one.start("bonn", loop={}, kill=point, step=STEP)
    assert one.ended("bonn") == -signal.SIGKILL
    kept = one.entries("bonn")[1].get((1, STEP))
    one.start("bonn", loop={})
    one.finished()
    # heard by proxies: one message for each step, and the one that the ledger has
    one.check()
    again = rounds(one, "bonn")
    if kept is not None:
        assert one.entries("bonn")[1][1, STEP] == kept
        if point != "before the end":
            assert again == list(range(STEPS)), "a step with a message is not offered again"
    elif point in ("before a share", "before record"):
        assert again.count(STEP) == 2, "a step without a message is offered again"


def test_a_round_without_a_share_sends_a_zero_difference_and_warns_the_owner_alone(trial):
    one = trial()
    one.start("ulm", "kiel")
    one.start("bonn", loop={"skip": [2, 5]})
    one.finished()
    one.check()
    assert len(one.entries("bonn")[1]) == STEPS
    warned = one.errors("bonn")
    for step in (2, 5):
        assert f"step {step}: nothing was shared, and a zero difference was sent" in warned
    assert warned.count("UnsharedWarning") == 2
    assert not any("shared" in one.log(name) + one.errors(name) for name in ("ulm", "kiel"))


def test_neighbours_do_not_see_when_a_loop_breaks_off(trial):
    one = trial()
    one.start("ulm", "kiel")
    one.start("bonn", loop={"leave": 3})
    one.finished()
    one.check()
    assert len(one.entries("bonn")[1]) == STEPS
    assert f"zero differences were sent in {STEPS - 4} more" in one.errors("bonn")


def test_a_loop_that_fails_leaves_its_step_without_a_message_and_can_go_on(trial):
    one = trial()
    one.start("ulm", "kiel")
    one.start("bonn", loop={"fail": STEP})
    assert one.ended("bonn") == 1
    assert "RuntimeError: out of memory" in one.errors("bonn")
    assert max(step for _, step in one.entries("bonn")[1]) == STEP - 1
    assert "event=stopped" in one.log("bonn")
    one.path("bonn", "err").write_text("")  # the traceback is the loop's own
    one.start("bonn", loop={})
    one.finished()
    one.check()
    assert rounds(one, "bonn").count(STEP) == 2


def test_what_a_federation_or_a_ledger_does_not_allow_is_refused_before_any_round(trial):
    one = trial()
    one.make_ledger("bonn")
    paths = {kind: one.path("bonn", kind) for kind in ("ledger",)}
    key = one.path("bonn", "key")
    member = join(one.file, identity=key, **paths)
    with pytest.raises(InputError, match="with decor.join"):
        next(member)
    with pytest.raises(InputError, match="rounds left, and no final model"):
        _ = member.model
    assert repr(member) == f"Member('bonn' of 'trial', {STEPS} steps)"
    assert member.guarantee.epsilon <= 10
    # another user's ledger
    one.make_ledger("ulm")
    with pytest.raises(LedgerError, match="key"):
        with join(one.file, identity=key, ledger=one.path("ulm", "ledger")):
            raise AssertionError("never entered")
    example = one.file.read_text().replace('unit = "user"', 'unit = "example"')
    example = example.replace("steps = ", "batch_size = 5\nsteps = ", 1)
    example = example.replace("key = ", "records = 20\nkey = ")
    other = one.folder / "example.toml"
    other.write_text(example)
    with pytest.raises(InputError, match="an own loop protects whole users"):
        join(other, identity=key, **paths)


def test_a_model_of_another_form_is_refused_and_the_round_goes_on(trial):
    one = trial()
    one.start("ulm", "kiel")
    one.make_ledger("bonn")
    user = {kind: one.path("bonn", kind) for kind in ("ledger", "log")}
    # this process dials the users themselves, and not the proxies
    with join(one.file, identity=one.path("bonn", "key"), **user) as member:
        last = None
        for round in member:
            with pytest.raises(InputError, match="shape"):
                round.share({"weight": torch.zeros(1, 9), "bias": torch.zeros(1)})
            if last is not None:
                with pytest.raises(InputError, match="has its model already"):
                    last.share(round.model)
            round.share(round.model)
            last = round
        with pytest.raises(InputError, match="has its model already"):
            last.share(last.model)
        assert isinstance(member.model, torch.nn.Module)
    assert member.run.guarantee.epsilon == member.guarantee.epsilon
    one.finished("ulm", "kiel")
