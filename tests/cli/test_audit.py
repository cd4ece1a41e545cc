"""`decor audit`: plans, runs and federations are attacked."""

import json

import pytest

import decor
from decor.errors import AuditFailed, InputError
from decor.results import audit_summary
from decor.training import channel

from .commands import run

SMALL = "--canaries 6000 --audit-steps 4".split()


def test_a_plan_given_by_options_is_audited(here, tmp_path):
    line = "audit --users 5 --epsilon 3 --adversary curious --plot audit.svg"
    out = here(*line.split(), *SMALL).stdout
    assert "PASS" in out and "eavesdropper" in out and "everyone" in out
    assert "39 of 39 checks" in out
    assert (tmp_path / "audit.svg").read_text().startswith("<?xml")


def without_time(audit):
    return {name: value for name, value in audit.items() if name != "seconds"}


def test_the_json_of_an_audit_is_that_of_the_library(ask):
    data = ask("audit --topology path --users 3 --sigma-cdp 2 --sigma-cor 5", *SMALL)
    exposure, eavesdropper = decor.Exposure(1.0, 1000), decor.Adversary.eavesdropper()
    plan = decor.NoisePlan(decor.path(3), exposure, eavesdropper, 2.0, 5.0)
    own = json.loads(json.dumps(decor.audit(plan, canaries=6000, steps=4).to_json()))
    assert without_time(data) == without_time(own) and data["passed"]
    adversaries = {row["adversary"] for row in data["adversaries"]}
    assert adversaries == {"eavesdropper", "curious", "everyone"}


def test_a_failure_is_exit_code_1_and_names_the_user(here, monkeypatch):
    """With the noise of step 0 in every step, differences of messages are free of noise."""
    draw = channel.SparseChannel.noise

    def repeated(self, to, alpha, step, threads=1):
        draw(self, to, alpha, 0, threads)

    monkeypatch.setattr(channel.SparseChannel, "noise", repeated)
    audit = [*"audit --users 5 --epsilon 3".split(), *SMALL]
    done = here(*audit, check=1)
    assert "FAIL" in done.stdout and "user" in done.stderr and "Traceback" not in done.stderr
    data = json.loads(here(*audit, "--json", check=1).stdout)
    assert not data["passed"] and data["failures"] and data["statement"].startswith("FAIL")


def test_a_saved_plan_and_a_run_are_audited_and_the_run_keeps_the_result(here, tmp_path):
    here(*"plan --users 5 --epsilon 3 --steps 20 --save plan.json".split())
    assert "PASS" in here("audit", "plan.json", *SMALL).stdout
    here(*"train --task breast-cancer --plan plan.json --learning-rate 0.1 --output run".split())
    assert 'id="audit-title"' not in (tmp_path / "run" / "report.html").read_text()
    assert "wrote run/report.html" in here("audit", "run", *SMALL).stdout
    assert 'id="audit-title"' in (tmp_path / "run" / "report.html").read_text()
    plan = decor.NoisePlan.load(tmp_path / "plan.json")
    assert audit_summary.load_audit(tmp_path / "run", plan).passed
    here(*"report run --output page.html".split())
    page = (tmp_path / "page.html").read_text()
    assert 'id="audit-title"' in page and "PASS" in page


def test_a_private_run_is_audited_as_one(here, tmp_path):
    private = here(*"audit --users 5 --epsilon 3 --seed secret".split(), *SMALL).stdout
    assert "PASS" in private and "Last bits of messages, vectorised, private: " in private
    simulated = here(*"audit --users 5 --epsilon 3".split(), *SMALL).stdout
    assert "Last bits of messages, vectorised: not claimed" in simulated
    ask = "--task breast-cancer --users 5 --epsilon 3 --steps 8 --learning-rate 0.1".split()
    here("train", *ask, *"--seed secret --output run".split())
    data = json.loads(here("audit", "run", *SMALL, "--json").stdout)
    assert data["passed"] and list(data["last_bits"]) == ["vectorised, private"]
    assert {"support", "low bits", "entropy"} <= {check["name"] for check in data["checks"]}
    # what was private can be simulated on demand
    assert "not claimed" in here("audit", "run", *SMALL, "--seed", 3).stdout
    refused = here(*"audit --users 5 --engine process-group --seed secret".split(), check=2).stderr
    assert "--engine vectorised --seed secret" in refused


