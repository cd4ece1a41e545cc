"""Health, metrics and logs of real nodes; the dashboard and the alerts against what nodes serve, in
a real Prometheus.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from rogue import Rogue
from trial_federation import EPSILON, Trial, until

from decor.net.addresses import free_ports
from decor.net.ledger import Ledger
from decor.net.messages import encode

ROOT = Path(__file__).parents[2]
ALERTS, DASHBOARD = ROOT / "deploy" / "alerts.yml", ROOT / "deploy" / "grafana-dashboard.json"
needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed"
)
needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="Prometheus is not installed"
)


@pytest.fixture(scope="module")
def watched(tmp_path_factory, fork_server):
    """Three users at work, each with its own port; bonn's ledger has a limit, nearly spent, ulm is
    started with one that is far away, and kiel has none but the federation's epsilon.
    """
    with Trial(tmp_path_factory.mktemp("trial"), fork_server, 3, steps=20_000, pace=0.02) as one:
        one.metrics = dict(zip(one.names, free_ports(3), strict=True))
        ledger, key = one.path("bonn", "ledger"), one.identities["bonn"].public
        Ledger.create(ledger, key, allow=1.05 * EPSILON, allow_delta=1e-5)
        for name in one.names:
            limit = ["--allow", str(4 * EPSILON)] if name == "ulm" else []
            one.start(name, more=["--metrics", str(one.metrics[name]), *limit])
        one.reached("bonn", 2)
        yield one


def fetch(port, page, seconds=60):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{page}", timeout=seconds) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as problem:
        with problem:
            return problem.code, problem.read().decode()


def samples(port):
    """(name without "decor_", labels beyond user and federation) -> value, of what is served."""
    code, text = fetch(port, "/metrics")
    assert code == 200
    return {
        (
            sample.name.removeprefix("decor_"),
            *(v for name, v in sample.labels.items() if name not in ("federation", "user")),
        ): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


# health


def test_a_node_is_ready_while_it_has_a_quorum_and_when_it_is_done(trial):
    one = trial(users=3, steps=20, pace=0.02, timeout=1.0, patience=0.0)
    (port,) = free_ports(1)
    one.start("bonn", more=["--metrics", str(port), "--serve"])
    missing = "not ready: 0 of 2 neighbours connected, quorum 1; missing: ulm, kiel\n"
    until(lambda: one.status("bonn"))
    assert fetch(port, "/readyz") == (503, missing) and fetch(port, "/healthz")[0] == 200
    one.start("ulm")
    until(lambda: fetch(port, "/readyz") == (200, "ready\n"), "readiness")
    found = samples(port)
    assert found["neighbour_connected", "ulm"] == 1 and found["neighbour_connected", "kiel"] == 0
    one.kill("ulm")
    until(lambda: fetch(port, "/readyz") == (503, missing), "the loss of the quorum")
    assert fetch(port, "/healthz")[0] == 200 and samples(port)["done",] == 0
    one.start("ulm", "kiel")
    one.finished("ulm", "kiel")
    # both have left, and it stays for those who fetch the model
    until(lambda: not any(n["here"] for n in one.status("bonn")["neighbours"]))
    found = samples(port)
    assert fetch(port, "/readyz") == (200, "ready\n") and found["done",] == 1
    assert found["step",] == found["steps",] == 20


def test_a_process_that_stands_still_is_not_alive(trial):
    one = trial(users=3, steps=1000)
    (port,) = free_ports(1)
    one.start("bonn", more=["--metrics", str(port)])
    until(lambda: one.status("bonn"))
    one.signal("bonn", signal.SIGSTOP)
    with pytest.raises(TimeoutError):
        fetch(port, "/healthz", seconds=1)
    one.signal("bonn", signal.SIGCONT)
    assert fetch(port, "/healthz") == (200, "alive\n")


def test_a_wrong_address_is_refused_before_a_run_begins(trial):
    one = trial(users=3)
    one.start("bonn", more=["--metrics", "0.0.0.0"])
    assert one.ended("bonn") == 2 and "is not an address" in one.errors("bonn")
    assert one.entries("bonn")[0] == []


# metrics


def test_the_page_says_what_the_status_socket_says(watched):
    def shown():
        status = watched.status("bonn")
        return status if status == json.loads(fetch(watched.metrics["bonn"], "/status")[1]) else {}

    watched.signal("ulm", signal.SIGSTOP)  # nothing changes meanwhile
    try:
        assert until(shown)["user"] == "bonn"
    finally:
        watched.signal("ulm", signal.SIGCONT)
    watched.moving("bonn")


def test_what_was_done_is_counted_exactly(trial):
    """The oracle is the proxy on each edge, which has heard every frame."""
    one = trial(users=3, steps=12, rounds=2, quorum=1.0, timeout=20.0, pace=0.02)
    (port,) = free_ports(1)
    one.start("ulm", "kiel")
    one.start("bonn", more=["--metrics", str(port), "--serve"])
    one.reached("bonn", 3)
    one.proxies["ulm", "bonn"].cut()
    one.finished("ulm", "kiel")
    found = samples(port)
    heard = one.proxies["kiel", "bonn"].messages()
    sizes = dict.fromkeys(one.names, 0)
    for record in heard:
        sizes[record.sender] += len(encode(record.message))
    assert found["sent_bytes_total", "kiel"] == sizes["bonn"] > 12 * 2 * one.model_bytes
    assert found["received_bytes_total", "kiel"] == sizes["kiel"] > 12 * 2 * one.model_bytes
    assert found["reconnections_total", "ulm"] == 1 and found["reconnections_total", "kiel"] == 0
    assert found["step_duration_seconds_count",] == found["messages_total",] == 12
    # two rounds of each step, and one after the last
    assert found["round_duration_seconds_count",] == 2 * 12 + 1
    spent = [found[f"{what}_duration_seconds_sum",] for what in ("round", "step")]
    assert 0 < spent[0] and 0 < spent[1]
    assert found["epsilon_spent",] == found["epsilon_planned",] == pytest.approx(EPSILON, rel=1e-3)
    assert found["epsilon_so_far",] == pytest.approx(found["epsilon_planned",])


def test_progress_has_a_date_that_stands_still_with_the_node(watched):
    port = watched.metrics["bonn"]

    def date():
        return samples(port)["last_progress_timestamp_seconds",]

    first = date()
    until(lambda: date() > first, "progress")
    for name in ("ulm", "kiel"):
        watched.signal(name, signal.SIGSTOP)
    try:
        until(lambda: samples(port)["paused",] == 1, "a pause")
        last = date()
        assert [date() for _ in range(5)] == [last] * 5
    finally:
        for name in ("ulm", "kiel"):
            watched.signal(name, signal.SIGCONT)
    until(lambda: date() > last, "progress")


def test_refusals_are_counted_by_kind(trial):
    one = trial(users=3, steps=20_000, timeout=1.0, patience=0.0, pace=0.02)
    (port,) = free_ports(1)
    one.start("ulm")
    # after twenty calls each is one too many
    calls = {"CALLS": 20, "CALLS_PER_SECOND": 0}
    one.start("bonn", more=["--metrics", str(port)], calls=calls)
    one.reached("bonn", 2)

    def counts():
        found = samples(port)
        return {key[1]: n for key, n in found.items() if key[0] == "refusals_total"}

    kinds = ("stranger", "unidentified", "wrong_clock")
    kinds += ("protocol_error", "rate_limited", "quarantined")
    assert counts() == dict.fromkeys(kinds, 0)
    where = ("127.0.0.1", one.ports["bonn"])
    with socket.create_connection(where, timeout=60) as scanner:
        scanner.sendall(b"GET / HTTP/1.1\r\n\r\n")
        until(lambda: counts()["stranger"] == 1, "a stranger")
    socket.create_connection(where, timeout=60).close()
    until(lambda: counts()["unidentified"] == 1, "a connection that has ended")

    def misbehave():
        """Breaks the rules, and is there again at once; the quarantine grows each time."""
        with suppress(OSError), Rogue(one).opened() as rogue:
            rogue.say(b"\xde\xad\xbe\xef" * 50)
            while rogue.line.recv(1 << 16):
                pass
        Rogue(one).line.close()
        return counts()["quarantined"]

    def call():
        Rogue(one).line.close()
        return counts()["rate_limited"]

    assert counts()["protocol_error"] == 0
    until(misbehave, "a quarantine")
    assert counts()["protocol_error"] >= 1 and counts()["rate_limited"] == 0
    until(call, "a neighbour that connects too often")
    assert counts()["stranger"] == 1 and counts()["wrong_clock"] == 0
    one.moving("bonn", "ulm")


def test_the_limit_in_force_is_served_with_what_counts_against_it(watched):
    limits = {"bonn": 1.05 * EPSILON, "ulm": 4 * EPSILON, "kiel": EPSILON}
    for name, limit in limits.items():
        found = samples(watched.metrics[name])
        assert found["ledger_epsilon_limit",] == limit
        assert EPSILON * 0.99 < found["ledger_epsilon_spent",] <= EPSILON * (1 + 1e-9)


@needs_promtool
def test_prometheus_s_tool_finds_no_fault_in_what_a_node_serves(watched):
    text = fetch(watched.metrics["bonn"], "/metrics")[1]
    done = subprocess.run(["promtool", "check", "metrics"], input=text.encode(), check=True)
    assert done.returncode == 0


# dashboard, alerts and documentation


def expressions():
    """Every query of the dashboard and of the alerts."""
    dashboard = json.loads(DASHBOARD.read_text())
    found = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    rules = yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"]
    return found, [rule["expr"] for rule in rules]


def test_every_metric_of_the_dashboard_and_the_alerts_is_one_that_nodes_serve(watched):
    served = {f"decor_{name}" for name, *_ in samples(watched.metrics["bonn"])}
    queries = "\n".join([DASHBOARD.read_text(), *expressions()[1]])
    used = set(re.findall(r"decor_\w+", queries))
    assert len(used) > 20 and used <= served


def test_the_page_about_deployment_lists_exactly_the_metrics_that_nodes_serve(watched):
    text = fetch(watched.metrics["bonn"], "/metrics")[1]
    page = (ROOT / "docs" / "deploy.md").read_text()
    listed = re.findall(r"^\| `(decor_(?!relay_)\w+)", page, flags=re.M)
    assert sorted(listed) == sorted(re.findall(r"^# TYPE (\w+)", text, flags=re.M))


def test_the_dashboard_can_be_imported():
    """As Grafana 10 and later read it: no id of another server, no data source of ours."""
    dashboard = json.loads(DASHBOARD.read_text())
    assert dashboard["id"] is None and dashboard["uid"] and dashboard["schemaVersion"] >= 36
    variables = {each["name"]: each for each in dashboard["templating"]["list"]}
    assert variables.keys() == {"datasource", "federation", "user"}
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (place["x"] + column, place["y"] + row)
            for column in range(place["w"])
            for row in range(place["h"])
        }
        assert not cells & taken and max(x for x, _ in cells) < 24, panel["title"]
        taken |= cells
        assert panel["title"] and panel["description"]
        for source in (panel, *panel["targets"]):
            assert source["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


def is_answered(port, query):
    """What a Prometheus answers to a query."""
    code, text = fetch(port, "/api/v1/query?" + urllib.parse.urlencode({"query": query}))
    assert code == 200, text
    return json.loads(text)["data"]["result"]


@needs_prometheus
def test_a_real_prometheus_answers_every_query_and_raises_the_alert_that_is_due(watched, tmp_path):
    """Configured as the page about deployment says."""
    page = (ROOT / "docs" / "deploy.md").read_text()
    (block,) = re.findall(r"^```yaml\n(.*?scrape_configs:.*?)^```", page, flags=re.M | re.S)
    config = yaml.safe_load(block)
    targets = [f"127.0.0.1:{port}" for port in watched.metrics.values()]
    config["scrape_configs"][0]["static_configs"] = [{"targets": targets}]
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    for file in config["rule_files"]:
        shutil.copy(ROOT / "deploy" / file, tmp_path / file)
    (port,) = free_ports(1)
    command = ["prometheus", f"--config.file={tmp_path / 'prometheus.yml'}", "--log.level=error"]
    command += [
        f"--storage.tsdb.path={tmp_path / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with subprocess.Popen(command) as prometheus:
        try:
            _check_prometheus(port)
        finally:
            prometheus.terminate()


def _check_prometheus(port):
    def is_up():
        try:
            return len(is_answered(port, "decor_step")) == 3
        except (OSError, AssertionError):
            return False

    until(is_up, "the first scrape of all three")
    for query in expressions()[0]:
        filled = query.replace("$federation", "trial").replace("$user", ".*")
        filled = filled.replace("$__rate_interval", "10s")
        assert "$" not in filled
        until(lambda asked=filled: is_answered(port, asked), f"an answer to {filled}")
    groups = json.loads(fetch(port, "/api/v1/rules")[1])["data"]["groups"]
    assert [rule["health"] for group in groups for rule in group["rules"]] == ["ok"] * 3

    def firing():
        alerts = json.loads(fetch(port, "/api/v1/alerts")[1])["data"]["alerts"]
        return [each for each in alerts if each["state"] == "firing"]

    alerts = until(lambda: len(found := firing()) == 2 and found, "two alerts")
    assert {each["labels"]["alertname"] for each in alerts} == {"DecorBudgetNearlySpent"}
    said = {each["labels"]["user"]: each["annotations"]["summary"] for each in alerts}
    assert re.fullmatch(r"95\.\d+% of the limit of bonn's ledger are spent", said["bonn"])
    # one run takes the whole of a federation's own epsilon: the next one will need an allowance
    assert re.fullmatch(r"(99\.\d+|100)% of the limit of kiel's ledger are spent", said["kiel"])


def series(name, values, user="bonn"):
    return {"series": f'{name}{{federation="heart",user="{user}"}}', "values": values}


SERIES = [
    series("decor_last_progress_timestamp_seconds", "0x60"),
    series("decor_done", "0x60"),
    # ulm is done, and kiel makes progress every minute
    series("decor_last_progress_timestamp_seconds", "0x60", "ulm"),
    series("decor_done", "1x60", "ulm"),
    series("decor_last_progress_timestamp_seconds", "0+60x60", "kiel"),
    series("decor_done", "0x60", "kiel"),
    # more than nine tenths from the tenth minute on
    series("decor_ledger_epsilon_spent", "8.9x9 9.1x60"),
    series("decor_ledger_epsilon_limit", "10x60"),
    series("decor_ledger_epsilon_spent", "8.9x60", "ulm"),
    series("decor_ledger_epsilon_limit", "10x60", "ulm"),
    # for one minute, which passes; from the twentieth on for good
    series("decor_noise_left_ratio", "1x9 7x0 1x8 7x60"),
    series("decor_noise_left_ratio", "1.9x60", "ulm"),
]
FIRING = {
    "DecorStalled": {14: [], 15: [], 16: ["bonn"], 59: ["bonn"]},
    "DecorBudgetNearlySpent": {9: [], 10: ["bonn"], 59: ["bonn"]},
    "DecorNoiseLeft": {10: [], 15: [], 20: [], 24: [], 25: ["bonn"], 59: ["bonn"]},
}
"""Alert -> minute -> users for whom it fires."""


@needs_promtool
def test_alerts_fire_when_they_should_and_not_before(tmp_path):
    rules = {
        rule["alert"]: rule for rule in yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"]
    }
    assert rules.keys() == FIRING.keys()
    labels = {
        alert: {"federation": "heart", "severity": rule["labels"]["severity"]}
        for alert, rule in rules.items()
    }
    summaries = {
        "DecorStalled": "bonn has made no progress in heart for {minute}m 0s",
        "DecorBudgetNearlySpent": "91% of the limit of bonn's ledger are spent",
        "DecorNoiseLeft": "noise of bonn in heart is 7 x planned",
    }
    tests = [
        {
            "eval_time": f"{minute}m",
            "alertname": alert,
            "exp_alerts": [
                {
                    "exp_labels": labels[alert] | {"user": user},
                    "exp_annotations": {
                        "summary": summaries[alert].format(minute=minute),
                        "description": rules[alert]["annotations"]["description"],
                    },
                }
                for user in users
            ],
        }
        for alert, times in FIRING.items()
        for minute, users in times.items()
    ]
    group = {"interval": "1m", "input_series": SERIES, "alert_rule_test": tests}
    whole = {"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": [group]}
    (tmp_path / "test.yml").write_text(json.dumps(whole))
    for command in (["check", "rules", ALERTS], ["test", "rules", tmp_path / "test.yml"]):
        done = subprocess.run(["promtool", *command], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


# logs


def test_a_log_of_json_has_one_object_per_event(trial):
    one = trial(users=3, steps=4)
    one.start("ulm", "kiel")
    one.start("bonn", more=["--log-format", "json"])
    one.finished()
    events = [json.loads(line) for line in one.log("bonn").splitlines()]
    assert all(list(each)[:3] == ["time", "user", "event"] for each in events)
    assert {each["user"] for each in events} == {"bonn"}
    (finished,) = [each for each in events if each["event"] == "finished"]
    assert finished["steps"] == 4
    connected = {each["neighbour"] for each in events if each["event"] == "connected"}
    assert connected == {"ulm", "kiel"}
    with pytest.raises(ValueError):
        json.loads(one.log("ulm").splitlines()[0])


def ignores_hangups(pid):
    """Whether a process ignores SIGHUP, by what the system says."""
    mask = re.search(r"^SigIgn:\s*(\w+)$", Path(f"/proc/{pid}/status").read_text(), flags=re.M)
    return bool(int(mask[1], 16) >> (signal.SIGHUP - 1) & 1)


def test_a_log_that_was_renamed_is_begun_anew_and_no_line_is_lost(trial):
    """Of the command itself, also while it is still loading."""
    one = trial(users=3, steps=20_000, pace=0.02)
    log, old = one.path("bonn", "log"), one.folder / "bonn.log.1"
    one.start("bonn", real=True)
    until(lambda: ignores_hangups(one.pids["bonn"]), "a process that may be told to reopen its log")
    one.signal("bonn", signal.SIGHUP)
    one.start("ulm", "kiel")
    one.reached("bonn", 2)
    until(lambda: not ignores_hangups(one.pids["bonn"]))
    before = one.log("bonn")
    os.rename(log, old)
    one.signal("bonn", signal.SIGHUP)
    until(log.exists, "a new log")
    one.kill("ulm")
    one.logged("bonn", "event=lost neighbour=ulm")
    assert old.read_text() == before and "event=connected" in before
    one.signal("bonn", signal.SIGTERM)
    assert one.ended("bonn") == 130 and "event=stopped" in one.log("bonn")


def test_a_log_that_cannot_be_reopened_goes_on_where_it_is(trial):
    one = trial(users=3, steps=20_000, pace=0.02)
    logs = one.folder / "logs"
    logs.mkdir()
    one.places["bonn", "log"] = logs
    one.start("bonn")
    until(lambda: one.status("bonn"))
    logs.rename(one.folder / "moved")
    one.signal("bonn", signal.SIGHUP)
    moved = one.folder / "moved" / "bonn.log"
    until(lambda: 'event="log not reopened" why="No such file' in moved.read_text())
    one.signal("bonn", signal.SIGTERM)
    assert one.ended("bonn") == 130 and "event=stopped" in moved.read_text()


def test_without_a_file_a_hangup_ends_the_node_as_before(trial):
    one = trial(users=3, steps=20_000)
    one.make_ledger("bonn")
    words = one.arguments("bonn")
    at = words.index("--log")
    command = [sys.executable, "-m", "decor", *words[:at], *words[at + 2 :]]
    # not as it was inherited: nohup has it ignored
    inherited = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    with subprocess.Popen(command, stderr=subprocess.PIPE) as node:
        try:
            signal.signal(signal.SIGHUP, inherited)
            until(lambda: one.status("bonn"))
            node.send_signal(signal.SIGHUP)
            assert node.wait(240) == -signal.SIGHUP
            assert b"event=paused" in node.stderr.read()
        finally:
            node.kill()
