"""What people give by mistake: a typed error, who it is about, and the way out.

And an installation without torch.
"""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import decor
from decor.errors import InputError
from decor.learning import losses, models
from decor.learning.task import Task

torch.set_num_threads(1)
RNG = np.random.default_rng(0)
X = RNG.normal(size=(6, 4)).astype("float32")
Y = np.array([0, 1, 1, 0, 1, 0])
REAL = Y.astype("float32")[:, None]
PLANS = {
    "user": decor.Exposure(clip=1.0, steps=2),
    "example": decor.Exposure(clip=1.0, steps=2, unit="example", batch_size=2, records=6),
}


def made(model=None, loss=losses.logistic, shards=None, **more):
    return Task(
        models.logistic(4) if model is None else model,
        loss,
        [(X, Y)] * 3 if shards is None else shards,
        **more,
    )


def trained(task, path="auto", unit="user", **more):
    plan = decor.NoisePlan(
        decor.ring(task.users), PLANS[unit], decor.Adversary.eavesdropper(), 0.1, 0.1
    )
    return decor.train(
        task, plan, learning_rate=0.1, engine=decor.Vectorised(path=path, dtype="float64"), **more
    )


def changed(array, at, value):
    new = array.copy()
    new[at] = value
    return new


def second(X2, y2):
    return [(X, Y), (X2, y2), (X, Y)]


