"""Services as the documentation has them: units of systemd, and the nodes of compose.yaml."""

import configparser
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from containers import NAMES, PAGE, read_compose

from decor.cli.main import parser
from decor.cli.node import prepare_output
from decor.errors import InputError

INSTALLED = "/opt/decor/bin/decor"


class Unit(configparser.ConfigParser):
    """A unit file; its options keep their capitals."""

    optionxform = staticmethod(str)


def units():
    """The units on the page: name of the file -> text."""
    page = PAGE.read_text()
    found = {}
    for text in re.findall(r"^```ini\n(.*?)^```", page, flags=re.M | re.S):
        if "ExecStart" in text:
            # named in the sentence before it
            before = page.partition(text)[0]
            found[re.findall(r"`/etc/systemd/system/([^`]+)`", before)[-1]] = text
    return found


def service(name):
    unit = Unit(interpolation=None)
    unit.read_string(units()[name])
    return unit["Service"]


def command_of(unit, instance=""):
    """What systemd runs, without the program's name."""
    words = shlex.split(service(unit)["ExecStart"].replace("%i", instance))
    assert words[0] == INSTALLED
    return parser().parse_args(words[1:])


def test_the_page_has_a_unit_for_a_node_and_one_for_a_relay():
    assert set(units()) == {"decor@.service", "decor-relay.service"}
    assert command_of("decor@.service", "tumour").file == "tumour.toml"
    relay = command_of("decor-relay.service")
    assert relay.files == ["/etc/decor-relay"] and relay.listen == [":7500"]
    # files that were changed are read again, and users stay connected
    assert service("decor-relay.service")["ExecReload"] == "/bin/kill -HUP $MAINPID"


@pytest.mark.parametrize("unit", ["decor@.service", "decor-relay.service"])
def test_a_service_that_its_operator_stops_has_not_failed_and_is_not_started_again(unit):
    settings = service(unit)
    assert settings["Restart"] == "on-failure"
    assert "130" in settings["SuccessExitStatus"].split()
    prevented = settings["RestartPreventExitStatus"].split()
    assert {"2", "130"} <= set(prevented) and "1" not in prevented


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_finds_no_fault_in_the_units(tmp_path):
    for name, text in units().items():
        file = tmp_path / name
        file.write_text(text.replace(INSTALLED, sys.executable))
        instance = tmp_path / name.replace("@.", "@tumour.")
        done = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", instance], capture_output=True, text=True
        )
        assert done.returncode == 0 and name.partition(".")[0] not in done.stderr, done.stderr


def compose_command(name, federation):
    """With the name of the federation's file put in as the page says."""
    words = read_compose()["services"][name]["command"].replace("heart", federation)
    return parser().parse_args(shlex.split(words))


NODES = {
    "systemd": lambda federation: command_of("decor@.service", federation),
    **{name: lambda federation, name=name: compose_command(name, federation) for name in NAMES},
}


@pytest.mark.parametrize("node", NODES)
def test_a_service_of_a_quarter_runs_in_the_next_one_too(node, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for quarter, federation in enumerate(("heart", "heart-2")):
        options = NODES[node](federation)
        assert Path(options.file).name == f"{federation}.toml"
        # as `decor node` does before it opens its ledger, and at its end
        output = Path(options.output or "run-bonn")
        prepare_output(output, bytes([quarter]) * 32)
        (output / "manifest.json").write_text(json.dumps({"federation": f"{quarter:02x}" * 32}))
        # the same run again, as after a restart of its machine
        prepare_output(output, bytes([quarter]) * 32)
    with pytest.raises(InputError, match="holds another run"):
        prepare_output(output, bytes(32))
