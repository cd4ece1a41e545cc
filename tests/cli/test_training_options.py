"""The options of the task and of the training."""

import pytest

import decor


@pytest.mark.parametrize(
    "line",
    [
        "--task least-squares --gossip-rounds 4 --accelerate --final-gossip-rounds 8",
        "--task digits --momentum 0.5 --weight-decay 1e-4 --schedule cosine --shards dirichlet",
        "--task digits --unit example --batch-size 16 --schedule inverse-time:100",
        "--task breast-cancer --batch-size 8 --local-steps 3 --schedule pl:0.1:1 --shards by-label",
    ],
)
def test_every_embedded_task_and_every_option_trains(ask, tmp_path, line):
    common = "--users 8 --epsilon 10 --steps 5 --learning-rate 0.05 --output"
    answer = ask(f"train {line} {common}", tmp_path / "run")
    assert answer["steps_taken"] == 5 and answer["epsilon"] <= 10 and answer["stopped"] is None


def test_users_with_names_get_their_shards_by_name(ask, tmp_path):
    (tmp_path / "towns.txt").write_text("ulm bonn\nbonn kiel\nkiel ulm\n")
    line = "train --task breast-cancer --epsilon 10 --steps 5 --unit example --batch-size 8"
    paths = ["--graph", tmp_path / "towns.txt", "--output", tmp_path / "run"]
    ask(f"{line} --learning-rate 0.1", *paths)
    plan = decor.Run.load(tmp_path / "run").plan
    task = decor.tasks.breast_cancer(users=["ulm", "bonn", "kiel"])
    assert plan.exposure.records == task.records and str(plan.adversary) == "curious"
