"""Private runs: what they draw, what they send, what they keep, and what they refuse."""

import json
import os
import stat
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import decor
from decor.errors import DivergenceWarning, InputError
from decor.learning.columns import Preparation
from decor.learning.definition import Definition
from decor.learning.file_model import Model
from decor.learning.recipe import Recipe
from decor.noise import integer_gaussians, private_noise
from decor.noise.grid import Grid
from decor.training.engine import Setting
from decor.training.release_grid import gradient_shift, grid_of
from decor.training.share import SingleProcess
from decor.training.simulation import Simulation
from decor.training.vectorised import Vectorised, draw_secret

USERS, STEPS = 5, 6
PRIVATE = Vectorised(seed=None)


def data(change=None, public=True):
    """Logistic regression on random examples; `change` = (user, example) changes that one."""
    rng = np.random.default_rng(4)
    shards = [(rng.normal(size=(8 + i, 3)), rng.integers(0, 2, 8 + i)) for i in range(USERS)]
    if change is not None:
        user, record = change
        shards[user][0][record] += 1.0
    test = (rng.normal(size=(20, 3)), rng.integers(0, 2, 20))
    return decor.Task(
        decor.models.logistic(3),
        decor.losses.logistic,
        shards,
        test=test,
        name="toy",
        test_public=public,
        facts={"city": "Ulm"},
    )


def planned(task=None, steps=STEPS, topology=None, epsilon=3.0, sampling="poisson"):
    example = (
        {}
        if task is None
        else {"unit": "example", "batch_size": 4, "records": task.records, "sampling": sampling}
    )
    exposure = decor.Exposure(clip=1.0, steps=steps, **example)
    return decor.calibrate(
        topology or decor.ring(USERS),
        exposure,
        decor.Adversary.curious(),
        decor.Budget(epsilon, 1e-5),
    )


def trained(engine=PRIVATE, task=None, plan=None, **options):
    return decor.train(
        task or data(), plan or planned(), learning_rate=0.1, engine=engine, **options
    )


# what is sent


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("level", ["user", "poisson", "fixed"])
def test_every_message_is_the_model_less_a_step_on_the_grid(dtype, momentum, level, monkeypatch):
    """The whole run again in NumPy, from its secret: tables, grid, momentum, rate, gossip."""
    task, value = data(), os.urandom(32)
    plan = planned() if level == "user" else planned(task, sampling=level)
    known = private_noise.Secret(lambda count: value)
    monkeypatch.setattr("decor.training.vectorised.Secret", lambda *_: known)
    sent = []
    engine = Vectorised(
        seed=None,
        dtype=dtype,
        on_messages=lambda step, messages: sent.append(messages[:, 0, 0].clone()),
    )
    run = trained(engine, task, plan, momentum=momentum, weight_decay=0.01, gossip_rounds=1)
    grid = grid_of(plan, 4, private_noise.WORDS_PER_KEY)
    noise = private_noise.GridNoise(
        grid,
        private_noise.Secret(lambda count: value),
        USERS,
        plan.topology.edges,
        grid.multiples,
        private_noise.width_for(USERS, USERS),
    )
    W = plan.topology.mixing.toarray()
    models, velocity, integers = np.zeros((USERS, 4)), np.zeros((USERS, 4)), []
    for step in range(STEPS):
        # the integers of the step, without the gradient: zero is placed on the grid exactly
        silent = np.zeros((USERS, 4))
        noise.add(step, silent, 0, (0, 4))
        message = sent[step].double().numpy()
        update = (models * (1 - 0.1 * 0.01) - message) / 0.1
        gradient = update - momentum * velocity - silent
        steps_of_grid = (gradient + silent) / grid.unit
        # to the precision of the numbers that are sent
        error = np.abs(steps_of_grid - np.rint(steps_of_grid)).max()
        assert (
            error < 1e-3 if dtype == "float64" else error < 1e-3 * np.abs(message).max() / grid.unit
        )
        limit = 1.0 if level == "user" else 8 * 1.0 / 4 * 3
        assert (np.linalg.norm(gradient, axis=1) < limit + 1e-3).all(), (
            "what is left without the noise is a clipped gradient"
        )
        integers.append(steps_of_grid)
        velocity, models = update, W @ message
    assert np.abs(np.concatenate(integers)).max() > 1000
    assert torch.allclose(
        torch.cat([run.models["weight"][:, 0], run.models["bias"]], 1).double(),
        torch.from_numpy(models),
        atol=1e-5,
    )


