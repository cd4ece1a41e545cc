"""A federation of three sites on this machine, each with a folder of its own, for launchers.

Randomness of nodes is replaced by a constant of each site, so that a second run of the same file
gives the same models, up to the order in which neighbours' models are added.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from decor.errors import TransientError
from decor.federation.federation import Federation, Member, Model, Network, Privacy, Training
from decor.federation.terms import Terms
from decor.net.addresses import free_ports
from decor.net.identity import Identity
from decor.net.ledger import Ledger

PATIENCE = 180.0
"""Seconds that anything may take on a busy machine."""
NAMES = ("bonn", "ulm", "kiel")
_CONSTANT_NOISE = """
import hashlib, os, sys
true = os.urandom
def urandom(count):
    caller = sys._getframe(1).f_globals.get("__name__", "")
    key = [word for word in sys.argv if word.endswith(".key")]
    if not caller.startswith("decor.") or not key:
        return true(count)
    return hashlib.shake_256(key[0].removeprefix("--identity=").encode()).digest(count)
os.urandom = urandom
"""


class ThreeSites:
    """The sites `NAMES`, each in the folder of its name; `toml` is a site's own file."""

    def __init__(self, folder, steps=6, timeout=60.0, constant_noise=True, **network):
        self.folder = folder
        identities = {name: Identity.new() for name in NAMES}
        ports = free_ports(len(NAMES))
        self.federation = Federation(
            name="tumour",
            privacy=Privacy(epsilon=10.0, delta=1e-5, adversary="curious"),
            training=Training(
                steps=steps, clip=1.0, learning_rate=0.1, final_gossip_rounds=2, dtype="float64"
            ),
            model=Model(kind="logistic", features=4),
            network=Network(topology="ring", timeout=timeout, **{"quorum": 1.0} | network),
            members=tuple(
                Member(name, f"127.0.0.1:{port}", identities[name].public)
                for name, port in zip(NAMES, ports, strict=True)
            ),
        )
        rng = np.random.default_rng(7)
        for name in NAMES:
            (folder / name).mkdir(parents=True)
            X = rng.normal(size=(30, 4))
            np.savez(self.path(name, "data.npz"), X=X, y=(X[:, 0] > 0).astype(int))
            identities[name].save(self.path(name, f"{name}.key"))
            Ledger.create(self.path(name, "own.ledger"), identities[name].public)
            self.path(name, "tumour.toml").write_text(self.federation.to_toml())
            self.write_site_file(name)
        (folder / "python").mkdir()
        # nodes that go on after a stop need fresh keys: edges with the same one are refused
        if constant_noise:
            (folder / "python" / "sitecustomize.py").write_text(_CONSTANT_NOISE)

    @property
    def environment(self):
        """For runtimes and nodes: constant noise, and nothing that leaves this machine."""
        paths = [str(self.folder / "python"), os.environ.get("PYTHONPATH", "")]
        return os.environ | {
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            # where commands of the runtimes are, such as flower-superexec
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "FLWR_HOME": str(self.folder / "flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
        }

    def copy(self, folder):
        """The same sites in another folder, as they are now."""
        shutil.copytree(self.folder, folder, ignore=shutil.ignore_patterns("*.socket"))
        other = object.__new__(type(self))
        other.folder, other.federation = folder, self.federation
        return other

    def path(self, name, file):
        return self.folder / name / file

    def write_site_file(self, name, **options):
        """What the site itself has set up."""
        table = {
            "file": "tumour.toml",
            "identity": f"{name}.key",
            "ledger": "own.ledger",
            "data": "data.npz",
            "output": "run",
        } | options
        lines = [f"{option} = {json.dumps(value)}\n" for option, value in table.items()]
        self.toml(name).write_text("[tumour]\n" + "".join(lines))

    def toml(self, name):
        return self.path(name, "decor.toml")

    def start_plain_nodes(self, *names):
        """`decor node` as its operator starts it, without a launcher."""
        words = "node tumour.toml --ledger own.ledger --data data.npz --output run".split()
        return [
            subprocess.Popen(
                [sys.executable, "-m", "decor", *words, "--identity", f"{name}.key"],
                cwd=self.folder / name,
                env=self.environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            for name in names or NAMES
        ]

    def run_plain(self):
        """All plain nodes to their end; gives their exit codes."""
        nodes = self.start_plain_nodes()
        errors = [node.communicate(timeout=240)[1] for node in nodes]
        codes = [node.returncode for node in nodes]
        assert set(codes) <= {0, 4}, errors
        return codes

    def model(self, name):
        """All parameters of a site's final model."""
        run = self.path(name, "run")
        file = json.loads((run / "manifest.json").read_text())["models"]
        tensors = load_file(run / file)
        return np.concatenate([tensors[key].ravel() for key in sorted(tensors)])

    def ledger(self, name):
        """(federation, messages, repeated, how it has ended) of each run in a site's ledger."""
        public = Identity.load(self.path(name, f"{name}.key")).public

        def entries():
            try:
                with Ledger(self.path(name, "own.ledger"), public) as ledger:
                    return list(ledger.entries())
            except TransientError:  # its node has not quite ended
                return None

        return [
            (each.federation.hex(), each.steps, each.repeated, each.why) for each in until(entries)
        ]


def until(condition, seconds=PATIENCE):
    """What a condition gives when it is met."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end
        time.sleep(0.05)
    return found


def check_equal_to_plain_nodes(sites, plain):
    """Models, messages and budget are those of `decor node` without a launcher."""
    plain.run_plain()
    for name in NAMES:
        np.testing.assert_allclose(sites.model(name), plain.model(name), rtol=1e-12)
        assert sites.ledger(name) == plain.ledger(name)
        (federation, messages, repeated, end), *others = sites.ledger(name)
        assert (messages, repeated, end, others) == (6, 0, "finished", [])
        assert federation == sites.federation.digest.hex()


def check_public(public, sites, name):
    """What a server is told of a node that is done, and nothing else."""
    facts = dict(public)
    assert len(facts.pop("model_sha256")) == 64
    assert facts == {
        "code": 0,
        "meaning": "done as planned",
        "user": name,
        "steps": 6,
        "missed": 0,
        "noise_left": 1.0,
        "epsilon": Terms.of(sites.federation).promise.epsilon,
        "delta": 1e-5,
        "digest": sites.federation.digest.hex(),
    }


def is_at_work(sites, name):
    """Whether a site's node runs: it has a socket for `decor status` as long as it does."""
    return sites.path(name, "own.ledger.socket").exists()
