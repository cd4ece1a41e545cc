"""A real SuperLink and three real SuperNodes, on this machine alone, run the documented app."""

import ast
import json
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="flwr is not installed: pip install '.[doors]'")

from flwr.app import ConfigRecord, Context, Message, RecordDict  # noqa: E402
from flwr.supercore.task_identity import TaskIdentity  # noqa: E402

from decor.doors import flower as door  # noqa: E402
from decor.doors.site_node import MEANINGS  # noqa: E402
from decor.federation.exit_codes import NEEDS_A_PERSON  # noqa: E402
from decor.net.addresses import free_ports  # noqa: E402

from .three_sites import (  # noqa: E402
    NAMES,
    PATIENCE,
    ThreeSites,
    check_equal_to_plain_nodes,
    check_public,
    is_at_work,
    until,
)

DOCS = Path(__file__).parents[2] / "docs" / "doors.md"


class Flower:
    """A SuperLink, and a SuperNode for each site; all with the environment of the sites."""

    def __init__(self, sites, stack, lease):
        self.sites, self.folder, self._stack = sites, sites.folder, stack
        self._port, *self._ports = free_ports(1 + len(NAMES))
        self._address = f"127.0.0.1:{self._port}"
        # the app as the documentation shows it
        _, _, rest = DOCS.read_text().partition("`pyproject.toml`")
        text = rest.partition("```toml\n")[2].partition("```")[0]
        (self.folder / "app").mkdir()
        (self.folder / "app" / "pyproject.toml").write_text(f"{text}lease = {lease}\n")
        home = self.folder / "flwr"
        home.mkdir()
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "{self._address}"\n'
            "insecure = true\n"
        )
        # dependencies are installed already
        options = ["--insecure", "--port", str(self._port)]
        options.append("--disable-runtime-dependency-installation")
        self.start("link", "flower-superlink", *options)
        until(lambda: "Application startup complete" in self.log("link"))
        for name, port in zip(NAMES, self._ports, strict=True):
            site = f'decor="{sites.toml(name)}"'
            options = ["--insecure", "--superlink", self._address, "--port", str(port)]
            self.start(name, "flower-supernode", *options, "--node-config", site)

    def start(self, log, command, *options):
        with (self.folder / f"{log}.log").open("w") as stream:
            process = subprocess.Popen(
                [str(Path(sys.executable).parent / command), *options],
                cwd=self.folder,
                env=self.sites.environment,
                stdout=stream,
                stderr=subprocess.STDOUT,
            )
        self._stack.callback(process.wait, PATIENCE)
        self._stack.callback(process.terminate)
        return process

    def log(self, name):
        return (self.folder / f"{name}.log").read_text()

    def flwr(self, *words):
        """The command of a user; gives what it prints."""
        done = subprocess.run(
            [str(Path(sys.executable).parent / "flwr"), *words],
            cwd=self.folder,
            env=self.sites.environment,
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def run_app(self):
        return str(json.loads(self.flwr("run", "app", "--format", "json"))["run-id"])


@contextmanager
def flower(sites, lease):
    with ExitStack() as stack:
        yield Flower(sites, stack, lease)


def test_a_run_of_three_sites_gives_the_numbers_of_plain_nodes(tmp_path):
    sites = ThreeSites(tmp_path / "sites")
    plain = sites.copy(tmp_path / "plain")
    with flower(sites, lease=120) as runtime:
        text = runtime.flwr("run", "app", "--stream")
        logs = {name: runtime.log(name) for name in NAMES}
    check_equal_to_plain_nodes(sites, plain)
    told = [ast.literal_eval(line[line.index("{") :]) for line in text.splitlines() if "{" in line]
    by_name = {public["user"]: public for public in told}
    assert set(by_name) == set(NAMES) and len(told) == 3
    for name in NAMES:
        check_public(by_name[name], sites, name)
        assert f"user={name} event=finished" in logs[name]


def test_a_run_that_is_stopped_stops_the_nodes_and_the_next_run_goes_on(tmp_path):
    sites = ThreeSites(tmp_path / "sites", steps=6_000, constant_noise=False)
    with flower(sites, lease=40) as runtime:
        run = runtime.run_app()
        until(lambda: all("at work" in runtime.log(name) for name in NAMES))
        runtime.flwr("stop", run)
        until(lambda: not any(is_at_work(sites, name) for name in NAMES))
        before = {name: sites.ledger(name) for name in NAMES}
        for [(_, messages, repeated, end)] in before.values():
            assert 0 < messages < 6_000 and repeated == 0 and end is None
        runtime.flwr("run", "app", "--stream")
    for name in NAMES:
        [(_, messages, repeated, end)] = sites.ledger(name)
        assert messages >= before[name][0][1] and (repeated, end) == (0, "finished")


# --- the ClientApp alone, with the messages of the real package


@pytest.fixture(autouse=True)
def task(monkeypatch):
    """A message is made by a task of a runtime."""
    for name, value in {"_task_id": 1, "_run_id": 1, "_node_id": 1}.items():
        monkeypatch.setattr(TaskIdentity, name, value)


def message_and_context(node_config, federation):
    content = RecordDict({"decor": ConfigRecord({"seconds": 60.0})})
    message = Message(content, dst_node_id=7, message_type="train")
    return message, Context(1, 7, node_config, RecordDict(), {"federation": federation})


def test_a_run_cannot_choose_what_the_site_has_not_set_up(tmp_path, caplog):
    sites = ThreeSites(tmp_path / "sites")
    config = {"decor": str(sites.toml("bonn"))}
    with caplog.at_level("INFO", "flwr"):
        reply = door.client(*message_and_context(config, "../heart"))
    assert "has not agreed" in caplog.text
    # the sentence stays at the site
    assert dict(reply.content["decor"]) == {
        "code": NEEDS_A_PERSON,
        "meaning": MEANINGS[NEEDS_A_PERSON],
    }
    assert not list(sites.folder.rglob("*.lease"))


def test_a_supernode_without_a_file_for_decor_says_what_is_missing(caplog):
    reply = door.client(*message_and_context({}, "tumour"))
    assert reply.content["decor"]["code"] == NEEDS_A_PERSON
    assert "--node-config" in caplog.text