def test_the_average_of_many_private_runs_has_the_planned_noise_and_no_bias():
    """One step from zero: minus the rate times (clipped gradient plus noise), whose law is known."""
    task, plan = data(), planned(steps=1)
    sent = []
    for _ in range(400):
        trained(
            replace(PRIVATE, on_messages=lambda step, m: sent.append(m[:, 0, 0].double().numpy())),
            task,
            plan,
        )
    quiet = []
    silent = decor.NoisePlan(plan.topology, plan.exposure, plan.adversary, 0.0, 0.0)
    trained(
        Vectorised(on_messages=lambda step, m: quiet.append(m[:, 0, 0].double().numpy())),
        task,
        silent,
    )
    noise = (np.array(sent) - quiet[0]) / 0.1
    topology, grid = plan.topology, grid_of(plan, 4, private_noise.WORDS_PER_KEY)
    L = (
        np.diag(topology.degrees)
        - (topology.mixing.toarray() > 0)
        + np.eye(USERS) * (topology.mixing.diagonal() > 0)
    )
    own, shared = (
        grid.unit * integer_gaussians.OWN_SIGMA,
        grid.unit * grid.multiples[0] * integer_gaussians.EDGE_SIGMA,
    )
    sigma = own**2 * np.eye(USERS) + shared**2 * L
    assert own >= plan.sigma_cdp and shared >= plan.sigma_cor
    seen = np.einsum("kuc,kvc->uv", noise, noise) / (400 * 4)
    scale = np.sqrt(np.multiply.outer(sigma.diagonal(), sigma.diagonal()))
    assert (np.abs(seen - sigma) < 5 * np.sqrt(2 / 1600) * scale).all()
    assert (np.abs(noise.mean(0)) < 5 * np.sqrt(sigma.diagonal()[:, None] / 400)).all()
    assert abs(noise.sum(1).std() / (own * np.sqrt(USERS)) - 1) < 5 / np.sqrt(2 * 1600), (
        "edges cancel in the sum"
    )


def test_every_run_draws_a_secret_of_its_own():
    first, second = (trained().models["weight"] for _ in range(2))
    assert not torch.equal(first, second)


def test_dropout_is_drawn_from_the_secret_and_is_new_in_every_step():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 2))
    shards = [(x.float(), y.long()) for x, y in data().shards]
    task = decor.Task(model, decor.losses.cross_entropy, shards)
    before = torch.random.get_rng_state()
    assert trained(task=task, plan=planned(steps=2)).steps_taken == 2
    assert torch.equal(before, torch.random.get_rng_state()), (
        "and leaves the caller's generator alone"
    )


# the grid of a plan


@pytest.mark.parametrize(
    "exposure, shift",
    [
        (decor.Exposure(clip=3.0, steps=10), 6.0),
        (decor.Exposure(clip=3.0, steps=10, unit="example", batch_size=4, records=40), 0.75),
        (
            decor.Exposure(
                clip=3.0, steps=10, unit="example", batch_size=4, records=40, relation="replace"
            ),
            0.75,
        ),
        (
            decor.Exposure(
                clip=3.0, steps=10, unit="example", batch_size=4, records=40, sampling="fixed"
            ),
            1.5,
        ),
    ],
    ids=["user", "poisson", "poisson, replace", "fixed"],
)
def test_the_grid_hides_rounding_for_the_shift_of_one_unit(exposure, shift):
    """With Poisson sampling two batches are one clip apart, for both relations."""
    assert gradient_shift(exposure) == shift
    plan = decor.NoisePlan(decor.ring(USERS), exposure, decor.Adversary.curious(), 1.0, 2.0)
    by_hand = Grid.of(1.0, [2.0] * USERS, plan.topology.edges, USERS, shift, 50_000, 10)
    assert grid_of(plan, 50_000) == by_hand
    for wrong in (shift / 2, 2 * shift):
        assert grid_of(plan, 50_000) != Grid.of(
            1.0, [2.0] * USERS, plan.topology.edges, USERS, wrong, 50_000, 10
        )


@pytest.mark.parametrize("epsilon, parameters", [(30.0, 10**6), (25.0, 10**7)])
def test_every_calibrated_plan_of_a_usual_size_fits_the_tables(epsilon, parameters):
    plan = planned(steps=1000, topology=decor.ring(16), epsilon=epsilon)
    for words in (None, private_noise.WORDS_PER_KEY):
        grid = grid_of(plan, parameters, words)
        promise = plan.guarantee_on_grid(grid.distance)
        assert epsilon * (1 - 1e-3) < promise.epsilon <= epsilon and promise.delta == 1e-5


def test_beyond_the_tables_one_sentence_says_the_largest_epsilon():
    plan = planned(steps=1000, topology=decor.ring(16), epsilon=60.0)
    with pytest.raises(
        InputError,
        match=r"1,000,000 parameters epsilon can be at most 33\.[0-9], "
        r"not 60; plan for",
    ) as caught:
        grid_of(plan, 10**6)
    most = float(str(caught.value).split("at most ")[1].split(",")[0])
    grid_of(planned(steps=1000, topology=decor.ring(16), epsilon=most), 10**6)
    with pytest.raises(InputError, match="at most"):
        grid_of(planned(steps=1000, topology=decor.ring(16), epsilon=most + 0.2), 10**6)


