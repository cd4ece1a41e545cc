"""Training as people meet it: real processes, real signals, folders that are whole whatever
happens.
"""

import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import decor

COMMAND = [str(Path(sys.executable).parent / "decor")]
TRAIN = [
    "train",
    "--task",
    "breast-cancer",
    "--topology",
    "ring",
    "--users",
    16,
    "--epsilon",
    10,
    "--delta",
    "1e-5",
]
TRAIN += ["--steps", 40, "--clip", 1, "--adversary", "eavesdropper", "--learning-rate", 0.1]
COMPARE = [
    "compare",
    "--epsilon",
    "3,30",
    "--topology",
    "ring",
    "--steps",
    20,
    "--learning-rate",
    "0.05,0.2",
    "--seeds",
    2,
]


def run(*arguments, check=0, **kwargs):
    done = subprocess.run(
        [*COMMAND, *map(str, arguments)], capture_output=True, text=True, timeout=240, **kwargs
    )
    assert done.returncode == check, done.stderr
    assert "Traceback" not in done.stderr
    return done


def start(*arguments):
    return subprocess.Popen(
        [*COMMAND, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def wait_for(path, process, seconds=120):
    end = time.monotonic() + seconds
    while not path.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, f"{path} did not appear"
        time.sleep(0.02)


def test_train_answers_as_the_library_does(tmp_path):
    answer = json.loads(run(*TRAIN, "--output", tmp_path / "run", "--json").stdout)
    task = decor.tasks.breast_cancer(users=16, seed=0)
    exposure = decor.Exposure(clip=1.0, steps=40)
    plan = decor.calibrate(
        decor.ring(16), exposure, decor.Adversary.eavesdropper(), decor.Budget(10.0, 1e-5)
    )
    own = decor.train(task, plan, learning_rate=0.1, engine=decor.Vectorised(seed=0))
    assert (
        answer["metrics"] == own.metrics
        and answer["epsilon"] == own.guarantee.epsilon
        and answer["steps_taken"] == 40
    )
    saved = decor.Run.load(tmp_path / "run")
    assert all(torch.equal(saved.models[name], own.models[name]) for name in own.models)
    assert saved.guarantee.epsilon == own.guarantee.epsilon <= 10
    assert (tmp_path / "run" / "report.html").stat().st_size > 10_000


def test_every_embedded_task_and_every_option_trains(here, tmp_path):
    for k, more in enumerate(
        (
            [
                "--task",
                "least-squares",
                "--gossip-rounds",
                4,
                "--accelerate",
                "--final-gossip-rounds",
                8,
            ],
            [
                "--task",
                "digits",
                "--momentum",
                0.5,
                "--weight-decay",
                1e-4,
                "--schedule",
                "cosine",
                "--shards",
                "dirichlet",
            ],
            [
                "--task",
                "digits",
                "--unit",
                "example",
                "--batch-size",
                16,
                "--schedule",
                "inverse-time:100",
            ],
            [
                "--task",
                "breast-cancer",
                "--batch-size",
                8,
                "--local-steps",
                3,
                "--schedule",
                "pl:0.1:1",
                "--shards",
                "by-label",
            ],
        )
    ):
        arguments = [
            "--users",
            8,
            "--epsilon",
            10,
            "--steps",
            5,
            "--learning-rate",
            0.05,
            "--output",
            tmp_path / str(k),
        ]
        answer = json.loads(here("train", *more, *arguments, "--json")[0])
        assert answer["steps_taken"] == 5 and answer["epsilon"] <= 10 and answer["stopped"] is None


def test_a_saved_plan_is_trained_as_it_is(here, tmp_path):
    here("plan", "--users", 16, "--epsilon", 3, "--steps", 20, "--save", tmp_path / "plan.json")
    arguments = [
        "--task",
        "breast-cancer",
        "--plan",
        tmp_path / "plan.json",
        "--learning-rate",
        0.1,
        "--output",
        tmp_path / "run",
    ]
    answer = json.loads(here("train", *arguments, "--json")[0])
    plan = decor.NoisePlan.load(tmp_path / "plan.json")
    assert (answer["sigma_cdp"], answer["steps_taken"]) == (plan.sigma_cdp, 20)
    assert answer["epsilon"] == plan.guarantee(0.999e-5).epsilon and answer["simulated"] is True
    assert answer["statement"].startswith(
        "Simulation with a known seed. With secret noise this plan is (3"
    )


def test_ctrl_c_leaves_a_whole_run_that_says_what_was_spent_and_resumes_to_the_same_end(
    here, tmp_path
):
    long = [
        *TRAIN[:-6],
        "--steps",
        10_000,
        "--clip",
        1,
        "--learning-rate",
        0.01,
        "--evaluate-every",
        50,
        "--momentum",
        0.5,
    ]
    process = start(*long, "--output", tmp_path / "run", "--checkpoint-every", 0.2)
    wait_for(tmp_path / "run" / "manifest.json", process)
    while not json.loads((tmp_path / "run" / "manifest.json").read_text())["steps_taken"]:
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130 and "Traceback" not in err
    stopped = decor.Run.load(tmp_path / "run")
    assert (
        0 < stopped.steps_taken < 10_000
        and "interrupted" in stopped.stopped
        and "--resume" in stopped.stopped
    )
    assert (
        stopped.guarantee.epsilon == pytest.approx(10, rel=1e-3)
        and stopped.guarantee.steps == 10_000
    )
    assert (
        f"the whole plan's; stopped after {stopped.steps_taken:,} of 10,000 steps (interrupted "
        "after step"
    ) in out
    here(*long, "--output", tmp_path / "run", "--resume")
    here(*long, "--output", tmp_path / "whole")
    resumed, whole = decor.Run.load(tmp_path / "run"), decor.Run.load(tmp_path / "whole")
    assert resumed.stopped is None and resumed.steps_taken == 10_000
    assert all(torch.equal(resumed.models[name], whole.models[name]) for name in whole.models)
    assert resumed.history == whole.history


def test_a_killed_run_leaves_its_last_checkpoint(tmp_path):
    long = [
        *TRAIN[:-6],
        "--steps",
        200_000,
        "--clip",
        1,
        "--learning-rate",
        0.01,
        "--evaluate-every",
        20,
    ]
    process = start(*long, "--output", tmp_path / "run", "--checkpoint-every", 0)
    wait_for(tmp_path / "run" / "manifest.json", process)
    time.sleep(0.3)
    process.kill()
    process.communicate()
    left = decor.Run.load(tmp_path / "run")
    assert left.stopped is not None and left.steps_taken % 20 == 0 and left.guarantee.epsilon < 10


def test_compare_writes_everything_and_says_it(tmp_path):
    done = run(*COMPARE, "--output", tmp_path / "c")
    for words in (
        "no privacy",
        "central DP",
        "DECOR ring",
        "local DP",
        "test accuracy",
        "SecLDP",
        "no epsilon here counts",
    ):
        assert words in done.stdout
    folder = tmp_path / "c"
    for name in (
        "report.html",
        "report.json",
        "manifest.json",
        "figures/privacy-utility.png",
        "figures/curves.svg",
    ):
        assert (folder / name).stat().st_size > 0
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["complete"] is True and len(manifest["finished"]) == 4
    rows = [
        json.loads(line)
        for path in (folder / "metrics").iterdir()
        for line in path.read_text().splitlines()
    ]
    assert {row["method"] for row in rows} == {
        "no privacy",
        "central DP",
        "DECOR ring",
        "local DP ring",
    }
    saved = decor.Run.load(folder / "runs" / "decor-ring-epsilon-3")
    assert saved.guarantee.epsilon <= 3 and saved.models["weight"].shape == (16, 1, 30)
    data = json.loads((folder / "report.json").read_text())
    best = {(o["method"], o["epsilon"]): sum(o["final"]["loss"]) for o in data["outcomes"]}
    assert best["no privacy", None] < best["central DP", 30] < best["local DP ring", 3]


def test_an_interrupted_comparison_goes_on_where_it_stopped(here, tmp_path):
    longer = [*COMPARE[:5], "--steps", 400, *COMPARE[7:]]
    process = start(*longer, "--output", tmp_path / "c")
    wait_for(tmp_path / "c" / "outcomes" / "no-privacy.json", process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130 and "--resume" in err and "Traceback" not in err
    manifest = json.loads((tmp_path / "c" / "manifest.json").read_text())
    assert manifest["complete"] is False and "no privacy" in manifest["finished"]
    assert "Interrupted" in (tmp_path / "c" / "report.html").read_text()
    first = (tmp_path / "c" / "outcomes" / "no-privacy.json").stat().st_mtime_ns
    assert "local DP" in here(*longer, "--output", tmp_path / "c", "--resume").stdout
    assert (tmp_path / "c" / "outcomes" / "no-privacy.json").stat().st_mtime_ns == first, (
        "what was finished is not done again"
    )
    here(*longer, "--output", tmp_path / "whole")
    for path in (tmp_path / "whole" / "outcomes").iterdir():
        assert path.read_text() == (tmp_path / "c" / "outcomes" / path.name).read_text()


def test_a_folder_is_never_overwritten_by_accident(here, tmp_path):
    small = [*COMPARE, "--output", tmp_path / "c"]
    here(*small)
    (tmp_path / "c" / "notes.txt").write_text("mine")
    assert "--resume" in here(*small, check=2)[1]
    other = here(*small[:-2], "--delta", "1e-6", "--output", tmp_path / "c", "--resume", check=2)[1]
    assert "delta: 1e-05, now 1e-06" in other
    here(*small, "--overwrite")
    assert (tmp_path / "c" / "notes.txt").read_text() == "mine"
    here(*TRAIN, "--output", tmp_path / "run")
    assert "--overwrite" in here(*TRAIN, "--output", tmp_path / "run", check=2)[1]
    here(*TRAIN, "--output", tmp_path / "run", "--overwrite")
    (tmp_path / "mine" / "runs").mkdir(parents=True)
    (tmp_path / "mine" / "manifest.json").write_text('{"name": "my web app"}')
    (tmp_path / "mine" / "runs" / "thesis.txt").write_text("precious")
    for command in (COMPARE, TRAIN):
        here(*command, "--output", tmp_path / "mine", "--overwrite", check=2)
    assert (tmp_path / "mine" / "runs" / "thesis.txt").exists() and "web app" in (
        tmp_path / "mine" / "manifest.json"
    ).read_text()
    assert (
        "nothing to resume" in here(*TRAIN, "--output", tmp_path / "none", "--resume", check=2)[1]
    )


def test_a_learning_rate_at_an_end_of_the_grid_is_warned_of_in_the_terminal_and_in_the_report(
    here, tmp_path
):
    ask = [
        "compare",
        "--epsilon",
        30,
        "--topology",
        "ring",
        "--steps",
        10,
        "--seeds",
        2,
        "--output",
        tmp_path / "c",
    ]
    out = here(*ask, "--learning-rate", "0.001,0.002")[0]
    said = (
        "no privacy took the largest learning rate of the grid, 0.002; a wider --learning-rate "
        "may serve it better."
    )
    assert f"- {said}" in out and said in (tmp_path / "c" / "report.html").read_text()
    assert "took the" not in here(*ask, "--learning-rate", 0.001, "--overwrite")[0], (
        "of one rate none is at an end"
    )


def test_the_usual_rates_go_on_beyond_their_ends_where_the_best_is_there(tmp_path, monkeypatch):
    from decor.training import compare

    monkeypatch.setattr(compare, "RATES", (0.01, 0.05))
    monkeypatch.setattr(
        compare, "BEYOND", {"smallest": (0.0001, 0.001), "largest": (0.2, 1.0, 1e4)}
    )
    task, graphs = decor.tasks.breast_cancer(users=4), (("ring", decor.ring(4)),)
    design = compare.Design(
        graphs, (0.5,), decor.Exposure(1.0, 10), learning_rates=(0.01, 0.05), seeds=(0, 1)
    )
    data = compare.Comparison(task, design, tmp_path / "usual").run()
    rates = {entry["method"]: entry["learning_rate"] for entry in data["outcomes"]}
    assert rates["no privacy"] == 1.0 and rates["local DP ring"] in (0.0001, 0.001), rates
    ends = [note for note in data["notes"] if "took the" in note]
    assert all("took the smallest" in note and "0.0001" in note for note in ends), (
        "1 has 10,000 above it"
    )
    assert data["tuning"]["grid"]["learning rate, if the best is the largest"] == [0.2, 1.0, 1e4]
    chosen = compare.Comparison(
        task, replace(design, learning_rates=(0.01, 0.02)), tmp_path / "chosen"
    ).run()
    assert {entry["learning_rate"] for entry in chosen["outcomes"]} <= {0.01, 0.02}, (
        "a grid that somebody chose is kept"
    )


def test_report_shows_saved_runs_beside_each_other(here, tmp_path):
    for epsilon in (3, 30):
        here(*TRAIN[:7], "--epsilon", epsilon, *TRAIN[9:], "--output", tmp_path / f"run-{epsilon}")
    out = here(
        "report", tmp_path / "run-3", tmp_path / "run-30", "--output", tmp_path / "both.html"
    )[0]
    assert "run-3" in out and "run-30" in out
    page = (tmp_path / "both.html").read_text()
    assert "run-30" in page and "(3, 1e-05)-SecLDP" in page


def test_tensorboard_gets_every_metric(here, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    here(*TRAIN, "--output", tmp_path / "run", "--tensorboard", tmp_path / "board")
    events = EventAccumulator(str(tmp_path / "board"))
    events.Reload()
    saved = decor.Run.load(tmp_path / "run")
    for name in ("loss", "accuracy", "consensus"):
        logged = [(e.step, e.value) for e in events.Scalars(name)]
        expected = list(zip(saved.history["step"], saved.history[name], strict=True))
        assert [step for step, _ in logged] == [step for step, _ in expected]
        assert [value for _, value in logged] == pytest.approx(
            [value for _, value in expected], rel=1e-6
        )


@pytest.mark.filterwarnings("default::decor.errors.DivergenceWarning")
def test_divergence_is_said_with_the_way_out(here, tmp_path):
    arguments = [*TRAIN[:-1], "1e30", "--output", tmp_path / "run"]
    done = here(*arguments)
    assert "diverged" in done.stdout and "lower the learning rate" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "--task", "nonsense", "--epsilon", 1, "--learning-rate", 1], "breast-cancer"),
        (["train", "--task", "breast-cancer", "--learning-rate", 1], "--epsilon"),
        (["train", "--task", "breast-cancer", "--epsilon", 1], "--learning-rate"),
        (
            ["train", "--task", "breast-cancer", "--epsilon", 1, "--learning-rate", -1],
            "learning_rate must be",
        ),
        (
            [
                "train",
                "--task",
                "breast-cancer",
                "--epsilon",
                1,
                "--learning-rate",
                1,
                "--users",
                500,
            ],
            "500",
        ),
        (
            [
                "train",
                "--task",
                "breast-cancer",
                "--epsilon",
                1,
                "--learning-rate",
                1,
                "--batch-size",
                64,
            ],
            "user 0",
        ),
        (
            [
                "train",
                "--task",
                "breast-cancer",
                "--epsilon",
                1,
                "--learning-rate",
                1,
                "--unit",
                "example",
            ],
            "--batch-size",
        ),
        (
            [
                "train",
                "--task",
                "breast-cancer",
                "--epsilon",
                1,
                "--learning-rate",
                1,
                "--records",
                3,
            ],
            "--records",
        ),
        (
            [
                "train",
                "--task",
                "breast-cancer",
                "--epsilon",
                1,
                "--learning-rate",
                1,
                "--engine",
                "magic",
            ],
            "magic",
        ),
        (
            [
                "train",
                "--task",
                "breast-cancer",
                "--epsilon",
                1,
                "--learning-rate",
                1,
                "--device",
                "cuda",
            ],
            "cpu",
        ),
        (
            [
                "train",
                "--task",
                "breast-cancer",
                "--epsilon",
                1,
                "--learning-rate",
                1,
                "--schedule",
                "sometimes",
            ],
            "cosine",
        ),
        (
            [
                "train",
                "--task",
                "breast-cancer",
                "--epsilon",
                1,
                "--learning-rate",
                1,
                "--momentum",
                1,
            ],
            "momentum",
        ),
        (
            ["train", "--task", "breast-cancer", "--plan", "no-such-file", "--learning-rate", 1],
            "no-such-file",
        ),
        (
            [
                "train",
                "--task",
                "breast-cancer",
                "--plan",
                "x",
                "--epsilon",
                1,
                "--learning-rate",
                1,
            ],
            "--epsilon",
        ),
        (["compare", "--epsilon", "1,x"], "number"),
        (["compare", "--epsilon", "-1"], "epsilon"),
        (["compare", "--topology", "ring,ring"], "twice"),
        (["compare", "--topology", "ring,moebius"], "moebius"),
        (["compare", "--seeds", 0], "--seeds"),
        (["compare", "--learning-rate", "0"], "learning_rate"),
        (["compare", "--resume"], "nothing to resume"),
        (["report", "no-such-run"], "no-such-run"),
    ],
    ids=lambda x: " ".join(map(str, x))[-60:] if isinstance(x, list) else "",
)
def test_bad_input_is_one_sentence_and_exit_code_2(here, arguments, words, tmp_path):
    more = [] if arguments[0] == "report" else ["--output", tmp_path / "out"]
    assert words in here(*arguments, *more, check=2).stderr


