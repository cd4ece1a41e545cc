"""A restart costs nothing: wherever a node is killed, the model is that of an uninterrupted run."""

import numpy as np
import pytest
from trial_federation import Trial

from decor.results.run import Run

STEPS, KILLED_AT, SEED = 6, 3, 7
POINTS = (
    *((point, 0) for point in ("before a gradient", "after a gradient", "before record")),
    ("after record", 0),
    *(
        (point, round_)
        for round_ in (0, 1)
        for point in ("before the first send", "between two sends", "while mixing")
    ),
)


def models(folder, fork_server, fault=None):
    """Each user's final model, and the trial; with quorum 1 nobody goes on without another."""
    folder.mkdir()
    with Trial(
        folder,
        fork_server,
        users=3,
        topology="complete",
        steps=STEPS,
        rounds=2,
        quorum=1.0,
        timeout=30.0,
        momentum=0.5,
        dtype="float64",
        proxied=False,
    ) as trial:
        for name in trial.names:
            own = fault if fault and name == "ulm" else {}
            trial.start(name, seed=SEED, **own)
        if fault:
            assert trial.ended("ulm") == -9
            trial.start("ulm", seed=SEED)
        for name in trial.names:
            code = trial.ended(name)
            # 4 would say that noise was left
            assert code == 0, (code, trial.log(name)[-1500:], trial.errors(name)[-1500:])
            assert "noise does not cancel" not in trial.log(name)
        trial.check()
        runs = [Run.load(trial.path(name, "run")) for name in trial.names]
        assert {run.manifest["steps_missed"] for run in runs} == {0}
        return [
            np.concatenate([value.numpy().ravel() for value in run.models.values()]) for run in runs
        ]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, fork_server):
    return models(tmp_path_factory.mktemp("whole") / "run", fork_server)


@pytest.mark.parametrize("point, round_", POINTS)
def test_a_killed_node_ends_with_the_model_of_an_uninterrupted_run(
    tmp_path, fork_server, uninterrupted, point, round_
):
    fault = {"kill": point, "step": KILLED_AT, "round": round_}
    for own, whole in zip(models(tmp_path / "run", fork_server, fault), uninterrupted, strict=True):
        np.testing.assert_allclose(own, whole, rtol=1e-9, atol=1e-9)
