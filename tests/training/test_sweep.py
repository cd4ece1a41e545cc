"""A sweep is its runs: a shared tensor changes results by rounding only, and the best is the best."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import decor
from decor import Adversary, Budget, Exposure, NoisePlan, Task, Vectorised, losses, models, schedule
from decor.errors import InputError
from decor.learning.gradients import dense_layers
from decor.training import descent, vectorised

USERS = 6
SIZES = (7, 4, 9, 5, 6, 8)


def shards(features, classes, sizes=SIZES):
    rng = np.random.default_rng(0)
    found = []
    for m in sizes:
        X = torch.from_numpy(rng.normal(size=(m, *features)).astype(np.float32))
        y = rng.integers(0, classes, m) if classes else rng.normal(size=(m, 1)).astype(np.float32)
        found.append((X, torch.from_numpy(y)))
    return found


def make(kind, sizes=SIZES):
    match kind:
        case "logistic":
            data = shards((4,), 2, sizes)
            return Task(models.logistic(4), losses.logistic, data, test=data[0])
        case "mlp":
            data = shards((4,), 3, sizes)
            return Task(
                models.mlp(4, 5, 3, activation="tanh"), losses.cross_entropy, data, test=data[0]
            )
        case "squares":
            model = nn.Linear(4, 1)
            nn.init.ones_(model.weight), nn.init.ones_(model.bias)
            return Task(model, losses.squared, shards((4,), 0, sizes))
        case "least-squares":
            return decor.tasks.least_squares(len(sizes), dimension=4)
        case "convolution":
            torch.manual_seed(0)
            model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Tanh(), nn.Flatten(), nn.Linear(8, 3))
            return Task(model, losses.cross_entropy, shards((1, 4, 4), 3, sizes))
    raise AssertionError(kind)


def exposure(task, unit, clip, steps=6, sampling="poisson"):
    more = (
        {"batch_size": 3, "records": task.records, "sampling": sampling}
        if unit == "example"
        else {}
    )
    return Exposure(clip, steps, unit=unit, **more)


def grid(task, unit="user", topology=None, steps=6):
    """Plans that differ in clip, noise pair and adversary."""
    topology = topology or decor.ring(task.users)
    pairs = [
        (0.1, 0.4, 0.5, Adversary.eavesdropper()),
        (0.3, 0.2, 0.05, Adversary.curious()),
        (0.05, 0.9, 2.0, Adversary.colluding(2)),
    ]
    return [
        NoisePlan(topology, exposure(task, unit, clip, steps), adversary, s, c, Budget(5.0, 1e-5))
        for s, c, clip, adversary in pairs
    ]


def sweep(task, plans, rates, seeds, **options):
    options = {"engine": Vectorised(dtype="float64"), "keep_models": True} | options
    return decor.sweep(task, plans, learning_rates=rates, seeds=seeds, **options)


def alone(task, setting, dtype, **options):
    engine = Vectorised(seed=setting.seed, dtype=dtype)
    return decor.train(
        task, setting.plan, learning_rate=setting.learning_rate, engine=engine, **options
    )


def same(task, swept, dtype="float64", some=None, **options):
    close = 1e-10 if dtype == "float64" else 1e-4
    assert len(swept.runs) == len(swept.settings)
    for k in range(len(swept.runs)) if some is None else some:
        setting, run = swept.settings[k], swept.runs[k]
        own = alone(task, setting, dtype, **options)
        assert (
            run.plan is setting.plan
            and run.steps_taken == own.steps_taken
            and run.stopped == own.stopped
        )
        assert (run.manifest["seed"], run.manifest["learning_rate"]) == (
            setting.seed,
            setting.learning_rate,
        )
        assert run.models.keys() == own.models.keys() and run.history.keys() == own.history.keys()
        for name, value in own.models.items():
            assert run.models[name].shape == value.shape
            assert (run.models[name] - value).abs().max() <= close * max(1.0, value.abs().max()), (
                k,
                name,
            )
        for name, values in own.history.items():
            assert np.allclose(run.history[name], values, rtol=10 * close, atol=10 * close), (
                k,
                name,
            )


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("unit", ["user", "example"])
@pytest.mark.parametrize("kind", ["logistic", "mlp", "squares", "convolution"])
def test_runs_batched_over_seeds_rates_clips_couples_and_adversaries_are_the_runs_alone(
    kind, unit, dtype
):
    task = make(kind)
    engine = Vectorised(dtype=dtype)
    swept = sweep(task, grid(task, unit), [0.05, 0.4], [3, 0, 8], engine=engine)
    assert len(swept.runs) == 18
    assert len({(id(s.plan), s.learning_rate, s.seed) for s in swept.settings}) == 18
    same(task, swept, dtype)
    ends = [torch.cat([v.flatten() for v in run.models.values()]) for run in swept.runs]
    assert all((a - b).abs().max() > 1e-5 for k, a in enumerate(ends) for b in ends[:k]), (
        "no two settings are one"
    )


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 3, "momentum": 0.8, "weight_decay": 0.2},
        {
            "gossip_rounds": 3,
            "accelerate": True,
            "final_gossip_rounds": 2,
            "schedule": schedule.InverseTime(3.0),
        },
        {"local_steps": 2, "batch_size": 2, "evaluate_every": 4},
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", ["logistic", "mlp", "squares"])
def test_batched_runs_with_every_option_are_the_runs_alone(kind, options):
    task = make(kind)
    swept = sweep(task, grid(task), [0.1, 0.3], [1, 2], **options)
    same(task, swept, **options)


@pytest.mark.parametrize("unit", ["user", "example"])
@pytest.mark.parametrize("topology", [decor.star(70), decor.ring(66), decor.complete(65)], ids=repr)
def test_batched_runs_on_large_graphs_are_the_runs_alone(topology, unit):
    task = make("logistic", (4,) * topology.users)
    swept = sweep(task, grid(task, unit, topology, 4), [0.1, 0.3], [1, 2])
    same(task, swept, some=range(0, 12, 3))


def test_a_plan_without_correlated_noise_has_the_same_numbers_beside_others():
    """Local DP beside DECOR on one graph: sharing a tensor must not change its results."""
    task = make("logistic")
    topology = decor.ring(USERS)
    plans = [
        NoisePlan(topology, Exposure(0.5, 5), Adversary.everyone(), s, c)
        for s, c in ((0.5, 0.0), (0.1, 0.8), (0.0, 0.0))
    ]
    same(
        task,
        sweep(task, plans, [0.3], [4, 5]),
    )


def test_edges_that_differ_keep_their_numbers_beside_plans_that_do_not():
    task = make("logistic")
    topology = decor.ring(USERS)
    c = np.random.default_rng(0).uniform(0.2, 1.0, USERS)
    noises = (c, 2 * c, c[::-1].copy(), 0.5, np.zeros(USERS))
    plans = [
        NoisePlan(topology, Exposure(0.5, 5), Adversary.eavesdropper(), 0.2, each)
        for each in noises
    ]
    same(
        task,
        sweep(task, plans, [0.3], [4, 5]),
    )


def test_many_settings_of_least_squares_are_the_runs_alone():
    task = make("least-squares")
    topology = decor.ring(USERS)
    plans = [
        NoisePlan(topology, Exposure(0.01 * 3**k, 5), Adversary.eavesdropper(), 0.1 * (k + 1), 0.3)
        for k in range(7)
    ]
    rates = [0.01 * (k + 1) for k in range(10)]
    swept = sweep(task, plans, rates, [0, 1, 2, 3])
    assert len(swept.runs) == 280
    same(task, swept, some=[0, 1, 69, 70, 127, 128, 129, 200, 255, 256, 279])


def test_plans_on_other_graphs_of_other_lengths_and_units_are_grouped_apart_and_all_run():
    task = make("logistic")
    plans = [
        *grid(task),
        *grid(task, topology=decor.star(USERS)),
        *grid(task, steps=9),
        *grid(task, "example"),
        NoisePlan(
            decor.ring(USERS),
            exposure(task, "example", 0.5, sampling="fixed"),
            Adversary.eavesdropper(),
            0.1,
            0.4,
        ),
        NoisePlan(decor.ring(USERS), Exposure(0.5, 6), Adversary(0, average_only=True), 0.3, 0.0),
    ]
    swept = sweep(task, plans, [0.2], [0, 1])
    assert {(id(s.plan), s.seed) for s in swept.settings} == {
        (id(plan), seed) for plan in plans for seed in (0, 1)
    }
    same(task, swept)
    for setting, run in zip(swept.settings, swept.runs, strict=True):
        assert run.steps_taken == setting.plan.exposure.steps == run.history["step"][-1]


@pytest.mark.parametrize("kind", ["logistic", "mlp", "least-squares"])
def test_grids_cut_to_fit_the_memory_are_the_same_grids(kind, monkeypatch):
    task = make(kind)
    plans = grid(task)
    swept = sweep(task, plans, [0.1, 0.3], [1, 2, 3])
    whole = {
        (id(s.plan), s.learning_rate, s.seed): run
        for s, run in zip(swept.settings, swept.runs, strict=True)
    }
    monkeypatch.setattr(descent, "_CPU_VALUES", 1)
    monkeypatch.setattr(dense_layers, "_REPEATED", 1)
    for fit in (1, 2, 3, 7):
        monkeypatch.setattr(vectorised, "IN_MEMORY", fit * task.users * task.parameters)
        cut = sweep(task, plans, [0.1, 0.3], [1, 2, 3])
        assert len(cut.runs) == 18
        for setting, run in zip(cut.settings, cut.runs, strict=True):
            other = whole[id(setting.plan), setting.learning_rate, setting.seed]
            assert all(
                (run.models[name] - other.models[name]).abs().max() < 1e-10 for name in run.models
            )


def test_runs_keep_their_models_only_if_asked():
    task = make("logistic")
    light = decor.sweep(task, grid(task)[:1], learning_rates=[0.1])
    kept = decor.sweep(task, grid(task)[:1], learning_rates=[0.1], keep_models=True)
    assert light.runs[0].models == {} and light.runs[0].velocity == {}
    assert (
        kept.runs[0].models["weight"].shape == (USERS, 1, 4)
        and light.runs[0].history == kept.runs[0].history
    )
    plan = light.settings[0].plan
    assert light.runs[0].guarantee.epsilon == plan.guarantee(0.999 * plan.budget.delta).epsilon


def test_the_best_is_the_candidate_with_the_best_mean_over_seeds():
    task = make("logistic")
    plans = grid(task)
    swept = decor.sweep(task, plans, learning_rates=[0.02, 0.3, 1.0], seeds=[0, 1, 2])
    for criterion, sign in (("loss", 1), ("test_loss", 1), ("consensus", 1), ("accuracy", -1)):
        means = {}
        for setting, run in zip(swept.settings, swept.runs, strict=True):
            means.setdefault((id(setting.plan), setting.learning_rate), []).append(
                run.history[criterion][-1]
            )
        means = {key: sum(values) / 3 for key, values in means.items()}
        best = swept.best(criterion)
        extreme = min(sign * value for value in means.values())
        assert (
            sign * best.value == pytest.approx(extreme, rel=1e-12) and best.criterion == criterion
        )
        assert means[id(best.plan), best.learning_rate] == pytest.approx(best.value, rel=1e-12)
        assert len(best.runs) == 3 and all(run.plan is best.plan for run in best.runs)
        assert all(run.manifest["learning_rate"] == best.learning_rate for run in best.runs)
        assert {run.manifest["seed"] for run in best.runs} == {0, 1, 2}
        assert [row[criterion] for row in best.tried] == pytest.approx(list(means.values()))
        assert "no epsilon here counts" in best.warning
    assert max(abs(a - b) for a in means.values() for b in means.values()) > 0.01, (
        "accuracies differ, so that the side matters"
    )
    only = swept.best("loss", plans[2:])
    assert only.plan is plans[2] and len(only.tried) == 3
    tuned = decor.tune(
        task, plans, learning_rates=[0.02, 0.3, 1.0], seeds=[0, 1, 2], criterion="accuracy"
    )
    assert tuned.value == swept.best("accuracy").value and tuned.plan is swept.best("accuracy").plan


@pytest.mark.parametrize("criterion", ["loss", "test_loss", "accuracy", "consensus"])
def test_what_diverged_never_wins_and_never_touches_its_neighbours(criterion):
    """All test labels are 0, which a model of NaNs predicts: its accuracy would be perfect."""
    X = torch.from_numpy(np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)) * 1e3
    task = Task(
        models.logistic(4),
        losses.logistic,
        [(X, torch.arange(6) // 5)] * USERS,
        test=(X, torch.zeros(6, dtype=torch.long)),
    )
    plans = [NoisePlan(decor.ring(USERS), Exposure(1e6, 8), Adversary.eavesdropper(), 0.3, 0.5)]
    swept = decor.sweep(task, plans, learning_rates=[1e36, 0.1], seeds=[0, 1], keep_models=True)
    ends = {s.learning_rate: run for s, run in zip(swept.settings, swept.runs, strict=True)}
    assert ends[1e36].stopped.startswith("diverged") and ends[0.1].stopped is None
    best = swept.best(criterion)
    assert best.learning_rate == 0.1 and math.isfinite(best.value)
    assert math.isnan(best.tried[0][criterion])
    own = decor.train(task, plans[0], learning_rate=0.1, engine=Vectorised(seed=1))
    assert (ends[0.1].models["weight"] - own.models["weight"]).abs().max() < 1e-4 * own.models[
        "weight"
    ].abs().max()


def test_sweeps_that_cannot_be_meant_are_refused():
    task = make("logistic")
    plans = grid(task)
    for options, said in (
        ({"plans": []}, "at least one plan"),
        ({"learning_rates": []}, "at least one"),
        ({"seeds": []}, "at least one"),
        ({"plans": [plans[0], plans[0]]}, "given twice"),
        ({"learning_rates": [0.1, 0.1]}, "given twice"),
        ({"seeds": [1, 2, 1]}, "given twice"),
        ({"seeds": [-1]}, "seed must be"),
        ({"learning_rates": [0.1, 0.0]}, "learning_rate must be"),
        ({"plans": [plans[0], grid(make("logistic", (4,) * 5))[0]]}, "for 5 users"),
        ({"batch_size": 5}, "shard of user 1"),
    ):
        given = {"plans": plans, "learning_rates": [0.1]} | options
        with pytest.raises(InputError, match=said):
            decor.sweep(task, given.pop("plans"), **given)
    swept = decor.sweep(task, plans, learning_rates=[0.1])
    with pytest.raises(InputError, match="no metric 'beauty'; choose one of loss"):
        swept.best("beauty")
    with pytest.raises(InputError, match="none of these plans"):
        swept.best("loss", [grid(task)[0]])
    assert decor.sweep(task, plans[0], learning_rates=[0.1]).runs[0].plan is plans[0], (
        "one plan needs no list"
    )


def test_a_run_that_ends_among_others_is_what_it_is_alone():
    """Its models are those of the steps taken when it stopped, not of the other runs' later steps."""
    task = decor.tasks.breast_cancer(users=4)
    plan = decor.calibrate(
        decor.ring(4),
        decor.Exposure(1.0, 30),
        decor.Adversary.eavesdropper(),
        decor.Budget(3.0, 1e-5),
    )
    swept = decor.sweep(
        task, [plan], learning_rates=[0.01, 1e19], keep_models=True, evaluate_every=5
    )
    with pytest.warns(decor.DivergenceWarning):
        alone = decor.train(task, plan, learning_rate=1e19, evaluate_every=5)
    ended = swept.runs[1]
    assert ended.stopped == alone.stopped and ended.steps_taken == alone.steps_taken == 5
    assert ended.guarantee.epsilon == alone.guarantee.epsilon == swept.runs[0].guarantee.epsilon
    assert all(
        torch.allclose(ended.models[name], alone.models[name], rtol=1e-4) for name in alone.models
    )


