"""The command `decor` with a fault: killed at a chosen point of a step, a wrong clock, a full disk.

    python fault_injection.py '{"kill": "before record", "step": 5}' node trial.toml --identity ...

The real command runs: one function is wrapped, and everything else is as it is.
`python fault_injection.py serve` loads everything once and then forks a process for each line of
JSON on its standard input (see `trial_federation.ForkServer`), which saves the seconds that loading
torch takes. Faults, as keys of a dictionary:

    kill, step    where and when to be killed: a key of `POINTS`, and the first step for it
    round         the round of that step, for points within a round (0 unless given)
    seed          own noise and batches follow from this number, the user and the step
    routes        address in the file -> address that is dialled instead, where a proxy listens
    clock         seconds by which `time.time` jumps forth and back, at every call
    calls         other values for the constants of `decor.net.connections`
    bytes         how long a file may become
    descriptors   how many files and sockets may be open
    unhandled     a text that an error which nothing handles repeats, when training begins
    slow          seconds that a gradient takes longer, with the network at work meanwhile
    hold          a file with a number: no gradient of that step or a later one before it is changed
    draws         a file for the ids of edge keys that are drawn afresh, because no common one is known
    loop          in place of `decor node`, a loop of its own (`decor.join`) with these faults:
                  "skip": steps that are not shared, "leave": the step after which it breaks off,
                  "fail": the step in which it raises an error
"""

import asyncio
import hashlib
import importlib
import itertools
import json
import os
import random
import resource
import signal
import sys
import time
import traceback
from functools import partial
from pathlib import Path

from decor.net.messages import HEADER, KINDS, Model

POINTS = {
    "before a gradient": ("gradient", 0),
    "after a gradient": ("gradient", 1),
    "before a share": ("share", 0),
    "after a share": ("share", 1),
    "before record": ("record", 0),
    "after record": ("record", 1),
    "before the first send": ("sends", 0),
    "within the first send": ("sends", 0.5),
    "between two sends": ("sends", 1),
    "after the last send": ("sends", 2),
    "while mixing": ("exchange", 1),
    "before the end": ("end", 0),
    "after the end": ("end", 1),
    "before the model is saved": ("save", 0),
    "after the model is saved": ("save", 1),
}
"""Where to be killed: in which function, and after how many calls of it (0: before the first)."""


def kill_self():
    os.kill(os.getpid(), signal.SIGKILL)


def inject(fault):
    """Prepares this process for its fault."""
    if "kill" in fault:
        what, count = POINTS[fault["kill"]]
        kills = {
            "gradient": _gradient,
            "share": _share,
            "record": _record,
            "sends": partial(_sends, fault.get("round", 0)),
            "exchange": partial(_exchange, fault.get("round", 0)),
            "end": _end,
            "save": _save,
        }
        kills[what](count, fault.get("step"))
    if "seed" in fault:
        _seed(fault["seed"])
    if "routes" in fault:
        from decor.net import transport

        dial = transport.dial
        routes = fault["routes"]
        transport.dial = lambda to, *more: dial(routes.get(to, to), *more)
    if "clock" in fault:
        now = time.time
        time.time = lambda: now() + random.choice((-1, 0, 1)) * fault["clock"]
    for name, seconds in fault.get("calls", {}).items():
        from decor.net import connections

        assert hasattr(connections, name), name
        setattr(connections, name, seconds)
    for place, seconds in fault.get("seconds", {}).items():
        module, name = place.split(".")
        changed = importlib.import_module(f"decor.net.{module}")
        assert hasattr(changed, name), place
        setattr(changed, name, seconds)
    if "bytes" in fault:
        resource.setrlimit(resource.RLIMIT_FSIZE, (fault["bytes"], fault["bytes"]))
    if "descriptors" in fault:
        resource.setrlimit(resource.RLIMIT_NOFILE, (fault["descriptors"], fault["descriptors"]))
    if "unhandled" in fault:
        _unhandled(fault["unhandled"])
    if "slow" in fault:
        _slow(fault["slow"])
    if "hold" in fault:
        _hold(fault["hold"])
    if "draws" in fault:
        _note_draws(fault["draws"])


