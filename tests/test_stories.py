"""Every story of the documentation happens as told: data, plan, peers, report and prediction."""

import re
import shlex
import subprocess
import sys
import warnings
from contextlib import nullcontext, redirect_stdout
from pathlib import Path

import pytest
from test_docs import AT_AN_END, STORIES, is_shown

BLOCK = re.compile(r"^```(bash|python|text)\n(.*?)^```", flags=re.M | re.S)
FILE = re.compile(r"# (\w+\.py)\n")
"""The first line of Python that a reader saves as a file."""


def run_line(line, run):
    """One command: `decor` in this process, which has everything loaded, all else in a shell."""
    if line.startswith("decor "):
        command, _, output = line.partition(" > ")
        with open(output, "w") if output else nullcontext() as file:
            with redirect_stdout(file) if file else nullcontext():
                run(*shlex.split(command)[1:])
        return
    done = subprocess.run(["bash", "-euc", line], capture_output=True, text=True)
    assert done.returncode == 0, line + done.stderr
    print(done.stdout, end="")


@pytest.mark.parametrize("page", STORIES, ids=lambda page: page.stem)
def test_a_story_happens_as_it_is_told(page, tmp_path, monkeypatch, capsys):
    from decor.cli.main import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    before, names = set(sys.modules), {"__name__": "__story__"}
    printed = ""

    def run(*words):
        # flags of tests would turn what a command shows as a note into an error
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            assert not main(list(words)), f"decor {shlex.join(words)}: {capsys.readouterr().err}"

    for language, block in BLOCK.findall(page.read_text()):
        if language == "text":
            assert is_shown(block, printed), f"{page.name} shows\n{block}\nof\n{printed}"
            continue
        if language == "bash":
            for line in block.replace("\\\n", " ").splitlines():
                run_line(line, run)
        elif name := FILE.match(block):
            Path(name[1]).write_text(block)
        else:
            exec(compile(block, page.name, "exec"), names)
        printed = capsys.readouterr().out
        assert AT_AN_END not in printed
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None)
        if file and Path(file).is_relative_to(tmp_path):
            del sys.modules[name]


def test_there_are_stories_and_each_has_a_report_to_sign():
    assert len(STORIES) == 4
    for page in STORIES:
        commands = "".join(
            block for kind, block in BLOCK.findall(page.read_text()) if kind == "bash"
        )
        assert "decor report " in commands and "--owner" in commands
