"""Targets are classes or values: known losses say which, and types where the loss does not."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from decor.learning import losses
from decor.learning.target_kinds import has_classes

WHOLE, REAL = torch.arange(4), torch.rand(4)


@pytest.mark.parametrize(
    ("loss", "whole", "real"),
    [
        (losses.logistic, True, True),
        (functional.binary_cross_entropy_with_logits, True, True),
        (nn.CrossEntropyLoss(), True, True),
        (losses.squared, False, False),
        (nn.MSELoss(), False, False),
        (functional.l1_loss, False, False),
        (lambda output, target: (output - target).mean(), True, False),
    ],
)
def test_targets_are_classes_by_the_loss_or_else_by_their_type(loss, whole, real):
    assert has_classes(loss, WHOLE) is whole and has_classes(loss, REAL) is real
