import json
import os

import pytest

from decor.cli.main import main
from decor.net.identity import Identity


@pytest.fixture
def ask(here):
    """Runs a command with --json in this process, and gives the object that it prints."""
    return lambda line, *more: json.loads(here(*line.split(), *more, "--json").stdout)


@pytest.fixture(scope="package")
def users():
    """The options of four users with keys; `records` is added to each."""
    lines = {name: Identity.new().line for name in ("bonn", "ulm", "kiel", "jena")}

    def options(records="", count=4):
        words = []
        for name, line in list(lines.items())[:count]:
            words += ["--user", f"{name},{name}.example.org:7400,{line}{records}"]
        return words

    options.lines = lines
    return options


RECORDS = {"bonn": 1520, "jena": 300, "koeln": 90, "ulm": 800}


@pytest.fixture
def branches(tmp_path):
    """The options of a plan at example level for users with names."""
    graph = tmp_path / "branches.txt"
    graph.write_text("koeln ulm\nulm bonn\nbonn koeln\nbonn jena\njena ulm\n")
    return ["--graph", graph, *"--unit example --batch-size 16 --steps 100 --epsilon 3".split()]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A trial of three that has been trained; each module's tests have one to themselves."""
    folder, before = tmp_path_factory.mktemp("trained"), os.getcwd()
    os.chdir(folder)
    try:
        new = "federation new --task breast-cancer --users 3 --epsilon 10 --steps 4 --output ."
        assert main(new.split()) == 0
        assert main(["up", "federation.toml", "--allow", "100"]) == 0
    finally:
        os.chdir(before)
    return folder