def test_what_the_tables_take_of_delta_is_in_the_promise():
    """A distance as large as delta leaves nothing; one that is small costs no epsilon."""
    plan = planned()
    assert plan.guarantee_on_grid(1e-12).epsilon == plan.guarantee(0.999e-5).epsilon
    assert plan.guarantee_on_grid(1e-6).epsilon == np.inf
    run = trained()
    large = replace(run, manifest=run.manifest | {"noise": {"kind": "grid", "distance": 1e-6}})
    assert run.guarantee_at(1e-5).epsilon <= 3.0 and large.guarantee_at(1e-5).epsilon == np.inf
    assert run.guarantee_at(1e-30).epsilon == np.inf, (
        "at a delta below what the tables take nothing is promised"
    )


# what others' data decide


def mlp(outputs=5):
    return nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, outputs))


def convolutional():
    image = (nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Flatten())
    return nn.Sequential(*image, nn.Linear(144, 5))


MODELS = {
    "quadratic": (lambda: nn.Linear(64, 1, bias=False), decor.losses.squared, "auto"),
    "linear": (lambda: decor.models.logistic(64), decor.losses.logistic, "auto"),
    "layers": (mlp, decor.losses.cross_entropy, "auto"),
    "recorded": (convolutional, decor.losses.cross_entropy, "auto"),
    "modules": (mlp, decor.losses.cross_entropy, "generic"),
}


def descent(kind, count, seed=None, dtype="float32", exposure=None, **recipe):
    """The first step of six users of whom user 0 has `count` examples, the others 300."""
    build, loss, path = MODELS[kind]
    rng = np.random.default_rng(1)
    classes = 2 if loss is decor.losses.logistic else 5
    shards = []
    for user in range(6):
        X, y = rng.normal(size=(640, 64)).astype(dtype), rng.integers(0, classes, 640)
        y = y.astype(dtype)[:, None] if loss is decor.losses.squared else y
        shards.append((X[:count], y[:count]) if user == 0 else (X[:300], y[:300]))
    torch.manual_seed(0)
    task = decor.Task(build(), loss, shards)
    exposure = exposure or decor.Exposure(clip=1.0, steps=3)
    plan = decor.NoisePlan(decor.ring(6), exposure, decor.Adversary.curious(), 1.0, 3.0)
    settings, engine = [Setting(plan, 0.1, seed)], Vectorised(seed, dtype=dtype, path=path)
    share = SingleProcess(task, None, (), None if seed is not None else draw_secret(settings))
    return Simulation(engine, share, settings, Recipe(**recipe), None).descent


def first_gradients(*args, **more):
    """The clipped gradients of all users, at models that differ."""
    taken = descent(*args, **more)
    generator = torch.Generator().manual_seed(5)
    for block in taken.models:
        block += 0.3 * torch.randn(block.shape, generator=generator, dtype=block.dtype)
    to, one = [torch.zeros_like(block) for block in taken.models], torch.ones(1, 1).to(taken.dtype)
    count = taken.recipe.local_steps
    with torch.no_grad(), taken.threads.limit_torch():
        batches = [taken.batches.draw(k) for k in range(count)]
        if not (taken.batches.size is None or taken.share.secret is None):
            # batches are secret: the same rows of each user, so that gradients can be compared
            starts = torch.tensor(taken.batches.starts)[:, None]
            for batch in batches:
                batch.rows.copy_(starts + torch.arange(taken.batches.size))
        taken._add_clipped(to, one, taken.rates[0], batches)
    return torch.cat([block.flatten(1) for block in to], 1)


@pytest.mark.parametrize("recipe", [{}, {"local_steps": 2}, {"batch_size": 48}], ids=str)
@pytest.mark.parametrize("kind", list(MODELS))
def test_how_many_examples_a_user_has_changes_no_bit_of_anothers_gradient(kind, recipe):
    """One clip paid for one user: the others' gradients may not move at all."""
    for dtype in ("float32", "float64"):
        usual = first_gradients(kind, 300, dtype=dtype, **recipe)
        assert bool(usual.any(1).all())
        for count in (299, 301, 340, 640):
            found = first_gradients(kind, count, dtype=dtype, **recipe)
            assert torch.equal(found[1:], usual[1:]), (dtype, count)


def test_simulations_show_that_the_test_before_could_fail():
    usual, other = (first_gradients("layers", count, seed=0) for count in (300, 301))
    assert not torch.equal(usual[1:], other[1:])


