"""`decor audit` as people and scripts meet it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import decor
from decor.errors import AuditFailed, InputError
from decor.results import audit_section
from decor.training import channel

COMMAND = [str(Path(sys.executable).parent / "decor")]
SMALL = ["--canaries", 6000, "--audit-steps", 4]


def test_a_described_plan_is_audited(here, tmp_path):
    said = here(
        "audit",
        "--users",
        5,
        "--epsilon",
        3,
        "--adversary",
        "curious",
        *SMALL,
        "--plot",
        "audit.svg",
    ).stdout
    assert (
        "PASS" in said
        and "eavesdropper" in said
        and "everyone" in said
        and "39 of 39 checks" in said
    )
    assert (tmp_path / "audit.svg").read_text().startswith("<?xml")


def test_the_json_of_an_audit_is_one_object_and_its_numbers_are_the_librarys(here):
    data = json.loads(
        here(
            "audit",
            "--topology",
            "path",
            "--users",
            3,
            "--sigma-cdp",
            2,
            "--sigma-cor",
            5,
            *SMALL,
            "--json",
        ).stdout
    )
    plan = decor.NoisePlan(
        decor.path(3), decor.Exposure(1.0, 1000), decor.Adversary.eavesdropper(), 2.0, 5.0
    )
    own = decor.audit(plan, canaries=6000, steps=4).to_json()
    assert {k: v for k, v in data.items() if k != "seconds"} == json.loads(
        json.dumps({k: v for k, v in own.items() if k != "seconds"})
    )
    assert data["passed"] and {row["adversary"] for row in data["adversaries"]} == {
        "eavesdropper",
        "curious",
        "everyone",
    }


def test_a_failure_is_exit_code_one_and_says_who_learns_what(here, monkeypatch):
    draw = channel.Sparse.noise
    monkeypatch.setattr(
        channel.Sparse,
        "noise",
        lambda self, to, alpha, step, threads=1: draw(self, to, alpha, 0, threads),
    )
    done = here("audit", "--users", 5, "--epsilon", 3, *SMALL, check=1)
    assert (
        "FAIL" in done.stdout and "more of user" in done.stderr and "Traceback" not in done.stderr
    )
    data = json.loads(here("audit", "--users", 5, "--epsilon", 3, *SMALL, "--json", check=1).stdout)
    assert not data["passed"] and data["failures"] and data["statement"].startswith("FAIL")


def test_a_saved_plan_and_a_run_are_audited_and_the_run_keeps_the_outcome(here, tmp_path):
    here("plan", "--users", 5, "--epsilon", 3, "--steps", 20, "--save", "plan.json")
    assert "PASS" in here("audit", "plan.json", *SMALL).stdout
    here(
        "train",
        "--task",
        "breast-cancer",
        "--plan",
        "plan.json",
        "--learning-rate",
        0.1,
        "--output",
        "run",
    )
    assert 'id="audit-title"' not in (tmp_path / "run" / "report.html").read_text()
    assert "wrote run/report.html" in here("audit", "run", *SMALL).stdout
    assert 'id="audit-title"' in (tmp_path / "run" / "report.html").read_text()
    assert audit_section.saved(tmp_path / "run", decor.NoisePlan.load(tmp_path / "plan.json"))[
        "passed"
    ]
    here("report", "run", "--output", "page.html")
    page = (tmp_path / "page.html").read_text()
    assert 'id="audit-title"' in page and "PASS" in page


def test_a_private_run_is_audited_as_one(here, tmp_path):
    said = here("audit", "--users", 5, "--epsilon", 3, "--seed", "secret", *SMALL).stdout
    assert (
        "PASS" in said
        and "vectorised, private" in said
        and "Last bits of messages, vectorised, private: looked at." in said
    )
    assert "not claimed: a simulation" in here("audit", "--users", 5, "--epsilon", 3, *SMALL).stdout
    ask = [
        "--task",
        "breast-cancer",
        "--users",
        5,
        "--epsilon",
        3,
        "--steps",
        8,
        "--learning-rate",
        0.1,
    ]
    here("train", *ask, "--seed", "secret", "--output", "run")
    data = json.loads(here("audit", "run", *SMALL, "--json").stdout)
    assert data["passed"] and list(data["last_bits"]) == ["vectorised, private"]
    assert {"support", "low bits", "entropy"} <= {check["name"] for check in data["checks"]}
    # what was private can be simulated on demand
    assert "not claimed" in here("audit", "run", *SMALL, "--seed", 3).stdout
    refused = here(
        "audit", "--users", 5, "--engine", "process-group", "--seed", "secret", check=2
    ).stderr
    assert "--engine vectorised --seed secret" in refused


@pytest.mark.slow
def test_a_federation_is_audited_with_real_peers_and_a_group_with_real_processes(tmp_path):
    def run(*words):
        done = subprocess.run(
            [*COMMAND, *map(str, words)], cwd=tmp_path, capture_output=True, text=True, timeout=240
        )
        assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
        return done.stdout

    run(
        "federation",
        "new",
        "--task",
        "breast-cancer",
        "--users",
        3,
        "--epsilon",
        10,
        "--steps",
        6,
        "--output",
        "trial",
    )
    said = run("audit", "trial/federation.toml", *SMALL)
    assert "peers" in said and "PASS" in said and "4 of 6 steps" in said
    data = json.loads(
        run("audit", "--users", 5, "--engine", "process-group", "--processes", 2, *SMALL, "--json")
    )
    assert data["passed"] and {row["engine"] for row in data["adversaries"]} == {"process-group"}
    assert not list(tmp_path.glob("**/*.witness"))


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["nowhere.json"], "cannot be read"),
        (["nowhere.toml"], "cannot be read"),
        (["--canaries", 5], "canaries"),
        (["--sigma-cdp", 1], "both --sigma-cdp and --sigma-cor"),
        (["--epsilon", 3, "--sigma-cdp", 1, "--sigma-cor", 1], "both --sigma-cdp and --sigma-cor"),
        (["--processes", 2], "process-group"),
        (["--engine", "process-group", "--processes", 99], "from 1 to the 16 users"),
        (["--confidence", 2], "confidence"),
        (["--delta", 0], "delta must lie strictly between 0 and 1"),
        (["--adversary", "average-only"], "no adversary of DECOR"),
    ],
)
def test_what_cannot_be_meant_is_said_in_one_sentence(here, words, hint):
    assert hint in here("audit", *words, check=2).stderr


def test_a_hostile_outcome_in_a_folder_becomes_text_or_a_sentence(here, tmp_path):
    here(
        "train",
        "--task",
        "breast-cancer",
        "--users",
        4,
        "--epsilon",
        10,
        "--steps",
        4,
        "--learning-rate",
        0.1,
        "--output",
        "run",
    )
    here("audit", "run", "--canaries", 3000, "--audit-steps", 2)
    path = tmp_path / "run" / "audit.json"
    data = json.loads(path.read_text())
    evil = "</section><script>alert(1)</script>"
    data["statement"], data["adversaries"][0]["adversary"] = evil, evil
    path.write_text(json.dumps(data))
    here("report", "run", "--output", "page.html")
    assert "<script>alert" not in (tmp_path / "page.html").read_text()
    for broken in ("[]", "{", '{"adversaries": 3}', '{"adversaries": [{}]}'):
        path.write_text(broken)
        with pytest.raises(InputError, match="run decor audit again"):
            audit_section.saved(tmp_path / "run", decor.Run.load(tmp_path / "run").plan)
        here("report", "run", "--output", "page.html", check=2)


@pytest.fixture
def run(here, tmp_path):
    arguments = [
        "--task",
        "least-squares",
        "--users",
        4,
        "--steps",
        4,
        "--learning-rate",
        0.1,
        "--epsilon",
        3,
    ]
    here("train", *arguments, "--output", "run")
    return tmp_path / "run"


@pytest.mark.filterwarnings("default:.*another plan")
def test_an_audit_is_beside_its_run_and_not_beside_the_next(run, here, tmp_path):
    for _ in range(2):
        here("audit", "run", "--canaries", 3000, "--audit-steps", 2)
    here("report", "run", "--output", "page.html")
    assert "Audit</h2>" in (tmp_path / "page.html").read_text()
    decor.Run.load(run).plan.scaled(0.01).save(run / "plan.json")
    assert "another plan" in here("report", "run", "--output", "page.html").stderr
    assert "Audit</h2>" not in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize("engine", ["x", {"name": "banana"}, None, 3])
def test_a_run_of_an_unknown_engine_is_refused_unless_one_is_said(run, here, engine):
    manifest = json.loads((run / "manifest.json").read_text())
    (run / "manifest.json").write_text(json.dumps(manifest | {"engine": engine}))
    assert (
        "--engine" in here("audit", "run", "--canaries", 3000, "--audit-steps", 2, check=2).stderr
    )
    here("audit", "run", "--engine", "vectorised", "--canaries", 3000, "--audit-steps", 2)


@pytest.fixture
def engines(monkeypatch):
    """The engines that audits are asked of, each of which finds nothing."""
    asked = []

    def audit(plan, *, engine, **_):
        asked.append(engine)
        raise AuditFailed("asked")

    monkeypatch.setattr(decor, "audit", audit)
    return asked


def test_a_run_is_audited_with_its_own_numbers(run, here, tmp_path, engines):
    manifest = json.loads((run / "manifest.json").read_text())
    for name in ("vectorised", "process-group", "peers"):
        for dtype in ("float32", "float64"):
            told = manifest | {"engine": {"name": name, "dtype": dtype}}
            (run / "manifest.json").write_text(json.dumps(told))
            # of processes each is asked by itself
            words = ["--engine", "vectorised"] if name == "process-group" else []
            here("audit", "run", *words, check=1)
            assert engines[-1].dtype == dtype and type(engines[-1]).__name__ == (
                "Peers" if name == "peers" else "Vectorised"
            )
    (run / "manifest.json").write_text(
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
def test_a_run_of_a_card_is_audited_on_one_or_says_that_there_is_none(
    run, here, monkeypatch, engines
):
    from decor.training import vectorised

    manifest = json.loads((run / "manifest.json").read_text())
    engine = manifest["engine"] | {"device": "cuda", "tf32": True}
    (run / "manifest.json").write_text(json.dumps(manifest | {"engine": engine}))

    def absent(device):
        if device != "cpu":
            raise InputError(f"device {device!r} needs an NVIDIA card")

    monkeypatch.setattr(vectorised, "check_device", absent)
    said = here("audit", "run", check=1).stderr
    assert (
        "the run was trained on cuda, and is audited on cpu: device 'cuda' needs an NVIDIA card"
    ) in said
    assert "warning" not in here("audit", "run", "--device", "cpu", check=1).stderr
    assert [(each.device, each.tf32) for each in engines] == [("cpu", False)] * 2
    monkeypatch.setattr(vectorised, "check_device", lambda device: None)
    here("audit", "run", check=1)
    here("audit", "run", "--device", "cpu", check=1)
    assert [(each.device, each.tf32) for each in engines[2:]] == [("cuda", True), ("cpu", False)]


def test_numbers_of_double_precision_are_attacked_too(here, tmp_path):
    task = decor.tasks.least_squares(users=4)
    plan = decor.calibrate(
        decor.ring(4), decor.Exposure(1.0, 4), decor.Adversary.curious(), decor.Budget(3.0, 1e-5)
    )
    decor.train(task, plan, learning_rate=0.1, engine=decor.Vectorised(dtype="float64")).save(
        tmp_path / "run"
    )
    assert "PASS" in here("audit", "run", "--canaries", 3000, "--audit-steps", 2).stdout


@pytest.mark.parametrize("name", ["audit.docx", "audit", "audit.pgf"])
def test_a_picture_that_cannot_be_drawn_is_refused_before_the_audit(here, engines, name):
    said = here("audit", "--users", 5, "--plot", name, check=2).stderr
    assert (
        f"{name!r} cannot be written: its name must end in one of " in said
        and ".pdf, .png, " in said
        and engines == []
    )
