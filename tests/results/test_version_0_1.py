"""Run folders that version 0.1 wrote are read, and said to be what they are."""

import json
from pathlib import Path

import pytest
from packaging.version import Version

import decor
from decor.errors import InputError
from decor.training.manifest import versions

OLD = Path(__file__).parent.parent / "version_0_1"


@pytest.mark.parametrize("name", ["secret", "stopped"])
def test_a_folder_of_the_simulator_is_called_a_simulation_also_where_its_seed_was_called_secret(
    name, tmp_path
):
    """Version 0.1 promised privacy for floating-point noise of a 62-bit seed."""
    run = decor.Run.load(OLD / name)
    assert run.simulated and run.guarantee.simulated
    assert str(run.guarantee).startswith(
        "Simulation with a known seed. With secret noise this plan is (3.00"
    )
    with pytest.raises(InputError, match="this run is a simulation"):
        run.release(tmp_path / "out")
    assert not (tmp_path / "out").exists()
    run.save(tmp_path / "again")
    assert decor.Run.load(tmp_path / "again").simulated


def test_a_model_of_this_tree_is_told_from_one_of_0_1_by_its_version():
    old = json.loads((OLD / "secret" / "manifest.json").read_text())["versions"]["decor"]
    assert old == "0.1.0" and versions()["decor"] == decor.__version__
    assert Version(old) < Version(decor.__version__)


def test_a_folder_of_a_node_keeps_its_promise_and_can_be_released(tmp_path):
    """Its plan was made for 0.999 of the delta that the federation promised."""
    run = decor.Run.load(OLD / "bonn")
    assert run.plan.budget.delta == pytest.approx(9.99e-6) and not run.simulated
    assert run.guarantee.delta == pytest.approx(1e-5) and 9.99 < run.guarantee.epsilon <= 10
    assert run.guarantee.epsilon == run.plan.guarantee().epsilon
    run.release(tmp_path / "out")
    held = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert (
        "seconds" not in held
        and "steps_missed" not in held
        and set(held["task"]) == {"name", "users", "parameters"}
    )
    again = decor.Run.load(tmp_path / "out")
    assert str(again.guarantee) == str(run.guarantee) and not again.simulated


def test_the_whole_plans_epsilon_is_promised_for_a_run_that_had_stopped():
    run = decor.Run.load(OLD / "stopped")
    assert run.steps_taken == 3 and run.guarantee.epsilon == pytest.approx(3.0, rel=1e-3)
    assert (
        "the whole plan's; stopped after 3 of 6 steps (stopped by a callback after step 3)"
    ) in str(run.guarantee)