@pytest.mark.parametrize("engine", [PRIVATE, decor.ProcessGroup(seed=None)], ids=["one", "group"])
def test_one_record_more_moves_no_other_users_message_where_sums_cancel(engine, monkeypatch):
    """It moved user 1's by 0.9975 clips: epsilon 3 was claimed where 3.8 was true."""
    value = os.urandom(32)
    monkeypatch.setattr(
        "decor.training.vectorised.Secret", lambda *_: private_noise.Secret(lambda count: value)
    )
    # each example twice, with targets that cancel: what is left of the mean is rounding alone
    half = np.random.default_rng(0).normal(size=(150, 64))
    order = np.random.default_rng(1).permutation(300)
    targets = np.repeat([1e9, -1e9], 150)
    messages = {}
    for count in (300, 301):
        shards = []
        for user in range(6):
            rng = np.random.default_rng(user)
            shards.append([rng.normal(size=(400, 64)), rng.normal(size=(400, 1))])
            shards[-1] = [part[: 300 if user else count] for part in shards[-1]]
        shards[1] = [np.concatenate([half, half])[order], targets[order][:, None]]
        shards = [tuple(part.astype("f4") for part in shard) for shard in shards]
        torch.manual_seed(1)
        task = decor.Task(mlp(1), decor.losses.squared, shards)

        def listen(step, sent, count=count):
            messages[count] = sent.clone()

        plan = planned(steps=1, topology=decor.ring(6))
        trained(replace(engine, on_messages=listen), task, plan)
    assert not torch.equal(messages[300][0], messages[301][0])
    assert torch.equal(messages[300][1:], messages[301][1:])


@pytest.mark.parametrize("kind", ["quadratic", "layers", "modules"])
def test_who_is_computed_together_depends_on_public_numbers_alone(kind, monkeypatch):
    """Also with a common rate, where numbers of examples are private."""
    for values in ("_CPU_VALUES", "_MODULE_VALUES"):
        monkeypatch.setattr(f"decor.training.descent.{values}", 70_000)
    exposure = decor.Exposure(clip=1.0, steps=3, unit="example", rate=0.9, batch_size=300)

    def together(seed, **more):
        taken = [descent(kind, count, seed, **more) for count in (64, 300, 301, 640)]
        return {str(each.user_slices) for each in taken}

    for more in ({}, {"batch_size": 64}, {"exposure": exposure}):
        assert len(together(None, **more)) == 1, more
    assert len(together(0)) > 1 and len(together(0, exposure=exposure)) > 1


def test_time_decides_nothing_in_a_private_run(monkeypatch):
    """With another number of threads products add in another order, and data decide the time."""
    monkeypatch.setattr("decor.training.threads._LARGE", 1)
    monkeypatch.setattr("decor.training.threads.cores", lambda: 2)
    assert descent("layers", 300).threads.counts == (2,)
    assert descent("layers", 300, seed=0).threads.counts == (1, 2)


# what is kept


def keys_and_sizes(folder):
    found = {}
    for path in sorted(folder.iterdir()):
        text = path.read_bytes()
        found[path.name] = len(text) if path.suffix == ".safetensors" else None
        if path.suffix == ".json":
            found[path.name] = _shape(json.loads(text))
        elif path.suffix == ".jsonl":
            found[path.name] = [sorted(json.loads(line)) for line in text.splitlines()]
    return found


def _shape(value):
    return {key: _shape(each) for key, each in value.items()} if isinstance(value, dict) else value


@pytest.mark.parametrize(
    "engine",
    [PRIVATE, decor.ProcessGroup(seed=None), decor.Peers()],
    ids=["vectorised", "group", "peers"],
)
@pytest.mark.parametrize("saved", ["save", "release"])
def test_two_tasks_that_differ_in_one_record_leave_folders_that_differ_in_nothing_but_noise(
    engine, saved, tmp_path
):
    folders = []
    for name, change in (("one", None), ("two", (2, 3))):
        run = trained(engine, data(change))
        getattr(run, saved)(tmp_path / name)
        folders.append(keys_and_sizes(tmp_path / name))
    names = [
        {key: value for key, value in folder.items() if key != "manifest.json"}
        for folder in folders
    ]
    assert names[0] == names[1]
    one, two = (folder["manifest.json"] for folder in folders)
    assert one.pop("run") != two.pop("run"), "a random name tells two runs apart"
    assert one == two
    text = (tmp_path / "one" / "manifest.json").read_text() + (
        tmp_path / "one" / "metrics.jsonl"
    ).read_text()
    for private in (
        "fingerprint",
        "records",
        'loss"',
        "seconds",
        "machine",
        "Ulm",
        "facts",
        "resume",
    ):
        assert private not in text.replace("test_loss", ""), private


def test_a_simulation_keeps_what_repeats_it_and_says_what_it_is(tmp_path):
    run = trained(Vectorised(seed=7))
    assert (
        run.simulated
        and run.manifest["seed"] == 7
        and len(run.manifest["task"]["fingerprint"]) == 64
    )
    assert str(run.guarantee).startswith(
        "Simulation with a known seed. With secret noise this plan is (3, 1e-05)-SecLDP"
    )
    private = trained()
    assert not private.simulated and str(private.guarantee).startswith(
        "(3, 1e-05)-SecLDP over 6 steps"
    )
    with pytest.raises(InputError, match="simulation: anyone who knows its seed"):
        run.release(tmp_path / "out")


