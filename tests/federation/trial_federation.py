"""Users of a trial federation as real processes, with a recording proxy on every edge, and what
must hold after any fault.

with ForkServer() as fork_server, Trial(folder, fork_server) as trial:
    trial.start()
    trial.reached("bonn", 5)
    trial.kill("ulm")
    trial.start("ulm")
    trial.finished()
    trial.check()
"""

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "net"))

from proxy import Proxy, second_messages  # noqa: E402

from decor.cli.federation_trial import TOWNS  # noqa: E402
from decor.errors import InputError  # noqa: E402
from decor.federation.federation import Federation, Member, Model, Network, Privacy, Training  # noqa: E402
from decor.federation.spending import figures, own_figure  # noqa: E402
from decor.net import messages, status  # noqa: E402
from decor.net.addresses import free_ports  # noqa: E402
from decor.net.identity import Identity  # noqa: E402
from decor.net.ledger import KEY_ID_BYTES, Ledger, split  # noqa: E402

SCRIPT = Path(__file__).with_name("fault_injection.py")
PATIENCE = 180.0
"""Seconds that anything may take on a machine that is busy with other things."""
EPSILON = 10.0
FEATURES = 4


def until(condition, what="it", seconds=PATIENCE):
    """What a condition gives when it is met."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"{what} has not happened after {seconds:g} s")
        time.sleep(0.02)
    return found


class ForkServer:
    """A process that has loaded everything, and forks the command `decor` with any arguments in a
    moment.
    """

    def __enter__(self):
        self.codes = {}
        self._process = subprocess.Popen(
            [sys.executable, SCRIPT, "serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._answer() == "ready"
        return self

    def __exit__(self, *_):
        self._process.stdin.close()  # it kills the processes that are left
        self._process.wait(PATIENCE)
        self._process.stdout.close()

    def start(self, fault, arguments, out, err):
        return self._ask({"fault": fault, "arguments": arguments, "out": str(out), "err": str(err)})

    def code(self, pid):
        """How a process has ended; None: it has not."""
        self.codes.update({int(each): code for each, code in self._ask("reap").items()})
        return self.codes.get(pid)

    def _ask(self, what):
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self):
        return json.loads(self._process.stdout.readline())


class Trial:
    """A federation in a folder.

    Its users are the first towns of `TOWNS`; of two neighbours the later one dials.
    """

    def __init__(
        self,
        folder,
        fork_server,
        users=4,
        topology="ring",
        edges=None,
        steps=30,
        rounds=1,
        timeout=2.0,
        quorum=0.5,
        patience=60.0,
        pace=0.0,
        proxied=True,
        name="trial",
        identities=None,
        addresses=None,
        learning_rate=0.1,
        **training,
    ):
        names = list(TOWNS[:users])
        identities = identities or {each: Identity.new() for each in names}
        self.ports = dict(zip(names, free_ports(users), strict=True))
        federation = Federation(
            name=name,
            privacy=Privacy(epsilon=EPSILON, delta=1e-5, adversary="eavesdropper"),
            training=Training(
                steps=steps,
                clip=1.0,
                learning_rate=learning_rate,
                gossip_rounds=rounds,
                final_gossip_rounds=1,
                **training,
            ),
            model=Model(kind="logistic", features=FEATURES),
            network=Network(
                topology=None if edges else topology,
                edges=edges,
                timeout=timeout,
                quorum=quorum,
                patience=patience,
            ),
            members=tuple(
                Member(each, (addresses or self.address)(each), identities[each].public)
                for each in names
            ),
        )
        self.set_up(folder, fork_server, federation, identities, pace, proxied)

    def set_up(
        self, folder, fork_server, federation, identities, pace=0.0, proxied=True, shared=None
    ):
        """A federation of any file; `ports` are known before.

        `shared`: a folder that has the users' keys, data and ledgers in place of `folder`.
        """
        self.folder, self.fork_server, self.pace = folder, fork_server, pace
        self.federation, self.identities = federation, identities
        self.names = [member.name for member in federation.members]
        self.steps = federation.training.steps
        self.file = folder / f"{federation.name}.toml"
        self.file.write_text(federation.to_toml())
        self.model_bytes = federation.model_bytes
        pairs = federation.topology.edges.tolist() if proxied else []
        self.edges = [(self.names[high], self.names[low]) for low, high in pairs]
        kinds = ("key", "npz", "ledger", "ledger.socket") if shared else ()
        self.places = {(name, kind): shared for name in self.names for kind in kinds}
        self.pids, self.killed, self.commands = {}, dict.fromkeys(self.names, 0), {}
        self.is_held = False
        rng = np.random.default_rng(0)
        for each in self.names:
            if not self.path(each, "key").exists():
                identities[each].save(self.path(each, "key"))
            X = rng.normal(size=(20, FEATURES))
            # of a user who was there before they stay as they are
            if not self.path(each, "npz").exists():
                np.savez(self.path(each, "npz"), X=X, y=(X[:, 0] > 0).astype(int))

    def __enter__(self):
        self._stack = ExitStack()
        self.proxies = {}
        for dialler, listener in self.edges:
            ends = self.identities[dialler], self.identities[listener]
            proxy = Proxy(*ends, self.address(listener), self.model_bytes, (dialler, listener))
            self.proxies[dialler, listener] = self._stack.enter_context(proxy)
            proxy.delay(self.pace)
        return self

    def __exit__(self, *_):
        for name in self.names:
            if self.alive(name):
                self.signal(name, signal.SIGKILL)
        until(lambda: not any(map(self.alive, self.names)), "everybody's end")
        for command in self.commands.values():
            command.wait(PATIENCE)
        self._stack.close()

    # what an operator does

    def path(self, name, kind):
        """Where a user keeps something; `places` says what lies elsewhere than in the trial's
        folder.
        """
        return self.places.get((name, kind), self.folder) / f"{name}.{kind}"

    def address(self, name):
        return f"127.0.0.1:{self.ports[name]}"

    def routes(self, name):
        """Where a user has to dial to meet a proxy."""
        return {
            self.address(low): proxy.address
            for (high, low), proxy in self.proxies.items()
            if high == name
        }

    def arguments(self, name, *more, file=None):
        paths = {
            "identity": "key",
            "data": "npz",
            "ledger": "ledger",
            "output": "run",
            "log": "log",
        }
        given = [
            word
            for option, kind in paths.items()
            for word in (f"--{option}", str(self.path(name, kind)))
        ]
        return ["node", str(file or self.file), *given, *more]

    def start(self, *names, more=(), file=None, real=False, before=(), **fault):
        """Starts users (all, unless some are named).

        `real`: as the command itself, which works only for a user that dials no other; `before` are
        words before that command.
        """
        for name in names or self.names:
            assert not self.alive(name), name
            self.make_ledger(name)
            arguments = self.arguments(name, *more, file=file)
            if real:
                assert not self.routes(name), f"{name} dials, and would not meet the proxies"
                with (
                    self.path(name, "out").open("ab") as out,
                    self.path(name, "err").open("ab") as err,
                ):
                    command = subprocess.Popen(
                        [*before, sys.executable, "-m", "decor", *arguments], stdout=out, stderr=err
                    )
                self.commands[command.pid] = command
                self.pids[name] = command.pid
            else:
                given = fault | {"routes": self.routes(name)}
                given |= {"hold": str(self.folder / "hold")} if self.is_held else {}
                self.pids[name] = self.fork_server.start(
                    given, arguments, self.path(name, "out"), self.path(name, "err")
                )

    def decor(self, *words):
        """Runs another command to its end; gives its exit code and what it has printed."""
        out, err = self.folder / "command.out", self.folder / "command.err"
        for file in (out, err):
            file.unlink(missing_ok=True)
        pid = self.fork_server.start({}, [str(word) for word in words], out, err)
        until(lambda: self.fork_server.code(pid) is not None, f"the end of {words[0]}")
        return self.fork_server.code(pid), out.read_text() + err.read_text()

    def make_ledger(self, name):
        """Makes a user's ledger, as its operator does before the first start."""
        if not self.path(name, "ledger").exists():
            Ledger.create(self.path(name, "ledger"), self.identities[name].public)

    def hold_at(self, step):
        """No user begins this step before `hurry`, or another `hold_at`, says so: however slow the
        machine is, the federation is at work when a fault comes. Asked for before the first start.
        """
        assert self.is_held or not self.pids
        self.is_held, new = True, self.folder / "hold.new"
        new.write_text(str(step))
        new.replace(self.folder / "hold")

    def hurry(self):
        """What was kept slow, so that a fault comes in the middle, need not be slow any more."""
        if self.is_held:
            self.hold_at(self.steps)
        for proxy in self.proxies.values():
            proxy.delay(0)

    def back(self, name):
        """Starts a user again, and lets all hurry as soon as it is among them."""
        known = len(self.log(name))
        self.start(name)
        self.logged(name, "event=connected", after=known)
        self.hurry()

    def signal(self, name, number):
        assert self.alive(name), name
        os.kill(self.pids[name], number)

    def kill(self, name):
        self.signal(name, signal.SIGKILL)
        assert self.ended(name) == -signal.SIGKILL

    def code(self, name):
        """How a user's process has ended; None: it has not."""
        pid = self.pids[name]
        return self.commands[pid].poll() if pid in self.commands else self.fork_server.code(pid)

    def alive(self, name):
        return name in self.pids and self.code(name) is None

    def ended(self, name):
        """Waits for a user's end; gives its exit code."""
        code = until(
            lambda: (self.code(name),) if self.code(name) is not None else None,
            f"the end of {name}",
        )[0]
        if code == -signal.SIGKILL:
            self.killed[name] += 1
        return code

    def finished(self, *names):
        """Waits until users have come to their end in good order."""
        for name in names or self.names:
            code = self.ended(name)
            # 4: with fewer steps, or with noise left
            assert code in (0, 4), (
                f"{name} ended with {code}: {self.log(name)[-2000:]} {self.errors(name)[-2000:]}"
            )

    # what can be seen

    def status(self, name):
        """What a node says of itself; {} if it does not answer."""
        try:
            return status.query(self.path(name, "ledger.socket"))
        except InputError:
            return {}

    def reached(self, name, step):
        """Waits until a user is at a step."""
        until(lambda: self.status(name).get("step", -1) >= step, f"step {step} of {name}")

    def moving(self, *names, steps=3):
        """Waits until users have done a few more steps, or are at the end."""
        for name in names:
            self.reached(name, min(self.status(name).get("step", 0) + steps, self.steps))

    def log(self, name):
        file = self.path(name, "log")
        return file.read_text() if file.exists() else ""

    def errors(self, name):
        file = self.path(name, "err")
        return file.read_text() if file.exists() else ""

    def logged(self, name, pattern, seconds=PATIENCE, after=0):
        """Waits for a line in a user's log, not counting its first bytes; gives the line."""
        lines = until(
            lambda: [
                line for line in self.log(name)[after:].splitlines() if re.search(pattern, line)
            ],
            f"{pattern!r} in the log of {name}",
            seconds,
        )
        return lines[0]

    def entries(self, name):
        """Runs in a user's ledger, and (run, step) -> digest of the message: of a copy, so that its
        owner is not disturbed.
        """
        entries, rows = self._read_ledger(name)
        assert len({row[:2] for row in rows}) == len(rows)
        keys = [key for row in rows for key in split(row[3], KEY_ID_BYTES)]
        assert len(set(keys)) == len(keys), f"{name} has used a key twice"
        return entries, {row[:2]: row[2] for row in rows}

    def edge_keys(self, name):
        """(neighbour, step) -> the id of the key of that edge's noise in this user's message, and
        whether the user knows that the noise cancels.
        """
        topology = self.federation.topology
        neighbours = [self.names[j] for j in topology.neighbours(self.names.index(name))]
        found = {}
        for _, step, _, keys, cancelled in self._read_ledger(name)[1]:
            flags = cancelled or bytes(len(neighbours))
            ids = split(keys, KEY_ID_BYTES)
            for neighbour, key, flag in zip(neighbours, ids, flags, strict=True):
                found[neighbour, step] = key, bool(flag)
        return found

    def _read_ledger(self, name):
        copy = self.folder / "copies"
        shutil.rmtree(copy, ignore_errors=True)
        copy.mkdir()
        for suffix in ("", "-wal"):
            with suppress(FileNotFoundError):
                shutil.copy(str(self.path(name, "ledger")) + suffix, str(copy / "ledger") + suffix)
        with Ledger(copy / "ledger") as ledger:
            columns = "run, step, digest, keys, cancelled"
            rows = ledger._db.execute(f"SELECT {columns} FROM messages").fetchall()
            return ledger.entries(), rows

    def heard(self):
        """Everything on the wire so far that is paid for: messages of a step in round 0."""
        found = [record for proxy in self.proxies.values() for record in proxy.messages()]
        found = [r for r in found if isinstance(r.message, messages.Model)]
        return [r for r in found if r.message.round == 0 and r.message.step < self.steps]

    def check(self, codes=None, allow=EPSILON):
        """What must hold after every fault; `codes`: of whom another end than a good one was
        expected.
        """
        heard = self.heard()
        assert second_messages(heard) == []
        digests = {
            (r.sender, r.message.step): hashlib.sha256(r.message.values).digest() for r in heard
        }
        for name in self.names:
            if name not in self.pids:
                continue
            code = self.code(name)
            expected = {(codes or {})[name]} if name in (codes or {}) else {0, 4}
            assert code in {*expected, None}, (
                name,
                code,
                self.errors(name)[-2000:],
            )
            for text in (self.log(name), self.errors(name)):
                assert "Traceback" not in text and "Exception ignored" not in text, text[-4000:]
            if code is None or not self.path(name, "ledger").exists():
                continue
            entries, rows = self.entries(name)
            assert all(own_figure(entry).so_far <= EPSILON for entry in entries)
            assert all(total.so_far <= allow for total in figures(entries))
            (run,) = [e.run for e in entries if e.federation == self.federation.digest] or [0]
            kept = {step: digest for (of, step), digest in rows.items() if of == run}
            left = {step: digest for (sender, step), digest in digests.items() if sender == name}
            assert left.items() <= kept.items(), f"{name} has sent what is not in its ledger"
            if self.proxies:
                # a message that was kept, and whose connections were lost before it could be sent
                lost = self.killed[name] + self.log(name).count("event=lost")
                assert len(kept) - len(left) <= lost, (name, sorted(set(kept) - set(left)))
        return digests