BAD = {
    "fewer targets": (
        lambda: made(shards=second(X, Y[:4])),
        "user 1 has 6 examples but 4 targets; give one target",
    ),
    "fewer examples": (
        lambda: made(shards=second(X[:2], Y)),
        "user 1 has 2 examples but 6 targets",
    ),
    "other features": (
        lambda: made(shards=second(X[:, :3], Y)),
        r"user 1 has examples of shape \(3,\).*same features",
    ),
    "other targets": (
        lambda: made(nn.Linear(4, 1), losses.squared, [(X, REAL), (X, np.hstack([REAL, REAL]))]),
        r"user 1 .* targets of shape \(2,\).*same",
    ),
    "other type": (
        lambda: made(shards=second(X.astype("float64"), Y)),
        "user 1 has examples of type .*float64.*one type",
    ),
    "empty shard": (
        lambda: made(shards=second(X[:0], Y[:0])),
        "user 1 has an empty shard; leave the user out",
    ),
    "NaN": (
        lambda: made(shards=second(changed(X, (3, 1), np.nan), Y)),
        "user 1 has a NaN .* examples at example 3; fill it in, or drop",
    ),
    "infinity": (
        lambda: made(shards=second(changed(X, (0, 0), -np.inf), Y)),
        "user 1 has a NaN or an infinity in its examples at example 0",
    ),
    "NaN in targets": (
        lambda: made(
            nn.Linear(4, 1), losses.squared, [(X, REAL), (X, changed(REAL, (5, 0), np.nan))]
        ),
        "user 1 has a NaN .* targets at example 5",
    ),
    "label -1": (
        lambda: made(shards=second(X, 2 * Y - 1)),
        "user 1 has label -1 at example 0.*classes 0 to 1; number the labels from 0",
    ),
    "label 2": (
        lambda: made(shards=second(X, changed(Y, 4, 2))),
        "user 1 has label 2 at example 4",
    ),
    "label -1 as a float": (
        lambda: made(shards=[(X, REAL[:, 0]), (X, 2 * REAL[:, 0] - 1)]),
        "user 1 has label -1 at example 0",
    ),
    "half a label": (
        lambda: made(shards=[(X, REAL[:, 0]), (X, REAL[:, 0] / 2)]),
        "user 1 has label 0.5 at example 1",
    ),
    "class beyond the model": (
        lambda: made(models.mlp(4, 3, 2), losses.cross_entropy, second(X, changed(Y, 2, 7))),
        "user 1 has label 7 at example 2, but the model knows classes 0 to 1",
    ),
    "negative class": (
        lambda: made(models.mlp(4, 3, 2), functional.cross_entropy, second(X, changed(Y, 5, -100))),
        "user 1 has label -100 at example 5",
    ),
    "class beyond the model, loss object": (
        lambda: trained(
            made(models.mlp(4, 3, 2), nn.CrossEntropyLoss(), second(X, changed(Y, 1, 2)))
        ),
        "user 1.* label 2 at example 1",
    ),
    "float classes": (
        lambda: trained(made(models.mlp(4, 3, 2), losses.cross_entropy, [(X, REAL[:, 0])] * 3)),
        "label|target",
    ),
    "float classes, generic": (
        lambda: trained(
            made(models.mlp(4, 3, 2), losses.cross_entropy, [(X, REAL[:, 0])] * 3), "generic"
        ),
        "label|target",
    ),
    "probabilities for another number of classes": (
        lambda: trained(
            made(
                models.mlp(4, 3, 2),
                losses.cross_entropy,
                [(X, np.full((6, 3), 1 / 3, "float32"))] * 3,
            )
        ),
        "target|class",
    ),
    "labels of the test data": (
        lambda: made(test=(X, Y - 1)),
        "the test data has label -1 at example 0",
    ),
    "features of the test data": (
        lambda: made(test=(X[:, :2], Y)),
        "the test data has examples of shape",
    ),
    "NaN in the test data": (
        lambda: made(test=(changed(X, (2, 2), np.nan), Y)),
        "the test data has a NaN .* at example 2",
    ),
    "empty test data": (lambda: made(test=(X[:0], Y[:0])), "the test data has an empty shard"),
    "no users": (
        lambda: made(shards=[]),
        r"list of \(X, y\), .* or a mapping .* and not empty",
    ),
    "one array": (lambda: made(shards=X), "shards must be a list"),
    "one tensor": (lambda: made(shards=torch.zeros(3, 2)), "shards must be a list"),
    "shards None": (
        lambda: Task(models.logistic(4), losses.logistic, None),
        "shards must be a list",
    ),
    "shards a number": (lambda: made(shards=3), "shards must be a list"),
    "shards a generator": (lambda: made(shards=(s for s in [(X, Y)])), "shards must be a list"),
    "no names": (lambda: made(shards={}), "shards must be a list"),
    "a name twice": (lambda: made(shards={"1": (X, Y), 1: (X, Y)}), "shards names a user twice"),
    "one named shard None": (
        lambda: made(shards={"bonn": (X, Y), "ulm": None}),
        r"shard of user ulm must be a pair \(X, y\)",
    ),
    "unlike by name": (
        lambda: made(shards={"bonn": (X, Y), "ulm": (X[:, :2], Y)}),
        r"user ulm has .* but user bonn has \(4,\)",
    ),
    "one shard None": (
        lambda: made(shards=[(X, Y), None]),
        r"shard of user 1 must be a pair \(X, y\)",
    ),
    "three parts": (lambda: made(shards=[(X, Y), (X, Y, Y)]), "shard of user 1 must be a pair"),
    "words": (
        lambda: made(shards=[(np.array(["a", "b"]), np.array([0, 1]))]),
        "examples of user 0 are ndarray that holds other things than numbers",
    ),
    "ragged": (
        lambda: made(shards=[([[1.0, 2.0], [3.0]], [0, 1])]),
        "examples of user 0 are list of 2 that holds .* numbers of one shape",
    ),
    "numbers without a first axis": (
        lambda: made(shards=[(np.float32(1), np.float32(1))]),
        "user 0 has 0 examples",
    ),
    "complex": (lambda: trained(made(shards=[(X.astype("complex64"), Y)] * 3)), "user 0.*complex"),
    "sparse": (
        lambda: made(shards=[(torch.eye(4).to_sparse(), torch.zeros(4))]),
        "user 0.*(sparse|dense)",
    ),
    "model a class": (
        lambda: made(nn.Linear),
        "Linear that builds the model needs too many arguments",
    ),
    "model a function": (lambda: made(lambda x: x), "must return a torch.nn.Module, not 4"),
    "loss a name": (
        lambda: made(loss="cross_entropy"),
        "loss must be a function of .*not 'cross_entropy'",
    ),
    "loss None": (lambda: made(loss=None), "loss must be a function"),
    "optimum of another size": (
        lambda: trained(
            made(models.linear(4), losses.squared, [(X, REAL)] * 3, optimum=torch.zeros(7))
        ),
        "optimum.* 7 .*4",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_mistake_names_the_user_and_the_way_out(name):
    build, said = BAD[name]
    with pytest.raises(InputError, match=said):
        build()


UNFIT = {
    "logistic": lambda: made(models.logistic(5)),
    "squared": lambda: made(models.linear(5), losses.squared, [(X, REAL)] * 3),
    "squared, many features": lambda: made(models.linear(2), losses.squared, [(X, REAL)] * 3),
    "classes": lambda: made(models.mlp(5, 3, 2), losses.cross_entropy),
    "loss object": lambda: made(models.mlp(5, 3, 2), nn.CrossEntropyLoss()),
    "pictures": lambda: made(nn.Conv2d(1, 2, 3), losses.cross_entropy),
    "no features": lambda: made(
        nn.Sequential(nn.Flatten(), nn.Linear(1, 1)), losses.logistic, [(X[:, 0], Y)] * 3
    ),
}


@pytest.mark.parametrize("path", ["auto", "generic"])
@pytest.mark.parametrize("name", UNFIT)
def test_a_model_that_cannot_take_the_examples_is_refused_with_their_shape(name, path):
    with pytest.raises(InputError, match=r"the model cannot take examples of shape \((4,|)\)"):
        trained(UNFIT[name](), path)


MISFITS = {
    "logistic loss of two outputs": lambda: made(models.mlp(4, 2), losses.logistic),
    "squared loss of flat targets": lambda: made(
        models.linear(4), losses.squared, [(X, REAL[:, 0])] * 3
    ),
    "squared loss of two outputs and one target": lambda: made(
        models.mlp(4, 3, 2), losses.squared, [(X, REAL[:, 0])] * 3
    ),
    "loss of every example": lambda: made(
        models.mlp(4, 3, 2), nn.CrossEntropyLoss(reduction="none")
    ),
}


@pytest.mark.parametrize("unit", ["user", "example"])
@pytest.mark.parametrize("name", MISFITS)
def test_targets_that_do_not_fit_the_loss_are_refused_or_mean_the_same_on_both_paths(name, unit):
    found = []
    for path in ("auto", "generic"):
        try:
            found.append(trained(MISFITS[name](), path, unit).metrics)
        except InputError:
            found.append("refused")
    assert found[0] == (
        pytest.approx(found[1], rel=1e-9) if isinstance(found[1], dict) else found[1]
    )


@pytest.mark.parametrize("unit", ["user", "example"])
@pytest.mark.parametrize("path", ["auto", "generic"])
def test_a_loss_that_sums_is_refused(path, unit):
    task = made(models.mlp(4, 3, 2), nn.CrossEntropyLoss(reduction="sum"))
    with pytest.raises(InputError, match=r"averages over examples \(reduction=.mean.\)"):
        trained(task, path, unit)


def test_a_loss_weighted_by_class_is_refused_wherever_the_classes_stand():
    """Torch divides by the batch's sum of weights, which two examples of one class do not show."""
    loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 9.0], dtype=torch.float64))
    for order in ([0, 1, 1, 0, 1, 0], [1, 1, 1, 0, 0, 0]):
        with pytest.raises(InputError, match="averages over examples"):
            trained(
                made(
                    models.mlp(4, 3, 2).double(), loss, [(X.astype("float64"), np.array(order))] * 3
                )
            )


