"""What `train` and `sweep` refuse, and which shard goes with which user."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from small_tasks import USERS, make
from small_tasks import planned as plan_for

import decor
from decor import Adversary, Budget, Exposure, NoisePlan, Task, calibrate
from decor.errors import InputError

NAMES = ("ulm", "bonn", "kiel", "jena")
GRAPH = decor.from_edges(4, [(0, 1), (1, 2), (2, 3), (3, 0), (0, 2)])
TOWNS = replace(GRAPH, labels=NAMES)
BUDGET = Budget(10.0, 1e-5)


def held(sizes=(12, 30, 7, 19)):
    rng = np.random.default_rng(4)
    return {
        name: (rng.normal(size=(m, 3)).astype("f"), rng.integers(0, 2, m))
        for name, m in zip(NAMES, sizes, strict=True)
    }


def made(shards):
    return Task(decor.models.logistic(3), decor.losses.logistic, shards)


def planned(topology, exposure):
    return calibrate(topology, exposure, Adversary.curious(), BUDGET)


def trained(task, plan):
    return decor.train(task, plan, learning_rate=0.5, evaluate_every=plan.exposure.steps)


@pytest.mark.parametrize("unit", ["user", "example"])
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 1, 0, 2), (1, 2, 3, 0)])
def test_named_shards_are_matched_with_the_users_of_the_graph_by_name(unit, order):
    shards = held()
    task = made({NAMES[k]: shards[NAMES[k]] for k in order})
    assert task.names == tuple(NAMES[k] for k in order) and task.records == {
        name: len(X) for name, (X, _) in shards.items()
    }
    plain = made([shards[name] for name in NAMES])
    assert plain.names is None and plain.records == (12, 30, 7, 19) == plain.counts

    def exposure(records):
        return Exposure(1.0, 6) if unit == "user" else Exposure(1.0, 6, "example", 4, records)

    run = trained(task, planned(TOWNS, exposure(task.records)))
    same = trained(plain, planned(GRAPH, exposure(plain.records)))
    for name, models in same.models.items():
        assert torch.equal(run.models[name], models), (
            "the model of the user in the same place of the same graph"
        )
    assert run.manifest["task"]["records"] == [12, 30, 7, 19] and run.metrics == same.metrics


@pytest.mark.parametrize("unit", ["user", "example"])
def test_a_list_of_shards_for_named_users_is_refused_at_any_level(unit):
    shards, records = held(), {name: len(X) for name, (X, _) in held().items()}
    plan = planned(
        TOWNS, Exposure(1.0, 6) if unit == "user" else Exposure(1.0, 6, "example", 4, records)
    )
    said = (
        r'shards is a list, but the users of this graph have names .*write shards=\{"ulm": \(X, '
        r'y\), "bonn": \(X, y\), \.\.\.\}'
    )
    for ask in (
        trained,
        lambda task, plan: decor.sweep(task, [plan], learning_rates=[0.5], seeds=[0]),
    ):
        with pytest.raises(InputError, match=said):
            ask(made(list(shards.values())), plan)


def test_a_missing_or_unknown_user_is_refused_by_name():
    plan, shards = planned(TOWNS, Exposure(1.0, 6)), held()
    jena = shards.pop("jena")
    with pytest.raises(
        InputError,
        match="shards has nothing for jena; give one for every user of the graph, by name",
    ):
        trained(made(shards), plan)
    with pytest.raises(
        InputError, match="shards has nothing for jena and names Jena, whom the graph does not have"
    ):
        trained(made(shards | {"Jena": jena}), plan)
    with pytest.raises(InputError, match="shards names celle, whom the graph does not have"):
        trained(made(shards | {"jena": jena, "celle": jena}), plan)
    with pytest.raises(
        InputError,
        match=r"shards names users \(ulm, bonn, kiel, jena\), but "
        r"those of ring\(4\) have no names",
    ):
        trained(made(shards | {"jena": jena}), planned(decor.ring(4), Exposure(1.0, 6)))


def test_another_number_of_records_than_planned_is_refused_with_the_users_name():
    task = made(held())
    plan = planned(TOWNS, Exposure(1.0, 6, "example", 4, task.records | {"kiel": 8}))
    with pytest.raises(
        InputError,
        match=r"assumes 8 records for user kiel, who has 7, "
        r".*records=task\.records",
    ):
        trained(task, plan)


def test_a_sweep_over_graphs_that_name_their_users_in_another_order_is_refused():
    plans = [
        planned(replace(GRAPH, labels=names), Exposure(1.0, 6)) for names in (NAMES, NAMES[::-1])
    ]
    with pytest.raises(InputError, match="name their users differently, or in another order"):
        decor.sweep(made(held()), plans, learning_rates=[0.5], seeds=[0])
    for plan in plans:
        (run,) = decor.sweep(made(held()), [plan], learning_rates=[0.5], seeds=[0]).runs
        assert run.manifest["task"]["records"] == [
            len(held()[name][0]) for name in plan.topology.labels
        ]


def test_ready_made_tasks_know_their_users_by_name():
    for ready_made in (decor.tasks.breast_cancer, decor.tasks.digits, decor.tasks.least_squares):
        named, plain = ready_made(users=NAMES), ready_made(users=4)
        assert named.names == NAMES and named.counts == plain.records
        assert all(
            torch.equal(X, Z) for (X, _), (Z, _) in zip(named.shards, plain.shards, strict=True)
        )
    for users in ((), ("bonn", "bonn"), ("bonn", 3), "bonn", 2.5):
        with pytest.raises(InputError, match="users"):
            decor.tasks.breast_cancer(users=users)


def test_a_disconnected_graph_is_refused_unless_the_caller_says_otherwise():
    task = make("logistic")
    apart = decor.from_edges(USERS, [(0, 1), (1, 2), (3, 4), (4, 5)])
    with pytest.raises(
        InputError, match="2 parts that never hear of each other.*allow_disconnected=True"
    ):
        decor.train(task, plan_for(task, topology=apart), learning_rate=0.1)
    run = decor.train(
        task, plan_for(task, topology=apart), learning_rate=0.1, allow_disconnected=True
    )
    assert run.stopped is None
    plan = NoisePlan(apart, Exposure(1.0, 3), Adversary(0, average_only=True), 1.0, 0.0)
    assert decor.train(task, plan, learning_rate=0.1).metrics["consensus"] < 1e-12, (
        "a server hears everybody"
    )


def test_plans_and_recipes_that_do_not_fit_the_data_are_refused_by_user():
    task = make("logistic")
    other = list(task.records)
    other[3] += 1
    wrong = Exposure(1.0, 5, unit="example", batch_size=2, records=tuple(other))
    cases = [
        (
            plan_for(make("logistic", (4,) * 5)),
            {},
            r"for 5 users, but the task has data for "
            r"6.*ring\(6\)",
        ),
        (
            NoisePlan(decor.ring(USERS), wrong, Adversary.eavesdropper(), 1.0, 1.0),
            {},
            "6 records for user 3, who has 5",
        ),
        (
            plan_for(task),
            {"batch_size": 5},
            "batch_size 5 is larger than the shard of user 1",
        ),
        (plan_for(task, "example"), {"local_steps": 2}, "local_steps need user level"),
        (plan_for(task, "example"), {"batch_size": 3}, "the plan sets the batch size"),
        (plan_for(task), {"momentum": 1.0}, "momentum"),
        (plan_for(task), {"gossip_rounds": -1}, "gossip rounds"),
        (plan_for(task), {"local_steps": 0}, "local_steps"),
    ]
    for plan, options, said in cases:
        with pytest.raises(InputError, match=said):
            decor.train(task, plan, learning_rate=0.1, **options)
    for rate in (0.0, -1.0, math.nan, math.inf, True):
        with pytest.raises(InputError, match="learning_rate"):
            decor.train(task, plan_for(task), learning_rate=rate)


def test_central_dp_is_never_trained_without_its_server():
    task = decor.tasks.breast_cancer(users=4)
    plan = decor.baselines.central(decor.ring(4), decor.Exposure(1.0, 3), decor.Budget(3.0, 1e-5))
    with pytest.raises(InputError, match="central DP's server averages in every step"):
        decor.train(task, plan, learning_rate=0.1, gossip_rounds=0)
    models = decor.train(task, plan, learning_rate=0.1).models["weight"]
    assert torch.allclose(models, models[:1].expand_as(models), atol=1e-6)


def test_a_private_run_of_users_with_names_is_matched_once():
    """Engines check the task again: it had then lost its names, and was refused."""
    plan = planned(TOWNS, Exposure(1.0, 2))
    engine = decor.Vectorised(seed=None)
    run = decor.train(made(held()), plan, learning_rate=0.5, engine=engine)
    assert run.steps_taken == 2 and not run.simulated