@pytest.mark.parametrize("public", [True, False])
def test_metrics_on_test_data_are_kept_only_if_the_task_declares_it_public(public):
    run = trained(task=data(public=public))
    assert set(run.history) == {"step", "consensus"} | (
        {"test_loss", "accuracy"} if public else set()
    )
    peers = trained(decor.Peers(), data(public=public))
    assert set(peers.history) == set(run.history) and peers.private_metrics == {}


def positives(outputs, targets):
    return float(((outputs.flatten() > 0) & (targets > 0)).double().mean())


@pytest.mark.parametrize("engine", [PRIVATE, decor.Peers()], ids=["vectorised", "peers"])
@pytest.mark.parametrize("public", [True, False])
def test_own_metrics_leave_only_if_the_test_data_are_public(public, engine, tmp_path):
    run = trained(engine, replace(data(public=public), metrics={"positives": positives}))
    assert ("positives" in run.history) == public
    # what is the most frequent class of private test data is private too
    assert ("base_rate" in run.manifest) == public
    assert run.manifest["task"].get("metrics") == (["positives"] if public else None)
    run.save(tmp_path / "run")
    run.release(tmp_path / "out")
    for folder in ("run", "out"):
        texts = [
            path.read_text()
            for path in (tmp_path / folder).iterdir()
            if path.suffix != ".safetensors"
        ]
        assert any("positives" in text for text in texts) == public
        assert any("base_rate" in text for text in texts) == public
    if public:
        card = (tmp_path / "out" / "MODEL_CARD.md").read_text()
        assert f"- positives: {run.metrics['positives']:.4g}" in card


def test_a_card_says_what_goes_in_what_comes_out_and_which_federation_it_is_of(tmp_path):
    columns = [decor.NumberColumn("age`\n# x", 0, 120), decor.CategoryColumn("ward", ["a", "b"])]
    data = Preparation(columns, decor.Label("ill", ["no", "yes"]))
    definition = Definition(Model(kind="mlp", features=4, classes=2, hidden=(16, 8)), data)
    run = trained()
    told = {"definition": definition.to_json(), "federation": "ab" * 32}
    replace(run, manifest=run.manifest | told).release(tmp_path / "out")
    lines = (tmp_path / "out" / "MODEL_CARD.md").read_text().splitlines()
    for line in (
        "- kind: mlp: 4 features, hidden 16-8, relu, 2 classes",
        "- label: `ill`",
        "- classes: no, yes",
        f"- federation: digest {'ab' * 32}",
        # a name can neither end its quotes nor begin a heading
        "- `age' # x`: a number from 0 to 120",
        "- `ward`: one of a, b, or other",
    ):
        assert line in lines
    assert "# x" not in lines
    number = Definition(Model(kind="linear", features=3), Preparation(columns[1:], columns[0]))
    replace(run, manifest=run.manifest | {"definition": number.to_json()}).release(tmp_path / "b")
    card = (tmp_path / "b" / "MODEL_CARD.md").read_text()
    assert "- label: `age' # x`: a number from 0 to 120" in card and "- classes" not in card
    unknown = {name: value for name, value in run.manifest.items() if name != "definition"}
    replace(run, manifest=unknown).release(tmp_path / "c")
    assert "a module of the caller's own" in (tmp_path / "c" / "MODEL_CARD.md").read_text()
    broken = replace(run, manifest=run.manifest | {"definition": {"model": {"kind": "oracle"}}})
    with pytest.raises(InputError, match="model.kind"):
        broken.release(tmp_path / "d")
    # refused before the first byte
    assert not (tmp_path / "d").exists()


def test_own_metrics_on_private_test_data_are_for_the_owner_alone(tmp_path):
    task = replace(data(public=False), metrics={"positives": positives})
    run = trained(Vectorised(seed=None, private_metrics=True), task)
    assert "positives" in run.private_metrics and "positives" not in run.history
    run.release(tmp_path / "out")
    assert "positives" not in decor.Run.load(tmp_path / "out").history


def test_a_manifest_cannot_name_the_loss_as_an_own_metric(tmp_path):
    run = trained()
    manifest = run.manifest | {"task": run.manifest["task"] | {"metrics": ["loss", "distance"]}}
    history = run.history | {"loss": [0.1] * len(run.history["step"])}
    replace(run, manifest=manifest, history=history).release(tmp_path / "out")
    assert "loss" not in decor.Run.load(tmp_path / "out").history


