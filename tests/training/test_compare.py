"""`decor.compare`: the same comparison as `decor compare`, of one's own task."""

import json

import numpy as np
import pandas as pd
import pytest
import torch

import decor
from decor.errors import InputError

torch.set_num_threads(1)
FAST = {"learning_rates": [0.5], "seeds": [0, 1], "exposure": decor.Exposure(clip=1.0, steps=5)}


def frame(records, seed=0):
    rng = np.random.default_rng(seed)
    age, ward = rng.uniform(0, 100, records), rng.choice(["a", "b"], records)
    ill = (age + 20 * (ward == "a") + rng.normal(0, 20, records) > 60).astype(int)
    return pd.DataFrame({"age": age, "ward": ward, "ill": ill})


def made(users=("bonn", "ulm", "kiel"), **more):
    columns = [decor.NumberColumn("age", 0, 100), decor.CategoryColumn("ward", ["a", "b"])]
    shards = {name: frame(20 + 5 * k, k) for k, name in enumerate(users)}
    label = decor.Label("ill", [0, 1])
    more = {"test": frame(50, 99), "label": label, "columns": columns, **more}
    return decor.Task(decor.models.logistic, decor.losses.logistic, shards, **more)


@pytest.fixture(scope="module")
def result():
    return decor.compare(made(), budgets=[3, 30], topologies=["complete"], **FAST)


def test_the_result_has_every_method_and_the_base_rate(result, tmp_path):
    text = str(result)
    for words in ("no privacy", "central DP", "DECOR complete", "local DP complete"):
        assert words in text
    labels = frame(50, 99).ill
    base = 100 * max(labels.mean(), 1 - labels.mean())
    assert result.report.base_rate == pytest.approx(base / 100)
    assert f"always the same guess        –       {base:.1f}" in text or f"{base:.1f}" in text
    assert "for the owner of the data only" in text
    # users have their names in the results
    assert result.report.graphs[0].labels == ("bonn", "ulm", "kiel")
    assert len(repr(result)) < 200 and "4 methods, epsilon 3, 30" in repr(result)


def test_the_picture_shows_the_base_rate_beside_the_methods(result, tmp_path):
    figure = result.plot(tmp_path / "cost.png")
    assert (tmp_path / "cost.png").read_bytes()[:4] == b"\x89PNG"
    (axis,) = figure.axes
    level = [line for line in axis.lines if line.get_label() == "always the same guess"]
    assert level[0].get_ydata()[0] == pytest.approx(100 * result.report.base_rate)
    low, high = axis.get_ylim()
    assert low < 100 * result.report.base_rate < high
    assert "always the same guess" not in [
        line.get_label() for line in result.plot(metric="test_loss").axes[0].lines
    ]


def test_a_notebook_shows_table_and_picture(result):
    html = result._repr_html_()
    assert "<td>DECOR complete</td>" in html and "data:image/png;base64," in html
    assert "always the same guess" in html and "for the owner of the data only" in html


def test_a_saved_comparison_is_a_comparison_of_the_command(result, tmp_path):
    page = result.save(tmp_path / "kept")
    assert "always the same guess" in page.read_text()
    manifest = json.loads((tmp_path / "kept" / "manifest.json").read_text())
    assert manifest["complete"] is True
    saved = decor.Run.load(tmp_path / "kept" / "runs" / "decor-complete-epsilon-3")
    assert saved.simulated and saved.guarantee.epsilon <= 3
    data = json.loads((tmp_path / "kept" / "report.json").read_text())
    assert data["base_rate"] == result.report.base_rate
    with pytest.raises(InputError, match="is not empty; name another folder"):
        result.save(tmp_path / "kept")


def test_a_comparison_in_a_folder_goes_on_where_it_stopped(tmp_path):
    task, options = made(), {"budgets": [3], "topologies": ["complete"], **FAST}
    first = decor.compare(task, folder=tmp_path / "c", **options)
    (tmp_path / "c" / "outcomes" / "central-dp.json").unlink()
    before = (tmp_path / "c" / "outcomes" / "no-privacy.json").stat().st_mtime_ns
    with pytest.raises(InputError, match="holds a comparison already"):
        decor.compare(task, folder=tmp_path / "c", **options)
    again = decor.compare(task, folder=tmp_path / "c", resume=True, **options)
    assert str(again) == str(first) and (tmp_path / "c" / "report.html").exists()
    assert (tmp_path / "c" / "outcomes" / "no-privacy.json").stat().st_mtime_ns == before


def test_own_metrics_are_compared_too():
    task = made(metrics={"found": lambda z, y: float(((z[:, 0] > 0) & (y == 1)).sum() / y.sum())})
    result = decor.compare(task, budgets=[30], topologies=["complete"], **FAST)
    assert "found" in str(result) and result.plot(metric="found").axes


