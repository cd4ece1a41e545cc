"""The model of a federation's file, and data that fits it."""

import sys
from types import ModuleType

import numpy as np
import pytest
from federation_files import BASES, EXAMPLE, MODEL, TEXT, with_section

import decor
from decor.errors import InputError
from decor.federation.federation import Federation

MODELS = [
    ('kind = "logistic"\nfeatures = 6', 7, decor.losses.logistic, 2),
    ('kind = "multinomial"\nfeatures = 6\nclasses = 3', 21, decor.losses.cross_entropy, 3),
    (
        'kind = "cnn"\nclasses = 3\nimage = [1, 2, 3]\nchannels = [4]',
        40 + 15,
        decor.losses.cross_entropy,
        3,
    ),
    ('kind = "linear"\nfeatures = 6', 6, decor.losses.squared, 5),
    (
        'kind = "mlp"\nfeatures = 6\nclasses = 3\nhidden = [5, 4]',
        35 + 24 + 15,
        decor.losses.cross_entropy,
        3,
    ),
]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("model", "count", "loss", "classes"), MODELS, ids=lambda value: str(value)[:20]
)
def test_a_users_task_has_the_files_model(model, count, loss, classes, dtype):
    text = TEXT.replace(MODEL, f"\n[model]\n{model}\n").replace("clip", f'dtype = "{dtype}"\nclip')
    federation = Federation.parse(text)
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((12, 6)).astype(np.float32), np.arange(12) % classes
    task = federation.task((X, y), test=(X[:5], y[:5]))
    assert task.users == 1 and task.records == (12,) and len(task.test[0]) == 5
    assert task.parameters == federation.parameters == count and task.loss is loss
    assert {str(p.dtype) for p in task.model.parameters()} == {f"torch.{dtype}"} and str(
        task.shards[0][0].dtype
    ) == f"torch.{dtype}"
    again = federation.task((X, y))
    assert all(
        (a == b).all()
        for a, b in zip(task.model.parameters(), again.model.parameters(), strict=True)
    )


def test_a_model_may_be_public_code_whose_randomness_follows_the_seed(monkeypatch):
    import torch

    own = ModuleType("own")
    own.model = lambda: (torch.nn.Linear(6, 3), torch.nn.functional.cross_entropy)
    own.wrong = lambda: torch.nn.Linear(6, 3)
    monkeypatch.setitem(sys.modules, "own", own)
    federation = Federation.parse(BASES["code"])
    assert federation.parameters == 21
    torch.manual_seed(0)
    drawn = torch.rand(1)
    torch.manual_seed(0)
    one = federation.task((np.ones((4, 6), np.float32), np.array([0, 1, 2, 0])))
    assert torch.rand(1) == drawn, "torch's own state is left alone"
    other = with_section(federation, "model", seed=1).task(
        (np.ones((4, 6), np.float32), np.array([0, 1, 2, 0]))
    )
    assert not (one.model.weight == other.model.weight).all()
    with pytest.raises(
        InputError,
        match=r"must return \(torch.nn.Module, loss\), not Linear",
    ):
        _ = with_section(federation, "model", code="own:wrong").parameters
    with pytest.raises(
        InputError, match="model.code 'own:nothing': the module has no function 'nothing'"
    ):
        _ = with_section(federation, "model", code="own:nothing").parameters
    with pytest.raises(
        InputError, match="model.code 'nowhere:model': the module cannot be imported"
    ):
        _ = with_section(federation, "model", code="nowhere:model").parameters


def test_data_that_does_not_fit_is_refused_without_a_word_of_what_it_holds():
    federation = Federation.parse(TEXT)
    X, y = np.full((4, 30), 77.125, np.float32), np.array([0, 1, 0, 1])
    for shard, said in (
        ((X[:, :29], y), r"the data has records of shape \(29,\), and model.features is 30"),
        (
            (X, np.array([0, 1, 77, 1])),
            r"the data has a label at record 2 \(counted from 0\) that "
            r"is not a class from 0 to 1",
        ),
        ((X, np.array([0, 1, 0.5, 1])), "label at record 2 .* that is not a class"),
        ((X, np.array([0, 1, np.nan, 1])), "label at record 2 .* that is not a class"),
        ((X, y[:, None]), "has a label that is not a class"),
        (("77", None), r"must be a pair \(X, y\) of arrays"),
    ):
        with pytest.raises(InputError, match=said) as caught:
            federation.task(shard)
        assert "77" not in str(caught.value)
    with pytest.raises(InputError, match=r"the test data has records of shape \(3,\)"):
        federation.task((X, y), test=(X[:, :3], y))


def test_example_level_refuses_another_number_of_records():
    federation = Federation.parse(EXAMPLE)
    X, y = np.zeros((120, 30), np.float32), np.arange(120) % 2
    assert federation.task((X, y), user=1).records == (120,)
    with pytest.raises(
        InputError,
        match="the data has 119 records, and users.records says 120: the epsilon would not be true",
    ):
        federation.task((X[1:], y[1:]), user=1)