def test_private_metrics_are_kept_apart_and_never_released(tmp_path):
    run = trained(Vectorised(seed=None, private_metrics=True), data(public=False))
    assert set(run.history) == {"step", "consensus"}
    assert set(run.private_metrics) == {"step", "consensus", "loss", "test_loss", "accuracy"}
    run.save(tmp_path / "run")
    assert stat.S_IMODE((tmp_path / "run" / "private.jsonl").stat().st_mode) == 0o600
    assert "loss" not in (tmp_path / "run" / "metrics.jsonl").read_text()
    again = decor.Run.load(tmp_path / "run")
    assert again.private_metrics == run.private_metrics
    again.release(tmp_path / "out")
    assert sorted(os.listdir(tmp_path / "out")) == [
        "MODEL_CARD.md",
        "manifest.json",
        "metrics.jsonl",
        "models-6.safetensors",
        "plan.json",
    ]
    assert decor.Run.load(tmp_path / "out").private_metrics == {}
    trained().save(tmp_path / "run", overwrite=True)
    assert not (tmp_path / "run" / "private.jsonl").exists(), (
        "another run leaves nothing of the one before"
    )


def test_a_release_has_what_the_allow_list_names_and_a_card(tmp_path):
    run = trained(callbacks=lambda moment: moment.step == 4)
    run = replace(
        run,
        manifest=run.manifest
        | {"diary": "of a patient", "task": run.manifest["task"] | {"city": "Ulm"}},
    )
    run = replace(run, history=run.history | {"loss": [0.1] * len(run.history["step"])})
    run.release(tmp_path / "out")
    text = "".join(
        path.read_text() for path in (tmp_path / "out").iterdir() if path.suffix != ".safetensors"
    )
    assert (
        "diary" not in text and "Ulm" not in text and '"loss"' not in text and "resume" not in text
    )
    card = (tmp_path / "out" / "MODEL_CARD.md").read_text()
    assert (
        "(3, 1e-05)-SecLDP, the whole plan's; stopped after 4 of 6 steps"
    ) in card and "- accuracy: " in card
    released = decor.Run.load(tmp_path / "out")
    assert torch.equal(released.models["weight"], run.models["weight"]) and released.velocity == {}
    assert str(released.guarantee) == str(run.guarantee)
    with pytest.raises(InputError, match="is not empty"):
        run.release(tmp_path / "out")
    with pytest.raises(InputError, match="no models to publish"):
        replace(run, models={}).release(tmp_path / "none")


# stopping and going on


def test_a_callback_sees_models_and_public_metrics_alone():
    seen = []

    def look(moment):
        seen.append(set(moment.metrics))
        assert not moment.guarantee.simulated and moment.run().models
        return moment.metrics["loss"] < 0.1

    with pytest.raises(InputError, match="'loss' is not measured on public data.*has no guarantee"):
        trained(callbacks=look)
    assert seen == [{"step", "consensus", "test_loss", "accuracy"}]


def test_a_rule_that_was_given_private_figures_leaves_no_guarantee(tmp_path):
    engine = Vectorised(seed=None, private_metrics=True)
    run = trained(engine, callbacks=lambda moment: moment.metrics["loss"] > 0 and moment.step == 3)
    assert str(run.guarantee) == "No guarantee: the stop depended on private data."
    assert (
        run.guarantee.epsilon == np.inf == run.guarantee_at(1e-5, steps=3).epsilon
        and (run.guarantee.per_user == np.inf).all()
    )
    run.save(tmp_path / "run")
    again = decor.Run.load(tmp_path / "run")
    assert again.guarantee.void and again.guarantee.epsilon == np.inf
    with pytest.raises(InputError, match="No guarantee.*must not be published"):
        again.release(tmp_path / "out")
    whole = trained(engine, callbacks=lambda moment: moment.metrics["loss"] < 0)
    assert whole.stopped is None and whole.guarantee.epsilon <= 3.0, (
        "a rule that never stopped has not chosen anything"
    )


def test_a_checkpoint_kept_by_looking_at_private_figures_has_no_guarantee():
    """Keeping the best of all steps chooses a step as much as stopping there does."""
    kept = []
    engine = Vectorised(seed=None, private_metrics=True)
    trained(
        engine,
        callbacks=lambda moment: kept.append(moment.run()) if moment.metrics["loss"] > 0 else None,
    )
    assert (
        len(kept) == STEPS + 1
        and all(run.guarantee.void for run in kept[:-1])
        and not kept[-1].guarantee.void
    )


def test_resuming_does_not_wash_off_that_private_figures_were_seen(tmp_path):
    seen = trained(
        Vectorised(seed=None, private_metrics=True), callbacks=lambda moment: moment.step == 2
    )
    seen.save(tmp_path)
    again = trained(resume=decor.Run.load(tmp_path), callbacks=lambda moment: moment.step == 4)
    assert again.steps_taken == 4 and again.guarantee.void
    whole = trained(resume=decor.Run.load(tmp_path))
    assert whole.stopped is None and whole.guarantee.epsilon <= 3.0, (
        "at the end nothing is left to choose"
    )