def _unhandled(text):
    from decor.federation.node import Node

    real = Node.train

    async def wrapped(self):
        asyncio.get_running_loop().call_soon(int, text)
        return await real(self)

    Node.train = wrapped


def _slow(seconds):
    from decor.federation.node import Node

    real = Node._make_message

    async def wrapped(self, step, keys):
        await asyncio.sleep(seconds)
        return await real(self, step, keys)

    Node._make_message = wrapped


def _hold(path):
    """The network is at work meanwhile, and nobody misses a model: no neighbour is further."""
    from decor.federation.node import Node

    real = Node._make_message

    async def wrapped(self, step, keys):
        while step >= int(Path(path).read_text()):
            await asyncio.sleep(0.05)
        return await real(self, step, keys)

    Node._make_message = wrapped


def _note_draws(path):
    from decor.net.edge_keys import EdgeKeys, key_id

    real = EdgeKeys.take

    def wrapped(self, step, draw, *more):
        def noted():
            key = draw()
            # before the key is used: whatever is killed later, it is known
            with open(path, "a") as file:
                file.write(key_id(key).hex() + "\n")
            return key

        return real(self, step, noted, *more)

    EdgeKeys.take = wrapped


def _kill_around(owner, name, after, applies):
    """Kills this process before or after a call that `applies`."""
    real = getattr(owner, name)

    def wrapped(*given, **named):
        is_the_one = applies(*given)
        if is_the_one and not after:
            kill_self()
        found = real(*given, **named)
        if is_the_one:
            kill_self()
        return found

    setattr(owner, name, wrapped)


def _record(after, step):
    from decor.net.ledger import Ledger

    _kill_around(Ledger, "record", after, lambda self, run, at, *_: at >= step)


def _end(after, _):
    from decor.net.ledger import Ledger

    _kill_around(Ledger, "end", after, lambda *_: True)


def _save(after, _):
    from decor.results.run import Run

    _kill_around(Run, "save", after, lambda *_: True)


def _gradient(after, step):
    from decor.federation.node import Node

    _kill_around(Node, "_compute_message", after, lambda self, at, keys: at >= step)


def _share(after, step):
    """In an own loop: before it has shared its model of a step, or at once after."""
    from decor.training.turn import Turn

    _kill_around(Turn, "share", after, lambda self, model: self.step >= step)


def _seed(seed):
    """Draws a user's own randomness from a seed, the same after a restart; keys stay secret."""
    from decor.federation.node import Node

    real = Node._compute_message

    def wrapped(self, step, keys):
        drawn = itertools.count()

        def draw(size):
            place = f"{seed}/{self.number}/{step}/{next(drawn)}".encode()
            return hashlib.shake_256(place).digest(size)

        self.random = self.local.random = draw
        return real(self, step, keys)

    Node._compute_message = wrapped


def _exchange(round_of, _, step):
    """Between what was received in a round and its end."""
    from decor.net.peer import Peer

    real = Peer.exchange

    async def wrapped(self, at, round_, values):
        found = await real(self, at, round_, values)
        if (at, round_) >= (step, round_of) and found:
            kill_self()
        return found

    Peer.exchange = wrapped


def _sends(round_of, count, step):
    """When so many neighbours' messages of the step have gone to the system; a half: the head of
    the first without its body.
    """
    real, heads = asyncio.StreamWriter.write, []

    def wrapped(self, data):
        at, whole = _message_of(data, step, round_of)
        if at is not None:
            if count == 0:
                kill_self()
            heads.append(self)
            if count == 0.5:
                real(self, data[: at + HEADER.size + Model.fixed.size])
                kill_self()
            real(self, data)
            if not whole:  # its body is the next write
                return
        else:
            real(self, data)
        if heads and heads[-1] is self and len(heads) == count:
            kill_self()

    asyncio.StreamWriter.write = wrapped


