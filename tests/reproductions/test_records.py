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
        records.choose.cache_clear()
        yield seen
        records.choose.cache_clear()


def test_settings_are_chosen_on_the_other_data_set_alone(small):
    small.clear()
    rows = records.rows_of("mnist", ["central", "decor"], quick=False)
    assert set(small[: len(small) // 2]) >= {"fashion-mnist"}
    first = small.index("mnist")
    assert "fashion-mnist" not in small[first:], "nothing is tried once results are made"
    settings = records.choose("fashion-mnist", is_local=False)
    for row in rows:
        assert row["dataset"] == "MNIST" and row["seeds"] == 2 and row["momentum"] == 0.9
        assert row["clip"] == settings.clips[row["epsilon"]]
        assert row["averaging"] == settings.averaging
        assert row["accounted_epsilon"] <= row["epsilon"]
        tried = [line.split() for line in row["tried"].split("; ")]
        assert len(tried) == len(records.CLIPS) * len(records.AVERAGINGS)
        best = max(float(value) for a, _, value in tried if float(a) == row["averaging"])
        assert [float(row["clip"])] == [
            float(clip)
            for a, clip, value in tried
            if float(a) == row["averaging"] and float(value) == best
        ][:1]
    assert [r["method"] for r in rows] == ["central DP"] * 2 + ["DECOR ring"] * 2
    # designed gossip makes the two alike
    for central, ring in zip(rows[:2], rows[2:], strict=True):
        assert abs(central["value"] - ring["value"]) < 0.02


def test_local_dp_has_clips_of_its_own(small):
    (row, _) = records.rows_of("fashion-mnist", ["local"], quick=False)
    assert row["method"] == "local DP ring" and row["clip"] in records.LOCAL_CLIPS
    assert len(row["tried"].split("; ")) == len(records.LOCAL_CLIPS) * len(records.AVERAGINGS)


def test_averaging_is_chosen_over_all_epsilons_and_clips_for_each():
    tried = {
        1.0: {(0.0, 0.1): 0.8, (0.0, 0.2): 0.7, (0.5, 0.1): 0.75, (0.5, 0.2): 0.79},
        3.0: {(0.0, 0.1): 0.8, (0.0, 0.2): 0.9, (0.5, 0.1): 0.92, (0.5, 0.2): 0.91},
    }
    settings = records.best(tried)
    assert settings.averaging == 0.5 and settings.clips == {1.0: 0.2, 3.0: 0.1}
    assert settings.tried[1.0] == "0 0.1 0.8000; 0 0.2 0.7000; 0.5 0.1 0.7500; 0.5 0.2 0.7900"


def test_the_quick_variant_chooses_nothing(small):
    study = catalogue.study("records", quick=True)
    small.clear()
    (row, _) = study.cells[0].work(**study.cells[0].arguments)
    assert set(small) == {"mnist"} and row["seeds"] == 1 and row["tried"] == ""


def test_the_whole_study_has_both_data_sets_and_all_methods(small, tmp_path):
    study = catalogue.study("records")
    rows = running.run(study, tmp_path / "study", jobs=1)
    assert len(rows) == 2 * 3 * 2 and len(study.panels(rows)) == 2
    assert {r["dataset"] for r in study.published} == {"MNIST", "Fashion-MNIST"}
