"""A command that is told to stop while it is starting ends with 130 and a sentence, as later."""

import signal
import subprocess
import sys

import pytest

from decor.cli.interrupts import sigterm_interrupts

STARTED = """
import importlib.abc, os, sys

class Stop(importlib.abc.MetaPathFinder):
    '''Tells this process to stop when a library is looked for that the command needs.'''
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            sys.argv[1] = ""
            os.kill(os.getpid(), int(sys.argv[2]))

from decor.cli.main import main
sys.meta_path.insert(0, Stop())
sys.exit(main(sys.argv[3:]))
"""
"""`decor ARGUMENTS`, which gets a signal at one certain moment."""


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The options of a node of a federation whose files are there."""
    from decor.cli.main import main

    folder = tmp_path_factory.mktemp("trial")
    words = "federation new --task breast-cancer --users 3 --epsilon 3 --steps 4 --output"
    assert main([*words.split(), str(folder / "trial")]) == 0
    key, ledger = folder / "trial/keys/bonn.key", folder / "bonn.ledger"
    assert main(["ledger", "new", str(ledger), "--identity", str(key)]) == 0
    file = str(folder / "trial/federation.toml")
    own = [file, "--identity", str(key), "--output", str(folder / "run")]
    data = ["--data", str(folder / "trial/data/bonn.npz"), "--ledger", str(ledger)]
    return {
        "node": ["node", *own, *data],
        "fetch": ["fetch", *own],
        "relay": ["relay", file, "--listen", "127.0.0.1:0"],
    }


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(
    ("command", "moment"),
    [
        # the first thing that a command looks for, and the last that a node loads
        ("node", "cryptography"),
        ("node", "decor.federation.node"),
        ("fetch", "cryptography"),
        ("relay", "cryptography"),
        ("relay", "decor.federation.relay_service"),
    ],
)
def test_a_signal_while_a_command_starts_is_no_crash(files, command, moment, number):
    words = [sys.executable, "-c", STARTED, moment, str(int(number)), *files[command]]
    done = subprocess.run(words, capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stderr) == (130, "decor: interrupted\n")


def test_signals_are_handled_as_before_when_the_command_has_ended():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), sigterm_interrupts():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before