def test_a_graph_with_names_gets_its_shards_by_name(here, tmp_path):
    (tmp_path / "towns.txt").write_text("ulm bonn\nbonn kiel\nkiel ulm\n")
    arguments = [
        "train",
        "--task",
        "breast-cancer",
        "--graph",
        tmp_path / "towns.txt",
        "--epsilon",
        10,
        "--steps",
        5,
    ]
    arguments += [
        "--learning-rate",
        0.1,
        "--output",
        tmp_path / "run",
        "--unit",
        "example",
        "--batch-size",
        8,
        "--json",
    ]
    here(*arguments)
    plan = decor.Run.load(tmp_path / "run").plan
    task = decor.tasks.breast_cancer(users=["ulm", "bonn", "kiel"])
    assert plan.exposure.records == task.records and str(plan.adversary) == "curious"


def test_a_graph_in_parts_is_refused_unless_told_otherwise(here, tmp_path):
    (tmp_path / "parts.txt").write_text("0 1\n2 3\n")
    arguments = [
        "train",
        "--task",
        "breast-cancer",
        "--graph",
        tmp_path / "parts.txt",
        "--epsilon",
        10,
        "--steps",
        5,
    ]
    arguments += ["--adversary", "eavesdropper"]
    arguments += ["--learning-rate", 0.1, "--output", tmp_path / "run"]
    assert "allow_disconnected" in here(*arguments, check=2)[1]
    here(*arguments, "--allow-disconnected")
