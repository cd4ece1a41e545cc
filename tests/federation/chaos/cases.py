"""Cases in which a ledger is not what its neighbours have seen, or a neighbour lies, on real
processes; each takes a folder, a fork server and a seed, and raises AssertionError where it fails.

`DETECTED` are the ledgers: an older copy put back, a lost one made anew, one used by two processes,
that of another user, and a race of two processes with the same one. `SURVIVED` are faults and liars that honest users have to live with.
"""

import json
import os
import random
import re
import shutil
import signal
import sqlite3
import sys
import time
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import numpy as np

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

from chaos import broken_invariants  # noqa: E402
from proxy import second_messages  # noqa: E402
from rogue import Rogue  # noqa: E402
from trial_federation import Trial, until  # noqa: E402

from decor.errors import RemoteProtocolError  # noqa: E402
from decor.federation.spending import own_figure  # noqa: E402
from decor.net.addresses import free_ports  # noqa: E402
from decor.net.ledger_reading import read_entries  # noqa: E402
from decor.net.messages import Alive, Done, Model, SignedReceipt  # noqa: E402

GRAPHS = {
    # the others of each still have their quorum when the user of the case has gone
    "ring": ("bonn", "ulm", "kiel", "jena"),
    "complete": ("bonn", "ulm", "kiel", "jena"),
    "star": ("ulm", "kiel", "jena"),
}
"""Topology of four users -> those that may be the user of a case."""


SOON, LATER = 12, 20
"""The first step that nobody makes before a copy is taken, and how many steps after that one the
federation goes on at most: on a slow machine it would be over before a node has started.
"""


def begin(folder, fork_server, dice, but=(), steps=40):
    """A federation at work, and the user of the case."""
    topology = dice.choice(list(GRAPHS))
    settings = {"steps": steps, "timeout": 2.0, "patience": 10.0, "pace": 0.03}
    trial = Trial(folder, fork_server, topology=topology, **settings)
    user = dice.choice([name for name in GRAPHS[topology] if name not in but])
    trial.hold_at(SOON)
    return trial, user


def side_files(path):
    """A ledger and what SQLite keeps beside it."""
    return [Path(f"{path}{suffix}") for suffix in ("", "-wal", "-shm")]


def copy_ledger(source, target):
    """As a backup does it, while a node is at work; returns how many messages the copy has."""
    with (
        closing(sqlite3.connect(f"file:{source}?mode=ro", uri=True, timeout=60.0)) as db,
        closing(sqlite3.connect(target)) as made,
    ):
        db.backup(made)
    target.chmod(0o600)
    return sum(entry.steps for entry in read_entries(target))


def move_ledger(source, target):
    for old, new in zip(side_files(source), side_files(target), strict=True):
        if old.exists():
            shutil.move(old, new)


def put_back(newest, ledger):
    """The ledger that its owner should have used takes its place again."""
    for file in side_files(ledger):
        file.unlink(missing_ok=True)
    move_ledger(newest, ledger)


def stop(trial, name, dice):
    """In one of two ways in which a node can be stopped."""
    if dice.random() < 0.5:
        trial.kill(name)
    else:
        trial.signal(name, signal.SIGTERM)
        assert trial.ended(name) == 130


def check_detected(trial, user, code, errors, ledger):
    """A node has noticed that its ledger is not the one that its neighbours know."""
    assert code == 3, f"{user} ended with {code}: {errors[-2000:]}"
    neighbours = {a if b == user else b for a, b in trial.edges if user in (a, b)}
    (said,) = [line for line in errors.splitlines() if line.startswith("decor: ")]
    assert any(f"{name} holds a receipt of this user" in said for name in neighbours), said
    assert second_messages(trial.heard()) == []
    (entry,) = read_entries(ledger)
    assert entry.ended is not None and entry.repeated > 0, entry
    assert entry.why is not None
    assert f"steps up to {entry.repeated - 1} are counted once more" in entry.why
    # what the lost messages have cost is in every figure of this ledger
    once = own_figure(replace(entry, repeated=0)).so_far
    shown, text = trial.decor("ledger", "show", ledger, "--json")
    assert shown == 0, text
    (run,) = json.loads(text)["runs"]
    assert run["repeated"] == entry.repeated and run["epsilon"] > once, text


def start_and_detect(trial, user):
    """Starts a user with a ledger that is not the newest, and once more: it has ended for good."""
    mark = len(trial.errors(user))
    trial.start(user)
    code = trial.ended(user)
    check_detected(trial, user, code, trial.errors(user)[mark:], trial.path(user, "ledger"))
    before = len([record for record in trial.heard() if record.sender == user])
    trial.start(user)
    assert trial.ended(user) == 3 and "has ended for good" in trial.errors(user)
    assert len([record for record in trial.heard() if record.sender == user]) == before