def test_auto_rounds_are_those_of_each_plan_in_runs_and_sweeps():
    task, adversary = make("logistic"), Adversary.curious()
    plans = [
        decor.calibrate(decor.ring(USERS), Exposure(1.0, 6), adversary, Budget(3.0, 1e-5), ratio=x)
        for x in (0.0, 30.0)
    ]
    rounds = [decor.gossip_for(plan).rounds for plan in plans]
    assert rounds[0] < rounds[1], "without edge noise fewer rounds are as good as averaging"
    swept = decor.sweep(
        task, plans, learning_rates=0.1, seeds=[0], keep_models=True, gossip_rounds="auto"
    )
    for plan, count in zip(plans, rounds, strict=True):
        how = {"gossip_rounds": count, "accelerate": "designed" if count > 1 else False}
        auto, explicit = (
            decor.train(task, plan, learning_rate=0.1, **options)
            for options in ({"gossip_rounds": "auto"}, how)
        )
        (own,) = [r for s, r in zip(swept.settings, swept.runs, strict=True) if s.plan is plan]
        for name, value in explicit.models.items():
            assert torch.equal(auto.models[name], value)
            assert torch.allclose(own.models[name], value, atol=1e-6)
        # a run says the number, so that it can be resumed and repeated
        assert auto.manifest["recipe"]["gossip"]["rounds"] == count


