"""Losses against their definitions: the mean over examples."""

import pytest
import torch

from decor.errors import InputError
from decor.learning import losses

Z = torch.tensor([[-2.0], [0.5], [3.0]], dtype=torch.float64)


@pytest.mark.parametrize("shape", [(3,), (3, 1)])
def test_the_logistic_loss_is_that_of_signed_margins(shape):
    y = torch.tensor([0, 1, 1]).reshape(shape)
    signs = torch.tensor([[-1.0], [1.0], [1.0]], dtype=torch.float64)
    assert losses.logistic(Z, y).item() == pytest.approx(
        torch.log1p(torch.exp(-signs * Z)).mean().item()
    )


def test_cross_entropy_of_two_classes_is_the_logistic_loss_of_their_difference():
    y = torch.tensor([0, 1, 1])
    both = torch.cat([torch.zeros_like(Z), Z], 1)
    assert losses.cross_entropy(both, y).item() == pytest.approx(losses.logistic(Z, y).item())


def test_the_squared_loss_sums_within_an_example_and_averages_over_examples():
    output = torch.arange(6.0).reshape(3, 2)
    assert losses.squared(output, torch.zeros(3, 2)).item() == pytest.approx(
        (0 + 1 + 4 + 9 + 16 + 25) / 2 / 3
    )


@pytest.mark.parametrize("loss", [losses.logistic, losses.squared])
def test_targets_of_another_number_are_refused_rather_than_broadcast(loss):
    with pytest.raises(InputError, match="one target for every output"):
        loss(torch.zeros(3, 2), torch.zeros(3))