def test_what_others_may_see_of_a_measurement_is_public():
    public = []
    engine = Vectorised(seed=None, private_metrics=True)
    trained(engine, data(public=False), callbacks=lambda moment: public.append(dict(moment.public)))
    assert all(set(row) == {"step", "consensus"} for row in public)
    trained(Vectorised(seed=1), callbacks=lambda moment: public.append(dict(moment.public)))
    assert "loss" in public[-1], "of a simulation everything may be seen"


def test_an_engine_that_is_called_directly_refuses_what_the_plan_does_not_account_for():
    from decor.learning.recipe import Recipe
    from decor.training.engine import Setting

    task = data()
    more = decor.Exposure(1.0, STEPS, unit="example", batch_size=4, records=[100_000] * USERS)
    plan = decor.calibrate(
        decor.ring(USERS), more, decor.Adversary.curious(), decor.Budget(1.0, 1e-6)
    )
    for engine in (PRIVATE, decor.ProcessGroup(seed=None), decor.Peers()):
        with pytest.raises(InputError, match="its epsilon would be wrong"):
            engine.run(task, [Setting(plan, 0.1, None)], Recipe())
    with pytest.raises(InputError, match="local_steps need user level"):
        PRIVATE.run(task, [Setting(planned(task), 0.1, None)], Recipe(local_steps=3))


def test_every_users_epsilon_is_infinite_where_the_tables_leave_nothing():
    plan = decor.NoisePlan(
        decor.star(6), decor.Exposure(1.0, 1000), decor.Adversary.curious(), 8.0, 0.0
    )
    found = plan.guarantee_on_grid(grid_of(plan, 10**6).distance, 1e-5)
    assert found.epsilon == np.inf and (found.per_user == np.inf).all()


def test_words_of_batches_count_in_the_distance():
    task = data()
    plan = planned(task)
    from decor.training.share import private_grid

    assert (
        private_grid(plan, task).distance
        > grid_of(plan, task.parameters, private_noise.WORDS_PER_KEY).distance
    )
    large = Grid.of(
        1.0, [], np.empty((0, 2)), 1, 2.0, 10, 1000, private_noise.WORDS_PER_KEY, batch_words=32_561
    )
    small = Grid.of(1.0, [], np.empty((0, 2)), 1, 2.0, 10, 1000, private_noise.WORDS_PER_KEY)
    assert large.distance - small.distance == pytest.approx(
        1.001 * 1000 * (32_561 / 4 + 1) ** 2 / 2**129, rel=1e-3
    )


def test_what_modules_draw_comes_from_more_bits_than_a_seed_has():
    """torch takes 32 bits of a seed: states that differ beyond have other masks."""
    from decor.learning.gradients.module_randomness import STATE_WORDS, torch_generator_from

    words = np.arange(STATE_WORDS, dtype=np.uint32)
    drawn = []
    for place in (None, 3, 500, STATE_WORDS - 1):
        changed = words.copy()
        if place is not None:
            changed[place] += 12345
        before = torch.random.get_rng_state()
        with torch_generator_from(changed):
            drawn.append(torch.rand(2000))
        assert torch.equal(before, torch.random.get_rng_state())
        with torch_generator_from(changed):
            assert torch.equal(drawn[-1], torch.rand(2000))
    assert len({tuple(each.tolist()) for each in drawn}) == 4
    with torch_generator_from(np.random.default_rng(0).integers(0, 2**32, STATE_WORDS, np.uint32)):
        uniform = torch.rand(100_000).numpy()
    assert abs(uniform.mean() - 0.5) < 0.01 and abs(uniform.std() - 12**-0.5) < 0.01


def test_divergence_is_judged_on_the_models():
    huge = Vectorised(seed=None)
    with pytest.warns(DivergenceWarning, match="a model is not finite, or beyond 1e18"):
        run = decor.train(data(), planned(), learning_rate=1e20, engine=huge)
    assert run.stopped.startswith("diverged") and "loss" not in run.history
    assert "the whole plan's; stopped after" in str(run.guarantee)


def test_an_unfinished_private_run_goes_on_with_its_own_data_alone(tmp_path):
    stopped = trained(callbacks=lambda moment: moment.step == 2, momentum=0.5)
    stopped.save(tmp_path / "run")
    key = tmp_path / "run" / "resume.key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600 and len(bytes.fromhex(key.read_text())) == 32
    held = decor.Run.load(tmp_path / "run")
    with pytest.raises(InputError, match="had other data, or its resume.key is gone"):
        trained(task=data((1, 0)), resume=held, momentum=0.5)
    with pytest.raises(InputError, match="had other data, or its resume.key is gone"):
        trained(resume=replace(held, resume_key=None), momentum=0.5)
    run = trained(resume=held, momentum=0.5)
    assert run.steps_taken == STEPS and run.stopped is None and run.resume_key is None
    assert run.manifest["run"] == held.manifest["run"] and "resume_tag" not in run.manifest
    run.save(tmp_path / "run")
    assert not key.exists() and "resume" not in (tmp_path / "run" / "manifest.json").read_text()
    with pytest.raises(InputError, match="had another|the run to resume"):
        trained(Vectorised(seed=3), resume=held, momentum=0.5)


