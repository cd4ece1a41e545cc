"""Real NVFlare jobs in its simulator: three sites, each a process, on this machine alone."""

import ast
import json
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("nvflare", reason="nvflare is not installed: pip install '.[doors]'")

from nvflare.apis.fl_constant import ReturnCode  # noqa: E402

from decor.doors import nvflare as door  # noqa: E402
from decor.doors.site_node import MEANINGS  # noqa: E402
from decor.federation import exit_codes  # noqa: E402

from .three_sites import (  # noqa: E402
    NAMES,
    PATIENCE,
    ThreeSites,
    check_equal_to_plain_nodes,
    check_public,
    until,
)

DOCS = Path(__file__).parents[2] / "docs" / "doors.md"
ABORT = """
import os, threading, time
from decor.doors.nvflare import NodeResults

class AbortedResults(NodeResults):
    # the server's operator, who aborts the job when a file appears
    def create_task_data(self, task_name, fl_ctx):
        threading.Thread(target=self.abort, args=[fl_ctx.get_engine()], daemon=True).start()
        return super().create_task_data(task_name, fl_ctx)

    def abort(self, engine):
        while not os.path.exists(os.environ["ABORT_FILE"]):
            time.sleep(0.1)
        with engine.new_context() as fl_ctx:
            self.system_panic("aborted by its operator", fl_ctx)
"""


def documented(name):
    """A JSON file as the documentation shows it."""
    _, _, rest = DOCS.read_text().partition(f"{name}`")
    _, _, rest = rest.partition("```json\n")
    return json.loads(rest.partition("```")[0])


@contextmanager
def simulator(sites, names=NAMES, results=None):
    """The simulator at work on the documented job; gives its process and its log."""
    folder = sites.folder
    config = folder / "job" / "app" / "config"
    config.mkdir(parents=True)
    (folder / "job" / "meta.json").write_text(json.dumps(documented("meta.json")))
    server, client = documented("config_fed_server.json"), documented("config_fed_client.json")
    allowed = documented("resources.json")["class_allow_list"]
    # server and sites have the same policy in the simulator
    allowed += [server["workflows"][0]["path"], server["components"][0]["path"]]
    if results is not None:
        server["components"][0]["path"] = results
        allowed.append(results)
    (config / "config_fed_server.json").write_text(json.dumps(server))
    (config / "config_fed_client.json").write_text(json.dumps(client))
    local = folder / "workspace" / "local"
    local.mkdir(parents=True)
    policy = {"format_version": 2, "class_allow_list": allowed}
    (local / "resources.json").write_text(json.dumps(policy))
    for name in names:
        text = sites.toml(name).read_text() + f'folder = "{folder / name}"\n'
        (local / f"decor-{name}.toml").write_text(text)
    (folder / "python" / "own_results.py").write_text(ABORT)
    command = [str(Path(sys.executable).parent / "nvflare"), "simulator", str(folder / "job")]
    command += ["-w", str(folder / "workspace"), "-c", ",".join(names), "-t", str(len(names))]
    log = folder / "simulator.log"
    with log.open("w") as stream:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=sites.environment | {"ABORT_FILE": str(folder / "abort")},
            stdout=stream,
            stderr=subprocess.STDOUT,
        )
    try:
        yield process, log
    finally:
        process.terminate()
        process.wait(PATIENCE)


def test_a_job_of_three_sites_gives_the_numbers_of_plain_nodes(tmp_path):
    sites = ThreeSites(tmp_path / "sites")
    plain = sites.copy(tmp_path / "plain")
    with simulator(sites) as (process, log):
        assert process.wait(PATIENCE) == 0, log.read_text()[-3000:]
    check_equal_to_plain_nodes(sites, plain)
    text = log.read_text()
    for name in NAMES:
        assert f"user={name} event=finished" in text
        # what the server has logged is all it was told
        (line,) = [line for line in text.splitlines() if f" - {name}: {{" in line]
        public = ast.literal_eval(line.partition(f"{name}: ")[2])
        assert public.pop("done") is True
        check_public(public, sites, name)


def test_a_job_that_is_aborted_stops_the_nodes_which_go_on_later(tmp_path):
    sites = ThreeSites(tmp_path / "sites", steps=20_000, constant_noise=False)
    with simulator(sites, results="own_results.AbortedResults") as (process, log):
        until(lambda: log.read_text().count("at work") == 3)
        (sites.folder / "abort").touch()
        until(lambda: log.read_text().count("event=stopped") == 3)
        process.wait(PATIENCE)
    for name in NAMES:
        [(_, messages, repeated, end)] = sites.ledger(name)
        assert 0 < messages < 20_000 and repeated == 0 and end is None


def test_a_site_without_a_ledger_is_refused_once(tmp_path):
    sites = ThreeSites(tmp_path / "sites")
    sites.path("bonn", "own.ledger").unlink()
    with simulator(sites, ["bonn"]) as (process, log):
        process.wait(PATIENCE)
    text = log.read_text()
    assert text.count("decor ledger new") == 1
    assert "no final model at: bonn" in text
    (line,) = [line for line in text.splitlines() if " - bonn: {" in line]
    assert ast.literal_eval(line.partition("bonn: ")[2]) == {
        "done": False,
        "code": 2,
        "meaning": MEANINGS[exit_codes.NEEDS_A_PERSON],
    }
    assert not sites.path("bonn", "own.ledger").exists()


def test_only_a_cause_that_may_pass_has_a_return_code_to_try_again():
    codes = door.RETURN_CODES
    assert set(codes) == set(MEANINGS)
    again = {ReturnCode.SERVICE_UNAVAILABLE, ReturnCode.TASK_ABORTED}
    assert {code for code in codes if codes[code] in again} == {
        exit_codes.TRANSIENT,
        exit_codes.INTERRUPTED,
    }
    done = {code for code in codes if codes[code] == ReturnCode.OK}
    assert done == {exit_codes.DONE, exit_codes.INCOMPLETE}