def finish(trial, *users, codes=None):
    """The others come to the end, and all that must hold does."""
    trial.hurry()
    trial.finished(*users)
    trial.check(codes=codes)


def rollback(folder, fork_server, seed):
    """A copy of the ledger is put back some steps later."""
    dice = random.Random(seed)
    trial, user = begin(folder, fork_server, dice)
    with trial:
        trial.start()
        trial.reached(user, dice.randint(1, 5))
        ledger, copy = trial.path(user, "ledger"), folder / "copy.ledger"
        known = copy_ledger(ledger, copy)
        trial.hold_at(known + LATER)
        # the neighbours have had a message, at least, that the copy does not have
        trial.reached(user, known + dice.randint(1, 6))
        stop(trial, user, dice)
        newest = folder / "newest.ledger"
        move_ledger(ledger, newest)
        shutil.move(copy, ledger)
        others = [name for name in trial.names if name != user]
        if dice.random() < 0.3 and trial.federation.network.topology != "star":
            # others still hold the receipt
            other = dice.choice(others)
            trial.kill(other)
            trial.start(other)
        start_and_detect(trial, user)
        put_back(newest, ledger)
        if dice.random() < 0.5:
            # the operator has found the right one: with that the run goes on
            trial.back(user)
            finish(trial)
        else:
            finish(trial, *others, codes={user: 3})


def loss(folder, fork_server, seed):
    """The ledger is deleted, and a new one made."""
    dice = random.Random(seed)
    trial, user = begin(folder, fork_server, dice)
    with trial:
        trial.start()
        trial.reached(user, dice.randint(1, 10))
        stop(trial, user, dice)
        trial.hold_at(SOON + LATER)
        ledger, lost = trial.path(user, "ledger"), folder / "lost.ledger"
        move_ledger(ledger, lost)
        # a node makes none by itself
        code, said = trial.decor(*trial.arguments(user))
        assert code == 2 and "there is no ledger" in said, said
        code, said = trial.decor("ledger", "new", ledger, "--identity", trial.path(user, "key"))
        assert code == 0, said
        start_and_detect(trial, user)
        # for the comparison with what was sent
        put_back(lost, ledger)
        finish(trial, *(name for name in trial.names if name != user), codes={user: 3})


def start_twin(trial, user):
    """Starts a second process of a user, with a copy of the ledger; returns its number."""
    (port,) = free_ports(1)
    arguments = trial.arguments(user, "--listen", f"127.0.0.1:{port}")
    for option, kind in (("--ledger", "ledger"), ("--output", "run"), ("--log", "log")):
        arguments += [option, str(trial.folder / f"twin.{kind}")]
    out, err = trial.folder / "twin.out", trial.folder / "twin.err"
    return trial.fork_server.start({"routes": trial.routes(user)}, arguments, out, err)


def twin(folder, fork_server, seed):
    """A second process uses a copy of the ledger that is some steps old; the first goes on."""
    dice = random.Random(seed)
    # nobody would reach a twin of the first user, whom all neighbours dial at its one address
    trial, user = begin(folder, fork_server, dice, but=("bonn",))
    with trial:
        trial.start()
        trial.reached(user, dice.randint(1, 8))
        ledger = folder / "twin.ledger"
        known = copy_ledger(trial.path(user, "ledger"), ledger)
        trial.hold_at(known + LATER)
        # the neighbours have had a message, at least, that the copy does not have
        trial.reached(user, known + dice.randint(1, 4))
        pid = start_twin(trial, user)
        until(lambda: fork_server.code(pid) is not None, "the twin's end")
        errors = (folder / "twin.err").read_text()
        check_detected(trial, user, fork_server.code(pid), errors, ledger)
        finish(trial)


def race(folder, fork_server, seed):
    """A second process uses a copy of the ledger that has all that the neighbours have.

    Nobody can tell the two apart until one of them has sent a message: that one goes on, and the
    other one is stopped. What the other one had sent and the neighbour had not read when it took
    the newer connection is a second message that has left, and that nobody has accepted.

    Returns:
        (user, step) of messages that had left twice.
    """
    dice = random.Random(seed)
    trial, user = begin(folder, fork_server, dice, but=("bonn",))
    with trial:
        trial.start()
        trial.reached(user, dice.randint(1, 8))
        known = copy_ledger(trial.path(user, "ledger"), folder / "twin.ledger")
        trial.hold_at(known + LATER)
        pid = start_twin(trial, user)
        others = [name for name in trial.names if name != user]
        until(
            lambda: fork_server.code(pid) == 3 or trial.code(user) == 3,
            "the end of one of two processes with one key",
        )
        trial.hurry()
        trial.finished(*others)
        stopped = folder / "twin.err" if fork_server.code(pid) == 3 else trial.path(user, "err")
        said = stopped.read_text()
        assert "holds a receipt of this user" in said and "Traceback" not in said, said
        for name in others:
            assert "two messages of one step" not in trial.log(name)
        if fork_server.code(pid) is None:
            os.kill(pid, signal.SIGKILL)
            until(lambda: fork_server.code(pid) is not None, "the twin's end")
        return second_messages(trial.heard())