def test_graphs_keep_their_names_and_take_the_users_of_the_task(tmp_path):
    ring = decor.ring(6)
    task = made([f"town{k}" for k in range(6)])
    graphs = {"a ring": ring, "all": decor.complete(6)}
    exposure = decor.Exposure(clip=1.0, steps=5, unit="example", batch_size=5, records=task.records)
    result = decor.compare(task, budgets=[3], topologies=graphs, **FAST | {"exposure": exposure})
    assert [graph.name for graph in result.report.graphs] == ["a ring", "all"]
    assert all(graph.labels == task.names for graph in result.report.graphs)
    # smaller shards are more exposed: each user's epsilon is of its own records
    users = next(o for o in result.report.outcomes if o.method == "DECOR a ring").per_user_epsilon
    assert users[0] == max(users)


def test_a_split_task_uses_the_numbers_of_the_graph():
    columns = [decor.NumberColumn("age", 0, 100)]
    task = decor.Task(
        decor.models.logistic,
        decor.losses.logistic,
        decor.split(frame(80), users=8),
        label="ill",
        columns=columns,
    )
    result = decor.compare(task, budgets=[3], **FAST)
    assert [graph.name for graph in result.report.graphs] == ["ring", "random-regular"]
    # without test data there is no base rate, and no accuracy beside which it would stand
    assert result.report.base_rate is None and "always the same" not in str(result)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"topologies": []}, "topologies has no graph"),
        ({"topologies": ["ring", "ring"]}, "one twice"),
        ({"topologies": ["moebius"]}, "unknown topology 'moebius'"),
        ({"topologies": [3]}, "must be a Topology, not 3"),
        ({"budgets": []}, "too few"),
        ({"engine": decor.Vectorised(seed=None)}, "choosing among private runs"),
        ({"topologies": [decor.ring(5)]}, "whom|users"),
    ],
)
def test_bad_input_is_one_sentence(options, said):
    with pytest.raises(InputError, match=said):
        decor.compare(made(), **{"budgets": [3], "topologies": ["complete"], **FAST, **options})


def test_a_task_is_needed():
    with pytest.raises(InputError, match="task must be a Task, not 'wine'"):
        decor.compare("wine")


def test_at_equal_communication_steps_and_rounds_are_chosen_for_each_method(tmp_path):
    exposure = decor.Exposure(clip=1.0, steps=999)
    chosen = decor.compare(
        made(("a", "b", "c", "d", "e", "f")),
        budgets=[10],
        topologies=["ring"],
        folder=tmp_path / "c",
        messages=24,
        **{**FAST, "exposure": exposure},
    )
    design = json.loads((tmp_path / "c" / "manifest.json").read_text())["design"]
    assert design["messages"] == 24
    took = {}
    for path in (tmp_path / "c" / "runs").iterdir():
        run = decor.Run.load(path)
        rounds = run.manifest["recipe"]["gossip"]["rounds"]
        took[path.name] = run.plan.exposure.steps * rounds
        assert rounds in (1, 2, 4, 8, 16) and run.plan.exposure.steps == 24 // rounds
        assert (run.manifest["recipe"]["gossip"]["accelerate"] == "designed") == (rounds > 1)
    # 16 rounds leave one step
    assert len(took) == 4 and all(16 <= messages <= 24 for messages in took.values())
    text = "".join(chosen.report.notes)
    assert "24 messages to each neighbour" in text and "DECOR ring at epsilon 10 took" in text
    assert "24 messages to each neighbour" in chosen.report.subtitle


def test_each_number_of_rounds_has_the_noise_of_its_own_steps():
    from decor.training.compare import Design

    design = Design(
        graphs=(("ring", decor.ring(6)),),
        epsilons=(3.0,),
        exposure=decor.Exposure(1.0, 7),
        couples=(1.0,),
        messages=40,
    )
    assert {steps: recipe.gossip_rounds for steps, recipe in design.steps.items()} == {
        40: 1, 20: 2, 10: 4, 5: 8, 2: 16,
    }  # fmt: skip
    ((_, plans),) = design.plans(design.methods()[2])
    for plan in plans:
        recipe = design.steps[plan.exposure.steps]
        expected = decor.calibrate(
            decor.ring(6),
            decor.Exposure(1.0, plan.exposure.steps),
            decor.Adversary.curious(),
            decor.Budget(3.0, 1e-5),
            gossip_rounds=recipe.gossip_rounds,
            accelerate=recipe.accelerate,
        )
        assert plan == expected
    assert len(plans) == 5
