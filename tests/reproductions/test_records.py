"""The study of records on small made-up data: whose settings are whose, and what rows say."""

import numpy as np
import pytest

import decor
from decor.reproductions import catalogue, records, running


def made_up(dataset):
    """Three classes around three points, in other places for each data set."""
    rng = np.random.default_rng(len(dataset))
    centres = rng.normal(size=(3, 8))

    def part(count):
        y = rng.integers(0, 3, count)
        X = centres[y] + rng.normal(size=(count, 8))
        return (X / np.linalg.norm(X, axis=1, keepdims=True)).astype(np.float32), y

    shards = [part(40) for _ in range(16)]
    model = decor.models.multinomial(8, 3)
    return decor.Task(model, decor.losses.cross_entropy, shards, test=part(500), test_public=True)


@pytest.fixture(scope="module")
def small():
    with pytest.MonkeyPatch.context() as patch:
        seen = []

        def task_of(dataset):
            seen.append(dataset)
            return made_up(dataset)

        patch.setattr(records, "task_of", task_of)
        patch.setattr(records, "STEPS", 4)
        patch.setattr(records, "BATCH", 8)
        patch.setattr(records, "EPSILONS", (1.0, 8.0))
        patch.setattr(records, "SEEDS", (0, 1))
        records.try_clips.cache_clear()
        yield seen
        records.try_clips.cache_clear()


def test_clips_are_chosen_on_the_other_data_set_alone(small):
    small.clear()
    rows = records.rows_of("mnist", ["central", "decor"], quick=False)
    first = small.index("mnist")
    assert set(small[:first]) == {"fashion-mnist"}
    assert "fashion-mnist" not in small[first:], "nothing is tried once results are made"
    tried = records.try_clips("fashion-mnist", is_local=False)
    for row in rows:
        assert row["dataset"] == "MNIST" and row["seeds"] == 2 and row["momentum"] == 0.9
        accuracies = tried[row["epsilon"]]
        assert tuple(accuracies) == records.CLIPS[row["epsilon"]]
        assert accuracies[row["clip"]] == max(accuracies.values()) <= 1
        assert row["accounted_epsilon"] <= row["epsilon"]
        pairs = [tuple(map(float, pair.split())) for pair in row["tried"].split("; ")]
        assert pairs == [(clip, pytest.approx(a, abs=1e-5)) for clip, a in accuracies.items()]
    assert [r["method"] for r in rows] == ["central DP"] * 2 + ["DECOR ring"] * 2
    # designed gossip makes the two alike
    for central, ring in zip(rows[:2], rows[2:], strict=True):
        assert abs(central["value"] - ring["value"]) < 0.02


def test_local_dp_has_clips_of_its_own(small):
    (row, _) = records.rows_of("fashion-mnist", ["local"], quick=False)
    clips = records.LOCAL_CLIPS[row["epsilon"]]
    assert row["method"] == "local DP ring" and row["clip"] in clips
    assert len(row["tried"].split("; ")) == len(clips)


def test_the_best_clip_is_the_one_of_the_largest_accuracy():
    assert records.best({0.1: 0.8, 0.2: 0.9, 0.3: 0.85}) == 0.2


def test_the_quick_variant_chooses_nothing(small):
    study = catalogue.study("records", quick=True)
    small.clear()
    (row, _) = study.cells[0].work(**study.cells[0].arguments)
    assert set(small) == {"mnist"} and row["seeds"] == 1 and "nan" in row["tried"]


def test_the_whole_study_has_both_data_sets_and_all_methods(small, tmp_path):
    study = catalogue.study("records")
    rows = running.run(study, tmp_path / "study", jobs=1)
    assert len(rows) == 2 * 3 * 2 and len(study.panels(rows)) == 2
    assert {r["dataset"] for r in study.published} == {"MNIST", "Fashion-MNIST"}