def test_sweeps_and_plans_are_short_and_are_tables_in_notebooks():
    graph = decor.from_edges(
        40, [(k, (k + 1) % 40) for k in range(40)], labels=[f"branch {k}" for k in range(40)]
    )
    example = decor.Exposure(
        clip=1.0,
        steps=3,
        unit="example",
        batch_size=2,
        records=dict.fromkeys(graph.labels, 20),
    )
    plan = NoisePlan(graph, example, decor.Adversary.curious(), (0.123456,) * 40, (0.2,) * 40)
    # rounded up: whoever copies the printed noise does not take less
    assert len(repr(plan)) < 300 and "sigma_cdp 0.1235" in repr(plan)
    assert "records of 40 users" in repr(plan.exposure) and "branch" not in repr(plan)
    assert "<td>sigma_cdp</td><td>0.1235</td>" in plan._repr_html_()
    assert len(repr(decor.Phases([plan] * 30))) < 400
    notebook = plan._repr_html_() + graph._repr_html_() + plan.exposure._repr_html_()
    assert "<td>records</td><td>20</td>" in notebook
    # no Python: fields by name, each in a row of its own
    assert "Exposure(" not in notebook and "None" not in notebook
    guarantee = plan.guarantee(1e-5)
    assert len(repr(guarantee)) < 120 and repr(guarantee).startswith("Guarantee(epsilon ")
    task = decor.tasks.breast_cancer(users=4)
    plans = [
        NoisePlan(decor.ring(4), decor.Exposure(1.0, 3), decor.Adversary.curious(), s, s)
        for s in (0.1, 0.2)
    ]
    grid = decor.sweep(task, plans, learning_rates=[0.1, 0.2, 0.3], seeds=[0, 1])
    assert repr(grid) == "Sweep(12 runs: 2 plans, 3 learning rates, 2 seeds)"
    assert grid._repr_html_().count("<tr>") == 7 and "<th>accuracy</th>" in grid._repr_html_()
    best = grid.best("accuracy")
    assert len(repr(best)) < 400 and repr(best).startswith("Tuned(accuracy 0.")
    first = best._repr_html_().split("<tr>")[2]
    assert f"<td>{best.learning_rate:g}</td><td>{best.value:.4g}</td>" in first
    run = best.runs[0]
    assert f"<td>accuracy</td><td>{run.metrics['accuracy']:.4g}</td>" in run._repr_html_()