def swap(folder, fork_server, seed):
    """A user is started with the ledger of a neighbour."""
    dice = random.Random(seed)
    trial, user = begin(folder, fork_server, dice)
    with trial:
        trial.start()
        trial.reached(user, dice.randint(1, 10))
        stop(trial, user, dice)
        trial.hold_at(SOON + LATER)
        ledger, own = trial.path(user, "ledger"), folder / "own.ledger"
        move_ledger(ledger, own)
        neighbours = sorted({a if b == user else b for a, b in trial.edges if user in (a, b)})
        copy_ledger(trial.path(dice.choice(neighbours), "ledger"), ledger)
        before = len([record for record in trial.heard() if record.sender == user])
        trial.start(user)
        code = trial.ended(user)
        assert code == 2 and "is the ledger of another key" in trial.errors(user), code
        assert len([record for record in trial.heard() if record.sender == user]) == before
        assert second_messages(trial.heard()) == []
        put_back(own, ledger)
        trial.back(user)
        finish(trial)


DETECTED = {"rollback": rollback, "loss": loss, "twin": twin, "swap": swap, "race": race}


# faults and liars that honest users have to live with


def reconnect_while_computing(folder, fork_server, seed):
    """Connections break and come back while gradients are computed, at ends in different phases.

    With an even seed nobody is left out meanwhile, and all noise cancels. With an odd one a user is
    left out for longer than the timeout, as when the fault was found.
    """
    dice = random.Random(seed)
    patient = seed % 2 == 0
    with Trial(folder, fork_server, steps=12, timeout=60.0 if patient else 1.0) as trial:
        for name in trial.names:
            draws = str(trial.path(name, "draws"))
            trial.start(name, slow=dice.choice((0.05, 0.2, 0.4)), draws=draws)
        trial.reached("bonn", 1)
        while all(map(trial.alive, trial.names)) and trial.status("bonn").get("step", 99) < 8:
            edge, proxy = dice.choice(list(trial.proxies.items()))
            how = dice.choice(("cut", "half_open", "hold"))
            getattr(proxy, how)(*([dice.choice(edge)] if how == "half_open" else []))
            time.sleep(dice.uniform(0.05, 0.4) if patient else dice.uniform(0.8, 2.0))
            proxy.heal()
            time.sleep(dice.uniform(0.05, 0.5))
        trial.finished()
        assert broken_invariants(trial) == []
        if patient:
            for name in trial.names:
                assert "noise does not cancel" not in trial.log(name)
                assert not trial.path(name, "draws").exists(), f"{name} has drawn afresh"
                assert trial.code(name) == 0


def late_on_a_path(folder, fork_server, seed):
    """A user with one neighbour comes late: the proof that others are ahead comes after a model."""
    with Trial(
        folder,
        fork_server,
        users=3,
        topology="path",
        steps=60,
        timeout=10.0,
        patience=0.0,
        pace=0.05,
    ) as trial:
        *others, name = trial.names if seed % 2 else reversed(trial.names)
        trial.start(*others)
        trial.reached("ulm", 5)
        trial.start(name)
        trial.logged(name, 'event="caught up"')
        finish(trial)
        assert "event=lost" not in trial.log(name)


