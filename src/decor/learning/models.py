"""Plain torch models on the CPU in float32, and adapters for models of any kind.

None of them reads or advances torch's global random state.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn

from decor import checks
from decor.errors import InputError

from .lora import lora as lora

ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh}


def logistic(features: int) -> nn.Linear:
    """One logit, for two classes; starts at zero.

    Args:
        features: Inputs per example.
    """
    return multinomial(features, 1)


def multinomial(features: int, classes: int) -> nn.Linear:
    """One logit per class; starts at zero, which favours no class (the problem is convex).

    Args:
        features: Inputs per example.
        classes: Outputs.
    """
    layer = _linear(features, classes)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def linear(features: int) -> nn.Linear:
    """The inner product with a vector, without bias; starts at ones.

    Args:
        features: Inputs per example.
    """
    layer = _linear(features, 1, bias=False)
    nn.init.ones_(layer.weight)
    return layer


def mlp(*sizes: int, activation: str = "relu", seed: int = 0) -> nn.Sequential:
    """Linear layers of these sizes, with an activation between every two.

    Weights and biases are uniform between -1/sqrt(inputs) and 1/sqrt(inputs), as torch draws them.

    Args:
        sizes: From features to classes, such as 784, 128, 10.
        activation: "relu" or "tanh".
        seed: Selects the initial weights.
    """
    if len(sizes) < 2:
        raise InputError(f"mlp takes at least two sizes, such as mlp(784, 128, 10), not {sizes}")
    if activation not in ACTIVATIONS:
        raise InputError(f"activation must be one of {', '.join(ACTIVATIONS)}, not {activation!r}")
    generator = torch.Generator().manual_seed(checks.count("seed", seed, 0))
    layers: list[nn.Module] = []
    for inputs, outputs in zip(sizes[:-1], sizes[1:], strict=True):
        layer = _linear(inputs, outputs)
        # kaiming_uniform_ with a = sqrt(5), which nn.Linear uses
        bound = 1 / math.sqrt(inputs)
        with torch.no_grad():
            layer.weight.uniform_(-bound, bound, generator=generator)
            layer.bias.uniform_(-bound, bound, generator=generator)
        layers += [layer, ACTIVATIONS[activation]()]
    return nn.Sequential(*layers[:-1])


def cnn(
    image: Sequence[int], channels: Sequence[int], classes: int, *, seed: int = 0
) -> nn.Sequential:
    """Convolutions of 3 x 3 with ReLU, each followed by pooling that halves the image, then a
    linear layer.

    Examples are flat. Weights and biases are uniform between -1/sqrt(inputs) and 1/sqrt(inputs).

    Args:
        image: Channels, height and width.
        channels: Of each convolution.
        classes: Outputs.
        seed: Selects the initial weights.
    """
    generator = torch.Generator().manual_seed(checks.count("seed", seed, 0))
    planes, height, width = (checks.count("a size of the image", size) for size in image)
    layers: list[nn.Module] = [nn.Unflatten(1, (planes, height, width))]
    for count in channels:
        layer = nn.Conv2d(planes, count, 3, padding=1, device="meta")
        layers += [_uniform(layer, 9 * planes, generator), nn.ReLU(), nn.MaxPool2d(2)]
        planes, height, width = count, height // 2, width // 2
    inputs = planes * height * width
    last = nn.Linear(inputs, checks.count("classes", classes), device="meta")
    return nn.Sequential(*layers, nn.Flatten(), _uniform(last, inputs, generator))


def _uniform(layer: nn.Module, inputs: int, generator: torch.Generator) -> nn.Module:
    """The layer, made on "meta", with values as torch draws them, from the generator."""
    bound = 1 / math.sqrt(inputs)
    for name, parameter in list(layer.named_parameters()):
        values = torch.empty(parameter.shape, device="cpu", dtype=torch.float32)
        values.uniform_(-bound, bound, generator=generator)
        setattr(layer, name, nn.Parameter(values))
    return layer


def _linear(inputs: int, outputs: int, bias: bool = True) -> nn.Linear:
    """A layer with memory but without values."""
    inputs, outputs = (checks.count("the size of a layer", size) for size in (inputs, outputs))
    # on "meta", because torch's own initialisation would draw from the global random state
    layer = nn.Linear(inputs, outputs, bias=bias, device="meta")
    # not .to_empty(), which imports sympy: a quarter of a second in every process
    for name, parameter in list(layer.named_parameters()):
        values = torch.empty(parameter.shape, device="cpu", dtype=torch.float32)
        setattr(layer, name, nn.Parameter(values))
    return layer
