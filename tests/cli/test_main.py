"""The command as a process: exit codes, help, standard output and standard error."""

import argparse
import json
import re
import subprocess
import sys

import pytest

import decor
from decor.cli.main import main, parser
from decor.federation.federation import Federation
from decor.net.identity import Identity

from .commands import COMMAND, run

BAD = [
    ("plan --epsilon 0", "epsilon must be a positive finite number, not 0.0"),
    ("plan --epsilon -1", "epsilon must be a positive"),
    ("plan --epsilon nan", "epsilon must be a positive"),
    ("plan --epsilon inf", "epsilon must be a positive"),
    ("plan --epsilon three", "--epsilon: must be a number, not 'three'"),
    ("plan", "--epsilon"),
    ("plan --epsilon 1 --delta 0", "delta must lie strictly between 0 and 1"),
    ("plan --epsilon 1 --delta 1", "delta must lie"),
    ("plan --epsilon 1 --delta nan", "delta must lie"),
    ("plan --epsilon 1 --steps 0", "steps must be a positive whole number"),
    ("plan --epsilon 1 --steps 2.5", "--steps: must be a whole number, not '2.5'"),
    ("plan --epsilon 1 --steps inf", "must be a whole number"),
    ("plan --epsilon 1 --clip 0", "clip must be a positive"),
    ("plan --epsilon 1 --clip -2", "clip must be a positive"),
    ("plan --epsilon 1 --adversary eve", "unknown adversary 'eve'"),
    ("plan --epsilon 1 --adversary colluding:16", "16 colluding users of 16"),
    ("plan --epsilon 1 --adversary colluding:-1", "unknown adversary"),
    ("plan --epsilon 1 --topology moebius", "unknown topology 'moebius'"),
    ("plan --epsilon 1 --users 0", "from 3"),
    ("plan --epsilon 1 --users -4 --topology torus", "torus"),
    ("plan --epsilon 1 --users 13 --topology torus", "torus"),
    ("plan --epsilon 1 --users 12 --topology hypercube", "16"),
    ("plan --epsilon 1 --topology random-regular --degree 16", "15"),
    ("plan --epsilon 1 --topology random-regular --users 5 --degree 3", "even"),
    ("plan --epsilon 1 --topology erdos-renyi --probability 2", "between 0 and 1"),
    ("plan --epsilon 1 --unit example", "needs batch_size and records"),
    (
        "plan --epsilon 1 --unit example --batch-size 10 --records 5",
        "smallest shard",
    ),
    ("plan --epsilon 1e300", "between 1e-100 and 1e+09"),
    ("plan --epsilon 1 --clip 1e300", "between 1e-100 and 1e+100"),
    ("plan --epsilon 1 --steps 1" + 30 * "0", "steps"),
    ("plan --epsilon 1 --sigma-cor 1e300", "1e-100"),
    ("account --sigma-cdp 1e-320 --sigma-cor 0", "1e-100"),
    ("plan --epsilon 1 --unit galaxy", "unit must be"),
    ("plan --epsilon 1 --ratio -1", "ratio must be a finite number"),
    ("plan --epsilon 1 --edges golden", '"uniform" or "optimal"'),
    ("plan --epsilon 1 --method guess", '"exact" or "paper"'),
    ("plan --epsilon 1 --graph nowhere.txt", "nowhere.txt"),
    ("plan --epsilon 1 --plot nowhere/at/all.png", "make the folder 'nowhere/at' first"),
    ("plan --epsilon 1 --plot picture.docx", "its name must end in one of "),
    (
        "account --sigma-cdp 1 --sigma-cor 1 --plot picture",
        "'picture' cannot be written",
    ),
    ("graph --plot picture.docx", ".pdf, "),
    ("audit --plot picture.docx", ".png, "),
    ("plan --epsilon 1 --save nowhere/at/all.json", "cannot be written"),
    ("plan --epsilon 1 --table nowhere/at/all.csv", "cannot be written"),
    ("graph --save nowhere/at/all.txt", "cannot be written"),
    ("graph --save nowhere/at/all.gml", "cannot be written"),
    ("account --sigma-cdp 1", "give --sigma-cdp and --sigma-cor"),
    ("account --sigma-cdp -1 --sigma-cor 1", "sigma_cdp must be a finite number"),
    ("account --sigma-cdp 1 --sigma-cor nan", "sigma_cor must be a finite number"),
    ("plan --epsilon 1 --adversary colluding:" + 5000 * "9", "unknown adversary"),
    ("graph --topology torus --users 1000000000000000003", "to 100,000,000 users"),
    ("plan --epsilon 1 --degree 4", "--degree does not apply to ring"),
    ("graph --topology torus --probability 0.5", "--probability does not apply to torus"),
    ("graph --graph g.txt --topology ring", "--topology does not apply to --graph"),
    ("graph --graph-seed 3", "--graph-seed does not apply to ring"),
    ("plan --epsilon 1 --adversary average-only", "not an adversary of DECOR"),
    ("plan --epsilon 1 --gossip-rounds -1", "gossip rounds must be"),
    ("plan --epsilon 1 --gossip-rounds 1.5", "--gossip-rounds: must be a whole number"),
    ("plan --epsilon 1 --gossip-rounds 2 --accelerate True", "must be no, chebyshev or designed"),
    ("plan --epsilon 1 --gossip-rounds 1 --accelerate", "--accelerate changes nothing"),
    ("plan --epsilon 1 --accelerate", "drop --accelerate chebyshev, or give --gossip-rounds"),
    ("account --plan nowhere.json", "cannot be read"),
    ("graph --ratio nan", "--ratio must be a finite number"),
    ("", "COMMAND"),
    ("dance", "invalid choice"),
    ("plan --epsilon 1 --verbosely", "unrecognized arguments"),
]