@pytest.mark.parametrize(
    "loss", [losses.cross_entropy, nn.CrossEntropyLoss()], ids=["function", "object"]
)
@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_is_refused_with_the_way_out(loss, training):
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)).train(training)
    with pytest.raises(
        InputError, match="'1' is BatchNorm1d.*statistics.*use nn.GroupNorm or nn.LayerNorm"
    ):
        trained(made(model, loss))


class Recurrent(nn.Module):
    """Layers for which torch has no fast way to compute many at once."""

    def __init__(self):
        super().__init__()
        self.layer, self.out = nn.LSTM(1, 3, batch_first=True), nn.Linear(3, 2)

    def forward(self, x):
        return self.out(self.layer(x.unsqueeze(-1))[0][:, -1])


@pytest.mark.parametrize("unit", PLANS)
def test_a_slow_layer_of_torch_fills_no_screen_with_warnings(unit):
    plan = decor.NoisePlan(decor.ring(3), PLANS[unit], decor.Adversary.eavesdropper(), 0.1, 0.1)
    task = made(Recurrent(), functional.cross_entropy)
    # warnings are errors in this suite
    assert decor.train(task, plan, learning_rate=0.1).steps_taken == 2


def test_a_task_is_short_in_a_notebook_and_shows_no_data():
    task = made(shards={f"town{k}": (X, Y) for k in range(30)}, test=(X, Y))
    html = task._repr_html_()
    assert "<td>town19</td><td>6</td>" in html and "town20" not in html
    assert "and 10 more" in html and "50.0%" in html
    assert str(X[0, 0]) not in html and len(repr(task)) < 100