def test_the_tag_of_an_unfinished_run_tells_nothing_without_its_key():
    """Equal data under two keys, and other data: three tags that have nothing in common."""
    runs = [
        trained(task=task, callbacks=lambda m: m.step == 2)
        for task in (data(), data(), data((0, 0)))
    ]
    assert len({run.manifest["resume_tag"] for run in runs}) == 3


# what is refused


@pytest.mark.parametrize(
    "make, said",
    [
        (lambda: Vectorised(seed=None, noise="edges"), "a private run draws its own noise"),
        (lambda: Vectorised(seed=0, private_metrics=True), "a simulation keeps all its metrics"),
        (
            lambda: decor.sweep(data(), [planned()], learning_rates=[0.1, 0.2], engine=PRIVATE),
            "choosing among private runs",
        ),
        (
            lambda: decor.sweep(data(), [planned()], learning_rates=[0.1], engine=PRIVATE),
            "choosing among private runs",
        ),
        (
            lambda: trained(
                plan=decor.baselines.central(
                    decor.ring(USERS), decor.Exposure(1.0, 6), decor.Budget(3.0, 1e-5)
                )
            ),
            "central",
        ),
        (
            lambda: trained(
                plan=decor.NoisePlan(
                    decor.ring(USERS), decor.Exposure(1.0, 6), decor.Adversary.curious(), 0.0, 0.0
                )
            ),
            "nothing",
        ),
        (
            lambda: decor.sweep(data(), [planned()], learning_rates=[0.1], engine=decor.Peers()),
            "choosing among private runs",
        ),
    ],
)
def test_what_cannot_be_private_is_refused(make, said):
    with pytest.raises(InputError, match=said):
        make()


def test_several_settings_never_share_a_secret():
    from decor.learning.recipe import Recipe
    from decor.training.engine import Setting

    settings = [Setting(planned(), 0.1 * (1 + k), None) for k in range(63)]
    for engine in (PRIVATE, decor.ProcessGroup(seed=None)):
        with pytest.raises(InputError, match="one run, not 63"):
            engine.run(data(), settings, Recipe())


def test_a_gpu_is_refused_in_one_sentence(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for engine in (Vectorised, decor.ProcessGroup):
        with pytest.raises(InputError, match="a private run draws its noise on the CPU"):
            engine(seed=None, device="cuda:0")


@pytest.mark.parametrize(
    "engine",
    [PRIVATE, decor.ProcessGroup(seed=None), decor.Peers()],
    ids=["vectorised", "group", "peers"],
)
def test_with_a_common_rate_users_of_any_size_train_and_no_folder_says_how_many_records(
    engine, tmp_path
):
    rng = np.random.default_rng(7)
    exposure = decor.Exposure(1.0, STEPS, unit="example", rate=0.05, batch_size=20)
    adversary, budget = decor.Adversary.curious(), decor.Budget(3.0, 1e-5)
    plan = decor.calibrate(decor.ring(4), exposure, adversary, budget)
    folders = []
    for name, sizes in (("one", (5, 977, 40, 12)), ("two", (6, 977, 40, 12))):
        shards = [(rng.normal(size=(m, 3)), rng.integers(0, 2, m)) for m in sizes]
        task = decor.Task(decor.models.logistic(3), decor.losses.logistic, shards, name="toy")
        run = trained(engine, task, plan)
        assert run.guarantee.epsilon <= 3.0 and "added or removed" in str(run.guarantee)
        run.save(tmp_path / name)
        folders.append(keys_and_sizes(tmp_path / name))
        assert "977" not in (tmp_path / name / "manifest.json").read_text()
        assert "977" not in (tmp_path / name / "plan.json").read_text()
    one, two = (folder["manifest.json"] for folder in folders)
    assert one.pop("run") != two.pop("run")
    # one record more changes nothing else: neither the grid nor what its tables take of delta
    assert folders[0] == folders[1]


def test_a_private_run_refuses_a_batch_size_that_understates_all_examples_many_times():
    exposure = decor.Exposure(1.0, STEPS, unit="example", rate=0.4, batch_size=1)
    adversary, budget = decor.Adversary.curious(), decor.Budget(3.0, 1e-5)
    plan = decor.calibrate(decor.ring(USERS), exposure, adversary, budget)
    with pytest.raises(InputError, match="batch_size declares about 12 examples"):
        trained(plan=plan, task=data())