def _message_of(data, step, round_of):
    """Where the first model of a step and round begins in what is written, and whether all of it is
    there; (None, False) if there is none. Short frames are written together.
    """
    at, size = 0, HEADER.size + Model.fixed.size
    while at + size <= len(data):
        kind, length = HEADER.unpack_from(data, at)
        if kind not in KINDS:  # the body of a model
            break
        if kind == Model.kind:
            found, round_ = Model.fixed.unpack_from(data, at + HEADER.size)
            if found >= step and round_ == round_of:
                return at, at + HEADER.size + length <= len(data)
        at += HEADER.size + length
    return None, False


def serve():
    """Forks a process for every line; answers with its number, or with the exit codes of those that
    have ended.
    """
    _preload()
    children = set()
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        if asked == "reap":
            codes = {}
            for pid in list(children):
                done, result = os.waitpid(pid, os.WNOHANG)
                if done:
                    children.discard(pid)
                    codes[pid] = os.waitstatus_to_exitcode(result)
            print(json.dumps(codes), flush=True)
            continue
        pid = os.fork()
        if not pid:
            _run_child(asked)
        children.add(pid)
        print(json.dumps(pid), flush=True)
    for pid in children:
        os.kill(pid, signal.SIGKILL)


def _run_child(asked):
    code = 1
    try:
        for descriptor, path in ((0, os.devnull), (1, asked["out"]), (2, asked["err"])):
            opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            os.dup2(opened, descriptor)
            os.close(opened)
        code = run(asked["fault"], asked["arguments"])
    except SystemExit as ended:
        code = ended.code
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _preload():
    """Everything that a node loads, and its compiled functions."""
    import numpy as np

    import decor.cli.main
    import decor.cli.node
    import decor.federation.federation
    import decor.federation.node
    import decor.federation.operator
    import decor.learning.own_data
    from decor.noise.grid import Grid

    graph = decor.ring(3)
    assert graph.is_connected  # what looks loads it
    grid = Grid.of(1.0, (1.0,) * 3, graph.edges, 3, 1.0, 8, 10)
    grid.add_noise(np.zeros(8), os.urandom(32), [(os.urandom(32), grid.multiples[0])])


def run(fault, arguments):
    from decor.cli.main import main

    inject(fault)
    return main(arguments) if "loop" not in fault else own_loop(fault["loop"], arguments)


def own_loop(fault, arguments):
    """Takes part as `decor node` with these arguments would, with a loop of its own."""
    import torch

    import decor
    from decor.federation.exit_codes import run_code
    from decor.learning import own_data

    _, file, *pairs = arguments
    given = dict(zip(pairs[::2], pairs[1::2], strict=True))
    X, y = (torch.as_tensor(part) for part in own_data.read(given["--data"]))
    user = {name: given[f"--{name}"] for name in ("identity", "ledger", "log")}
    with decor.join(file, **user) as member:
        for round in member:
            print("round", round.step, flush=True)
            if round.step in fault.get("skip", ()):
                continue
            model = round.model
            loss = decor.losses.logistic(model(X.float()), y)
            torch.optim.SGD(model.parameters(), round.learning_rate).zero_grad()
            loss.backward()
            torch.optim.SGD(model.parameters(), round.learning_rate).step()
            if round.step == fault.get("fail"):
                raise RuntimeError("out of memory, say")
            round.share(model)
            if round.step == fault.get("leave"):
                break
    member.run.save(given["--output"], overwrite=True)
    assert any(map(torch.any, member.model.state_dict().values()))
    return run_code(member.run)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve()
    else:
        sys.exit(run(json.loads(sys.argv[1]), sys.argv[2:]))