@pytest.mark.parametrize(("line", "words"), BAD, ids=[line[:60] or "nothing" for line, _ in BAD])
def test_bad_input_gets_exit_code_2_and_one_sentence(line, words, here):
    assert words in here(*line.split(), check=2).stderr


@pytest.mark.parametrize(
    "line",
    [
        "relay x.toml --listen 127.0.0.1:0",
        "fetch x.toml --identity bonn.key",
        "up x.toml",
        "federation check x.toml",
        "node x.toml --identity bonn.key --ledger bonn.ledger --data bonn.csv",
    ],
)
def test_an_unknown_exception_of_any_command_is_shown_and_not_worth_a_restart(
    line, monkeypatch, capfd
):
    def fail(*_, **__):
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(Federation, "read", fail)
    monkeypatch.setattr(Identity, "load", fail)
    # 1 would be restarted
    assert main(line.split()) == 2
    said = capfd.readouterr().err
    assert said.startswith("Traceback") and said.endswith("ZeroDivisionError: a bug\n")


def test_json_is_alone_on_standard_output_and_errors_are_not_there():
    assert json.loads(run("graph", "--json").stdout)
    assert run(*"graph --topology x --json".split(), check=2).stdout == ""


def all_commands(top, prefix=()):
    for action in top._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                yield from all_commands(below, (*prefix, name))
            return
    yield prefix


@pytest.mark.parametrize("command", [*all_commands(parser())], ids=" ".join)
def test_help_fits_the_terminal_and_ends_with_an_example(here, command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    out = here(*command, "--help").stdout
    assert f"usage: decor {' '.join(command)}" in out
    assert re.search(r"\nexamples?:\n  decor ", out)
    usage_and_description = out.split("\noptions:")[0]
    assert max(map(len, usage_and_description.splitlines())) <= 80


@pytest.mark.parametrize("command", ["train", "compare", "plan", "account", "audit"])
def test_no_help_points_to_records_where_they_are_refused(here, command):
    out = " ".join(here(command, "--help").stdout.split())
    assert ("not accepted here" in out) == (command in ("train", "compare"))
    assert ("from --records" in out) == (command not in ("train", "compare"))


@pytest.mark.parametrize("line", ["plan", "account", "graph"])
def test_the_example_in_the_help_works(here, line):
    example = here(line, "--help").stdout.split("example:")[1].replace("\\\n", "").split()
    assert example[0] == "decor"
    here(*[word for word in example[1:] if word not in ("--plot", "torus.png")])


def test_help_lists_every_command_once_under_the_heading_of_its_group(here):
    out = here("--help").stdout
    listed = re.findall(r"^(?:([a-z]+):|  ([a-z]+) .*)$", out, re.M)
    groups = {}
    for heading, command in listed:
        if heading:
            groups[heading] = inside = []
        elif command:
            inside.append(command)
    groups.pop("usage", None), groups.pop("options")
    assert [*groups] == ["plan", "train", "federate", "check"]
    every = sorted({path[0] for path in all_commands(parser())})
    assert sorted(sum(groups.values(), [])) == every
    assert "node" in groups["federate"] and "audit" in groups["check"]


def test_python_dash_m_is_the_same_command():
    module = run("graph", "--json", command=[sys.executable, "-m", "decor"])
    assert module.stdout == run("graph", "--json").stdout
    assert run("--version").stdout.strip() == f"decor {decor.__version__}"


def test_a_closed_pipe_is_no_error():
    line = f"{COMMAND[0]} plan --epsilon 3 | head -1"
    done = subprocess.run(line, shell=True, capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == ""


@pytest.mark.parametrize("heavy", ["torch", "cryptography", "networkx"])
def test_the_commands_are_listed_without_loading(heavy):
    code = (
        "import sys; from decor.cli.main import parser; parser().format_help(); "
        f"sys.exit({heavy!r} in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