@pytest.mark.slow
def test_a_federation_is_audited_with_real_peers_and_a_group_with_real_processes(tmp_path):
    def output(line):
        return run(*line.split(), *SMALL, cwd=tmp_path).stdout

    new = "federation new --task breast-cancer --users 3 --epsilon 10 --steps 6 --output trial"
    run(*new.split(), cwd=tmp_path)
    out = output("audit trial/federation.toml")
    assert "peers" in out and "PASS" in out and "4 of 6 steps" in out
    data = json.loads(output("audit --users 5 --engine process-group --processes 2 --json"))
    assert data["passed"] and {row["engine"] for row in data["adversaries"]} == {"process-group"}
    assert not list(tmp_path.glob("**/*.witness"))


BAD = [
    ("nowhere.json", "cannot be read"),
    ("nowhere.toml", "cannot be read"),
    ("--canaries 5", "canaries"),
    ("--sigma-cdp 1", "both --sigma-cdp and --sigma-cor"),
    ("--epsilon 3 --sigma-cdp 1 --sigma-cor 1", "both --sigma-cdp and --sigma-cor"),
    ("--processes 2", "process-group"),
    ("--engine process-group --processes 99", "from 1 to the 16 users"),
    ("--confidence 2", "confidence"),
    ("--delta 0", "delta must lie"),
    ("--adversary average-only", "not an adversary of DECOR"),
]


@pytest.mark.parametrize(("line", "words"), BAD, ids=[line for line, _ in BAD])
def test_bad_input_is_one_sentence_and_exit_code_2(here, line, words):
    assert words in here("audit", *line.split(), check=2).stderr


def test_a_hostile_audit_file_becomes_text_or_an_error(here, tmp_path):
    line = "train --task breast-cancer --users 4 --epsilon 10 --steps 4 --learning-rate 0.1"
    here(*line.split(), "--output", "run")
    here(*"audit run --canaries 3000 --audit-steps 2".split())
    path = tmp_path / "run" / "audit.json"
    data = json.loads(path.read_text())
    evil = "</section><script>alert(1)</script>"
    data["statement"], data["adversaries"][0]["adversary"] = evil, evil
    path.write_text(json.dumps(data))
    here(*"report run --output page.html".split())
    assert "<script>alert" not in (tmp_path / "page.html").read_text()
    for broken in ("[]", "{", '{"adversaries": 3}', '{"adversaries": [{}]}'):
        path.write_text(broken)
        with pytest.raises(InputError, match="run decor audit again"):
            audit_summary.load_audit(tmp_path / "run", decor.Run.load(tmp_path / "run").plan)
        here(*"report run --output page.html".split(), check=2)


@pytest.fixture
def folder(here, tmp_path):
    arguments = "--task least-squares --users 4 --steps 4 --learning-rate 0.1 --epsilon 3".split()
    here("train", *arguments, "--output", "run")
    return tmp_path / "run"


@pytest.mark.filterwarnings("default:.*different plan")
def test_an_audit_is_shown_with_its_run_and_not_with_the_next_one(folder, here, tmp_path):
    for _ in range(2):
        here(*"audit run --canaries 3000 --audit-steps 2".split())
    here(*"report run --output page.html".split())
    assert "Audit</h2>" in (tmp_path / "page.html").read_text()
    decor.Run.load(folder).plan.scaled(0.01).save(folder / "plan.json")
    assert "different plan" in here(*"report run --output page.html".split()).stderr
    assert "Audit</h2>" not in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize("engine", ["x", {"name": "banana"}, None, 3])
def test_a_run_of_an_unknown_engine_is_refused_unless_one_is_given(folder, here, engine):
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"engine": engine}))
    assert "--engine" in here(*"audit run --canaries 3000 --audit-steps 2".split(), check=2).stderr
    here(*"audit run --engine vectorised --canaries 3000 --audit-steps 2".split())