class Branching(nn.Module):
    """What it computes depends on a value."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        return self.layer(x) if x.sum() > 0 else self.layer(-x)


@pytest.mark.parametrize("unit", PLANS)
def test_a_model_that_torch_cannot_differentiate_is_refused_in_one_sentence(unit):
    # one record at a time there is nothing to compare it with
    task = made(
        Branching(), functional.cross_entropy, [(abs(X[:1]), Y[k : k + 1]) for k in range(3)]
    )
    plan = decor.NoisePlan(
        decor.ring(3),
        decor.Exposure(1.0, 2)
        if unit == "user"
        else decor.Exposure(1.0, 2, unit="example", batch_size=1, records=1),
        decor.Adversary.eavesdropper(),
        0.1,
        0.1,
    )
    with pytest.raises(InputError, match="cannot differentiate the model .*branches on values"):
        decor.train(task, plan, learning_rate=0.1)


class Mixing(nn.Module):
    """Subtracts the mean of the batch: an example's output depends on the others."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        return self.layer(x - x.mean(0))


def test_a_model_that_mixes_examples_is_refused_with_the_cause():
    with pytest.raises(InputError, match="output for an example depends on the other examples"):
        trained(made(Mixing(), functional.cross_entropy))


@pytest.mark.filterwarnings("ignore:Using a target size")
def test_a_loss_that_broadcasts_is_refused_with_the_cause():
    task = made(nn.Linear(4, 1), functional.mse_loss, [(X, Y.astype("float32"))] * 3)
    said = r"outputs have shape \(4, 1\) and targets \(4,\); give targets .* y\[:, None\]"
    with pytest.raises(InputError, match=said):
        trained(task)


class Counting(nn.Module):
    """Keeps a statistic of what passes through."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x):
        self.seen += x.detach().sum(0)
        return self.layer(x)


def test_a_task_leaves_the_model_as_it_was():
    """Trying the model must not update its buffers with private data, nor draw random numbers."""
    model = Counting()
    random = torch.get_rng_state()
    with pytest.raises(InputError, match="changes its buffer 'seen' when it is called"):
        made(model, losses.cross_entropy)
    assert not model.seen.any()
    made(nn.Sequential(nn.Dropout(), models.mlp(4, 2)), losses.cross_entropy)
    assert torch.equal(random, torch.get_rng_state())


def test_statistics_of_examples_kept_by_any_norm_are_refused():
    model = nn.Sequential(
        nn.Unflatten(1, (2, 2)),
        nn.InstanceNorm1d(2, track_running_stats=True),
        nn.Flatten(),
        nn.Linear(4, 2),
    )
    with pytest.raises(InputError, match="InstanceNorm1d.*statistics"):
        trained(made(model, losses.cross_entropy))


@pytest.mark.parametrize(
    "model", [nn.Flatten(), nn.Linear(4, 2).requires_grad_(False), nn.Sequential()], ids=repr
)
def test_a_model_without_parameters_to_train_is_refused(model):
    with pytest.raises(
        InputError, match="no parameter that requires a gradient, so there is nothing to train"
    ):
        trained(made(model, losses.cross_entropy))


def test_complex_parameters_are_refused_rather_than_halved():
    class Filter(nn.Module):
        def __init__(self, dtype):
            super().__init__()
            self.values, self.out = nn.Parameter(torch.ones(3, dtype=dtype)), nn.Linear(4, 2)

        def forward(self, x):
            return self.out(torch.fft.irfft(torch.fft.rfft(x) * self.values, n=4))

    made(Filter(torch.float32), losses.cross_entropy)
    with pytest.raises(InputError, match="parameter 'values' is complex.*view_as_complex"):
        made(Filter(torch.complex64), losses.cross_entropy)


GIVEN = {
    "float64 features": (X.astype("float64"), Y),
    "whole numbers": ((4 * X).astype("int64"), Y),
    "bytes": (abs(40 * X).astype("uint8"), Y),
    "short labels": (X, Y.astype("int32")),
    "byte labels": (X, Y.astype("uint8")),
    "tensors": (torch.from_numpy(X), torch.from_numpy(Y)),
    "lists": (X.tolist(), Y.tolist()),
    "half precision": (X.astype("float16"), Y),
    "Fortran order": (np.asfortranarray(X), Y),
}


@pytest.mark.parametrize("path", ["auto", "generic"])
@pytest.mark.parametrize("kind", ["logistic", "classes", "loss object"])
@pytest.mark.parametrize("name", GIVEN)
def test_arrays_of_any_number_type_are_taken(name, kind, path):
    features, labels = GIVEN[name]
    model, loss = {
        "logistic": (models.logistic(4), losses.logistic),
        "classes": (models.mlp(4, 3, 2), losses.cross_entropy),
        "loss object": (models.mlp(4, 3, 2), nn.CrossEntropyLoss()),
    }[kind]
    task = made(model, loss, [(features, labels)] * 3)
    assert (
        task.users == 3
        and task.records == (6, 6, 6)
        and task.parameters == sum(p.numel() for p in model.parameters())
    )
    plain = [
        (
            torch.as_tensor(np.asarray(features, dtype="float64")),
            torch.as_tensor(np.asarray(labels, dtype="int64")),
        )
    ] * 3
    try:
        found = trained(task, path)
    except InputError as problem:
        # a module may want whole numbers, as an embedding does, so only the caller can say that
        # they stand for reals
        assert (
            name in ("whole numbers", "bytes")
            and "float" in str(problem).lower()
            and "convert" in str(problem)
        )
        return
    assert found.metrics == pytest.approx(
        trained(made(model.double(), loss, plain), path).metrics, rel=1e-6
    )


def test_labels_of_one_column_and_flat_ones_are_told_apart_alike_on_both_paths():
    found = []
    for path in ("auto", "generic"):
        try:
            found.append(trained(made(shards=[(X, Y[:, None])] * 3), path).metrics["loss"])
        except InputError:
            found.append(None)
    assert (found[0] is None) == (found[1] is None)


def test_shards_are_kept_apart_from_what_the_caller_does_next():
    needs = torch.from_numpy(X.copy()).requires_grad_()
    task = made(shards=[(needs, Y)] * 3)
    assert not task.shards[0][0].requires_grad
    with pytest.raises(AttributeError):
        task.name = "other"


def test_a_task_never_shows_its_records():
    assert repr(decor.tasks.breast_cancer(users=4)) == (
        "Task('breast-cancer', 4 users, 456 examples, 31 parameters)"
    )


BLOCK = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Block())
"""
NULLED = "import sys; sys.modules['torch'] = None\n"