def model(trial, step, round_=0, fill=0.0):
    return Model(step, round_, np.full(trial.model_bytes // 4, fill, np.float32).tobytes())


def lies(trial, rogue):
    """What a liar may say to seem further ahead than anybody is, by its kind."""
    last = trial.steps - 1
    receipt = SignedReceipt(rogue.receipt(last))
    return {
        "a model of the final gossip": [receipt, model(trial, trial.steps)],
        "the last message": [model(trial, last)],
        "the state after the last step": [receipt, model(trial, last, round_=1)],
        "done": [receipt, model(trial, trial.steps), Done()],
        "forged receipts of others": [
            SignedReceipt(replace(rogue.receipt(last), user=k)) for k in range(len(trial.names) - 1)
        ],
    }


def liar(folder, fork_server, seed):
    """One user of a ring of eight claims to be at the end: all others take all steps."""
    dice = random.Random(seed)
    with (
        # the neighbours of a liar that is refused at once wait for it, and the others for them
        Trial(
            folder, fork_server, users=8, steps=20, timeout=2.5, patience=4.0, pace=0.02
        ) as trial,
        ExitStack() as stack,
    ):
        *honest, name = trial.names
        trial.start(*honest)
        kinds = []

        def connect(to):
            until(lambda: trial.status(to), f"{to}'s start")
            rogue = Rogue(trial, name, to, through_proxy=True, step=dice.choice((0, trial.steps)))
            return stack.enter_context(rogue).opened()

        def lie(rogue):
            kinds.append(dice.choice(list(lies(trial, rogue))))
            rogue.say(*lies(trial, rogue)[kinds[-1]])

        # its two neighbours; the others wait for it before they begin
        for rogue in [connect(to) for to in ("bonn", "mainz")]:
            lie(rogue)
        for to in ("bonn", "mainz", "bonn"):
            trial.reached(to, dice.randint(1, 10))
            # a liar that was refused is not answered for a while
            with suppress(OSError, RemoteProtocolError):
                lie(connect(to))
        trial.hurry()
        trial.finished(*honest)
        assert led_astray(trial, honest) == [], f"after {kinds}"
        trial.check()


def led_astray(trial, honest):
    """Skips of honest users to a step that no other honest user had come to, as sentences.

    A user that the machine has kept waiting may skip to where honest users are, however far that
    is: so the moments of their messages count, and no number of steps.
    """
    made = {each: messages_of(trial.path(each, "ledger")) for each in honest}
    astray = []
    for each in honest:
        others = [pair for other in honest if other != each for pair in made[other]]
        for line in trial.log(each).splitlines():
            skip = re.match(r'(\S+) .* event="caught up" from_step=\d+ to_step=(\d+)', line)
            if skip is None:
                continue
            # the rounds after the last step have no message; the log's time is cut to milliseconds
            at, step = datetime.fromisoformat(skip[1]).timestamp(), int(skip[2])
            proof = min(step, trial.steps - 1)
            if not any(of >= proof and written <= at + 0.001 for of, written in others):
                astray.append(f"{each} has skipped to step {step}, where no honest user was")
    # the furthest honest user has nobody to follow, so it takes every step
    steps = {step for pairs in made.values() for step, _ in pairs}
    return astray + [f"nobody has taken step {s}" for s in range(trial.steps) if s not in steps]


def messages_of(ledger):
    """(step, time at which it was recorded) of every message in a ledger."""
    with closing(sqlite3.connect(f"file:{ledger}?mode=ro", uri=True)) as db:
        return db.execute("SELECT step, written FROM messages").fetchall()


def harass(folder, fork_server, seed, what, said):
    """A neighbour says `what` again and again; the others keep taking steps, and say why not it.

    Args:
        folder, fork_server, seed: As of every case.
        what: From the trial and the connection to what is said.
        said: What its neighbour's log says of it.
    """
    del seed
    with Trial(folder, fork_server, steps=200, timeout=10.0, patience=0.0, pace=0.02) as trial:
        *honest, name = trial.names
        trial.start(*honest)
        trial.reached("bonn", 2)
        at, tries = trial.status("bonn")["step"], 0
        # while it goes on: its neighbour comes as far as without it
        while trial.status("bonn")["step"] < at + 40:
            tries += 1
            with suppress(OSError, RemoteProtocolError), Rogue(trial, name).opened() as rogue:
                rogue.say(*what(trial, rogue))
                while rogue.line.recv(1 << 16):
                    pass
            time.sleep(0.02)
        assert tries > 1
        assert trial.logged("bonn", f"event=lost neighbour={name} why=.*{said}")
        trial.logged("bonn", f"neighbour={name} why=.is not answered for a while: it broke")
        # not once in each try
        assert trial.log("bonn").count(f"event=connected neighbour={name}") <= 4
        for each in honest:
            for other in honest:
                assert f"event=lost neighbour={other}" not in trial.log(each)
        for each in honest:
            trial.signal(each, signal.SIGTERM)
        assert [trial.ended(each) for each in honest] == [130] * 3
        trial.check(codes=dict.fromkeys(honest, 130))


def flood(folder, fork_server, seed):
    """Alive, thousands of times."""
    said = "sends too many short messages"
    harass(folder, fork_server, seed, lambda trial, rogue: [Alive()] * 4000, said)


def refused_again(folder, fork_server, seed):
    """Models that are not finite, on one connection after the other."""
    harass(
        folder,
        fork_server,
        seed,
        lambda trial, rogue: [model(trial, rogue.step(), fill=float("nan"))],
        "sent a model that is not finite",
    )


SURVIVED = {
    "reconnect while computing": reconnect_while_computing,
    "late on a path": late_on_a_path,
    "liar": liar,
    "flood": flood,
    "refused again": refused_again,
}
