import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

import decor
from decor.errors import InputError
from decor.learning import models


@pytest.mark.parametrize(
    ("model", "inputs", "outputs", "parameters"),
    [
        (models.logistic(123), 123, 1, 124),
        (models.multinomial(64, 10), 64, 10, 650),
        (models.linear(10), 10, 1, 10),
        (models.mlp(784, 128, 10), 784, 10, 101_770),
        (models.mlp(5, 4, 3, 2, activation="tanh"), 5, 2, 24 + 15 + 8),
    ],
    ids=["logistic", "multinomial", "linear", "mlp", "deep"],
)
def test_every_model_is_plain_float32_torch_of_the_size_it_says(model, inputs, outputs, parameters):
    assert sum(p.numel() for p in model.parameters()) == parameters
    assert all(
        p.dtype == torch.float32 and p.requires_grad and p.device.type == "cpu"
        for p in model.parameters()
    )
    assert model(torch.zeros(7, inputs)).shape == (7, outputs)
    assert type(model) in (nn.Linear, nn.Sequential), "the fast path knows these"


def test_linear_models_start_where_they_say():
    assert all(
        (p == 0).all()
        for p in [*models.logistic(4).parameters(), *models.multinomial(4, 3).parameters()]
    )
    assert (models.linear(4).weight == 1).all() and models.linear(4).bias is None


def test_layers_alternate_with_the_activation_and_end_without():
    assert [type(layer) for layer in models.mlp(4, 3, 2)] == [nn.Linear, nn.ReLU, nn.Linear]
    assert [type(layer) for layer in models.mlp(4, 3, 3, 2, activation="tanh")][1::2] == [
        nn.Tanh,
        nn.Tanh,
    ]
    assert [type(layer) for layer in models.mlp(4, 2)] == [nn.Linear]


@pytest.mark.parametrize("layer", [0, 2])
def test_first_weights_follow_the_law_of_torch(layer):
    """Uniform within 1/sqrt(inputs), not within 2/3 or 3/2 of it; torch's own layers pass too."""
    torch.manual_seed(0)
    ours, theirs = (
        models.mlp(40, 900, 900, seed=1)[layer],
        nn.Linear(40 if layer == 0 else 900, 900),
    )
    bound = 1 / math.sqrt(ours.in_features)
    for mine in (ours, theirs):
        for values in (mine.weight, mine.bias):
            flat = values.detach().flatten()[:20_000].double().numpy()
            assert abs(flat).max() <= bound * (1 + 1e-6)
            for scale, fits in ((1, True), (2 / 3, False), (3 / 2, False)):
                law = stats.uniform(-scale * bound, 2 * scale * bound)
                assert (stats.kstest(flat, law.cdf).pvalue > 1e-4) == fits


def test_weights_follow_their_seed_and_leave_the_global_random_state_alone():
    def flat(seed):
        return torch.cat([p.flatten() for p in models.mlp(8, 6, 4, seed=seed).parameters()])

    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = flat(3)
    models.logistic(5), models.multinomial(5, 3), models.linear(5)
    assert torch.equal(torch.get_rng_state(), before), "not moved"
    torch.manual_seed(2)
    assert torch.equal(first, flat(3)), "not read"
    assert not torch.equal(first, flat(4))
    assert len(set(first.tolist())) == len(first), "every weight is drawn"


def test_a_default_type_set_elsewhere_changes_nothing():
    torch.set_default_dtype(torch.float64)
    try:
        model = models.mlp(3, 2, 2)
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(
        torch.equal(a, b)
        for a, b in zip(model.parameters(), models.mlp(3, 2, 2).parameters(), strict=True)
    )


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: models.mlp(4), r"at least two sizes, such as mlp\(784, 128, 10\), not \(4,\)"),
        (lambda: models.mlp(4, 0, 2), "size of a layer must be .*not 0"),
        (lambda: models.mlp(4, 2.5), "not 2.5"),
        (lambda: models.mlp(4, 2, activation="gelu"), "relu, tanh, not 'gelu'"),
        (lambda: models.mlp(4, 2, seed=-1), "seed"),
        (lambda: models.logistic(0), "not 0"),
        (lambda: models.multinomial(4, True), "not True"),
    ],
)
def test_impossible_models_say_what_to_give_instead(build, said):
    with pytest.raises(InputError, match=said):
        build()


def test_a_small_cnn_takes_flat_images_and_follows_its_seed():
    before = torch.random.get_rng_state()
    first, again, other = (models.cnn((2, 9, 6), (4, 3), 5, seed=s) for s in (1, 1, 2))
    assert torch.equal(before, torch.random.get_rng_state())
    X = torch.arange(3 * 108).reshape(3, 108) / 108
    assert first(X).shape == (3, 5) and torch.equal(first(X), again(X))
    assert not torch.equal(first(X), other(X))
    # 9 x 6 is halved twice: 2 x 1
    by_hand = X.reshape(3, 2, 9, 6)
    for layer in (first[1], first[4]):
        by_hand = torch.nn.functional.max_pool2d(layer(by_hand).relu(), 2)
    assert torch.allclose(first(X), first[-1](by_hand.flatten(1)))


def test_a_small_cnn_learns_images_example_by_example():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 80)
    X = rng.normal(0, 0.3, (80, 6, 6)).astype("f")
    X[y == 1, 1:4, 1:4] += 1
    shards = [(X[k::4].reshape(20, 36), y[k::4]) for k in range(4)]
    task = decor.Task(models.cnn((1, 6, 6), (4,), 2), decor.losses.cross_entropy, shards, shards[0])
    exposure = decor.Exposure(1.0, 30, "example", 8, 20)
    plan = decor.NoisePlan(decor.ring(4), exposure, decor.Adversary.curious(), 0.01, 0.01)
    assert decor.train(task, plan, learning_rate=0.5).metrics["accuracy"] > 0.9