def python(code):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=240
    )


@pytest.mark.parametrize(
    "block", [BLOCK.format(blocked=("torch", "safetensors")), NULLED], ids=["hook", "none"]
)
def test_without_torch_training_names_what_to_install_and_the_rest_works(block):
    code = block + (
        "import decor\n"
        "for name in ('train', 'Task', 'tasks', 'models', 'losses', 'Vectorised', 'sweep', "
        "'tune'):\n"
        "    try:\n"
        "        getattr(decor, name)\n"
        "    except decor.MissingExtra as problem:\n"
        "        assert f'decor.{name} needs torch' in str(problem), problem\n"
        "        assert \"pip install '.[train]'\" in str(problem), problem\n"
        "    else:\n"
        "        raise SystemExit(f'{name} came without torch')\n"
        "decor.calibrate(decor.ring(4), decor.Exposure(1.0, 5), decor.Adversary.eavesdropper(), "
        "decor.Budget(3.0, 1e-5))\n"
        "from decor.cli.main import main\n"
        "sys.exit(main(['plan', '--topology', 'ring', '--users', '4', '--epsilon', '3', "
        "'--steps', '5']))\n"
    )
    found = python(code)
    assert found.returncode == 0, found.stderr
    assert "sigma_cdp" in found.stdout


TRAIN = (
    "train --task breast-cancer --users 4 --epsilon 3 --steps 2 --learning-rate 1 --output"
).split()


@pytest.mark.parametrize(
    "block", [BLOCK.format(blocked=("torch", "safetensors")), NULLED], ids=["hook", "none"]
)
def test_without_torch_the_command_train_says_so_in_a_sentence(block, tmp_path):
    found = python(
        block + "from decor.cli.main import "
        f"main\nsys.exit(main({[*TRAIN, str(tmp_path / 'run')]!r}))"
    )
    assert found.returncode == 2, found.stderr
    assert "pip install '.[train]'" in found.stderr and "Traceback" not in found.stderr
    assert len(found.stderr.strip().splitlines()) == 1


def test_without_safetensors_a_run_names_what_to_install():
    code = BLOCK.format(blocked=("torch", "safetensors")) + (
        "import decor\n"
        "try:\n"
        "    decor.Run.load('somewhere')\n"
        "except decor.MissingExtra as problem:\n"
        "    assert \"pip install '.[train]'\" in str(problem)\n"
    )
    found = python(code)
    assert found.returncode == 0, found.stderr


def test_a_broken_torch_is_not_said_to_be_missing():
    code = (
        BLOCK.format(blocked=("numba",))
        + "import decor\ntry:\n    decor.train\nexcept decor.MissingExtra:\n    "
        "sys.exit(1)\nexcept ImportError:\n    pass\n"
    )
    found = python(code)
    assert found.returncode == 0, found.stderr
