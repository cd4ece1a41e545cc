"""The joint table of examples: metrics of many models are those of each."""

import pytest
import torch
from gradient_oracle import (
    BUILT_IN,
    F64,
    PATHS,
    SIZES,
    added_by,
    assert_close,
    batches_of,
    clips,
    expected,
    fast,
    plainly,
    same_models,
    scattered,
    task,
)
from torch import nn

from decor.learning import losses
from decor.learning.gradients import example_table
from decor.learning.gradients.modules import Modules
from decor.learning.gradients.quadratic import Quadratic
from decor.learning.task import Task


@pytest.mark.parametrize("test", [False, True])
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", BUILT_IN)
def test_metrics_of_many_models_are_those_of_each(monkeypatch, name, path, test):
    made = BUILT_IN[name]()
    X, y = made.shards[0][0], made.shards[0][1]
    given = Task(made.model, made.loss, made.shards, (X * 1.5, y.flip(0)) if test else None)
    gradients = PATHS[path](given)
    blocks = [b.flatten(0, 2) for b in scattered(gradients, 2, shape=(1, 2))]
    wanted = [
        plainly(given, {n: v[k] for n, v in gradients.state(blocks).items()})
        for k in range(len(blocks[0]))
    ]
    found = gradients.evaluate(blocks)
    # a piece of the data at a time is the same
    monkeypatch.setattr(
        example_table,
        "chunks",
        lambda count, each, most: [slice(k, min(k + 2, count)) for k in range(0, count, 2)],
    )
    for metrics in (found, gradients.evaluate(blocks)):
        for k, each in enumerate(wanted):
            assert metrics.keys() == each.keys()
            assert {n: float(v[k]) for n, v in metrics.items()} == pytest.approx(
                each, rel=1e-9, abs=1e-12
            )


def test_every_user_counts_the_same_in_the_loss_whatever_its_records():
    X = torch.ones(10, 1, dtype=F64)
    y = torch.zeros(10, 1, dtype=F64)
    layer = nn.Linear(1, 1, bias=False).double()
    with torch.no_grad():
        layer.weight.fill_(1.0)
    given = Task(layer, losses.squared, [(X[:9], y[:9]), (3 * X[9:], y[9:])])
    for gradients in (fast(given), Modules(given, F64), Quadratic(given, F64)):
        blocks = [b.unsqueeze(0) for b in gradients.initial()]
        assert float(gradients.evaluate(blocks)["loss"][0]) == pytest.approx(
            (0.5 + 4.5) / 2, rel=1e-12
        )


@pytest.mark.parametrize("odd", [None, 0.0, 255.0, 256.0, -1.0, 0.5, 1e10, 300.25, 511.0])
@pytest.mark.parametrize("bias", [True, False])
def test_features_kept_as_bytes_change_nothing(odd, bias):
    def whole(m, generator):
        X = torch.randint(256, (m, 5), generator=generator).double()
        if odd is not None and m == SIZES[1]:
            X[2, 3] = odd
        return X

    given = task(nn.Linear(5, 3, bias=bias), losses.cross_entropy, X=whole)
    quick, generic = fast(given), Modules(given, F64)
    assert (quick.data.X.dtype == torch.uint8) == (odd in (None, 0.0, 255.0))
    blocks = scattered(quick, 3, scale=0.01)
    same = same_models(generic, quick, blocks)
    batch = batches_of(given, "all")
    for level, wanted in expected(given, quick.state(blocks), batch, *clips()).items():
        assert_close(added_by(quick, blocks, batch, level), wanted, 1e-9)
        assert_close(added_by(generic, same, batch, level), wanted, 1e-9)
    found = [
        g.evaluate([b[:, 0, 0] for b in held])["loss"]
        for g, held in ((quick, blocks), (generic, same))
    ]
    assert torch.allclose(*found, rtol=1e-9)