@pytest.fixture
def engines(monkeypatch):
    """The engines for which an audit was asked; the audit itself is left out."""
    asked = []

    def audit(plan, *, engine, **_):
        asked.append(engine)
        raise AuditFailed("asked")

    monkeypatch.setattr(decor, "audit", audit)
    return asked


def test_a_run_is_audited_with_its_own_precision(folder, here, tmp_path, engines):
    manifest = json.loads((folder / "manifest.json").read_text())
    for name in ("vectorised", "process-group", "peers"):
        for dtype in ("float32", "float64"):
            changed = manifest | {"engine": {"name": name, "dtype": dtype}}
            (folder / "manifest.json").write_text(json.dumps(changed))
            # process-group would start processes, which this test cannot see
            words = ["--engine", "vectorised"] if name == "process-group" else []
            here("audit", "run", *words, check=1)
            kind = decor.Peers if name == "peers" else decor.Vectorised
            assert engines[-1].dtype == dtype and type(engines[-1]) is kind
    (folder / "manifest.json").write_text(
        json.dumps(manifest | {"engine": {"name": "vectorised", "dtype": "float8"}})
    )
    assert "has the dtype 'float8'" in here("audit", "run", check=2).stderr
    words = (
        "--task breast-cancer --users 3 --epsilon 10 --steps 6 --dtype float64 --output trial"
    ).split()
    here("federation", "new", *words)
    here("audit", "trial/federation.toml", check=1)
    assert engines[-1] == decor.Peers(dtype="float64")


@pytest.mark.filterwarnings("default:.*audited on cpu")
def test_a_run_of_a_gpu_is_audited_on_a_gpu_or_warns_that_there_is_none(
    folder, here, monkeypatch, engines
):
    from decor.training import vectorised

    manifest = json.loads((folder / "manifest.json").read_text())
    engine = manifest["engine"] | {"device": "cuda", "tf32": True}
    (folder / "manifest.json").write_text(json.dumps(manifest | {"engine": engine}))

    def absent(device):
        if device != "cpu":
            raise InputError(f"device {device!r} needs an NVIDIA GPU")

    monkeypatch.setattr(vectorised, "check_device", absent)
    warned = here("audit", "run", check=1).stderr
    assert "audited on cpu: device 'cuda' needs an NVIDIA GPU" in warned
    assert "warning" not in here(*"audit run --device cpu".split(), check=1).stderr
    assert [(each.device, each.tf32) for each in engines] == [("cpu", False)] * 2
    monkeypatch.setattr(vectorised, "check_device", lambda device: None)
    here("audit", "run", check=1)
    here(*"audit run --device cpu".split(), check=1)
    assert [(each.device, each.tf32) for each in engines[2:]] == [("cuda", True), ("cpu", False)]


def test_a_run_of_short_operands_is_audited_with_them(folder, here, engines):
    manifest = json.loads((folder / "manifest.json").read_text())
    engine = manifest["engine"] | {"bf16": True}
    (folder / "manifest.json").write_text(json.dumps(manifest | {"engine": engine}))
    here("audit", "run", check=1)
    assert [each.bf16 for each in engines] == [True]


def test_double_precision_is_attacked_too(here, tmp_path):
    task = decor.tasks.least_squares(users=4)
    plan = decor.calibrate(
        decor.ring(4), decor.Exposure(1.0, 4), decor.Adversary.curious(), decor.Budget(3.0, 1e-5)
    )
    decor.train(task, plan, learning_rate=0.1, engine=decor.Vectorised(dtype="float64")).save(
        tmp_path / "run"
    )
    assert "PASS" in here(*"audit run --canaries 3000 --audit-steps 2".split()).stdout


def test_a_figure_that_cannot_be_drawn_is_refused_before_the_audit(here, engines):
    refused = here(*"audit --users 5 --plot audit.docx".split(), check=2).stderr
    assert "cannot be written" in refused and ".pdf, .png, " in refused and engines == []
