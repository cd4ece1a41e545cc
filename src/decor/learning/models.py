"""Plain torch models on the CPU in float32.

None of them reads or moves torch's global random state.
"""

from __future__ import annotations

import math

import torch
from torch import nn

from decor import checks
from decor.errors import InputError

ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh}


def logistic(features: int) -> nn.Linear:
    """One logit, for two classes; starts at zero."""
    return multinomial(features, 1)


def multinomial(features: int, classes: int) -> nn.Linear:
    """One logit a class; starts at zero, which is fair to every class and, the problem being
    convex, as good a start as any.
    """
    layer = _linear(features, classes)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def linear(features: int) -> nn.Linear:
    """The inner product with a vector, no bias; starts at ones."""
    layer = _linear(features, 1, bias=False)
    nn.init.ones_(layer.weight)
    return layer


def mlp(*sizes: int, activation: str = "relu", seed: int = 0) -> nn.Sequential:
    """Linear layers of these sizes, from features to classes, with an activation between any two.

    Weights and biases are uniform between -1/sqrt(inputs) and 1/sqrt(inputs), as torch draws them,
    and follow the seed.
    """
    if len(sizes) < 2:
        raise InputError(f"mlp takes at least two sizes, such as mlp(784, 128, 10), not {sizes}")
    if activation not in ACTIVATIONS:
        raise InputError(f"activation must be one of {', '.join(ACTIVATIONS)}, not {activation!r}")
    generator = torch.Generator().manual_seed(checks.count("seed", seed, 0))
    layers: list[nn.Module] = []
    for inputs, outputs in zip(sizes[:-1], sizes[1:], strict=True):
        layer = _linear(inputs, outputs)
        bound = 1 / math.sqrt(inputs)
        with torch.no_grad():
            layer.weight.uniform_(-bound, bound, generator=generator)
            layer.bias.uniform_(-bound, bound, generator=generator)
        layers += [layer, ACTIVATIONS[activation]()]
    return nn.Sequential(*layers[:-1])


def _linear(inputs: int, outputs: int, bias: bool = True) -> nn.Linear:
    """A layer with memory but no values yet: torch's own start would draw from the global random
    state.
    """
    inputs, outputs = (
        checks.count("the size of a layer", inputs, 1),
        checks.count("the size of a layer", outputs, 1),
    )
    layer = nn.Linear(inputs, outputs, bias=bias, device="meta")
    # .to_empty would load sympy, a quarter of a second in every process
    for name, parameter in list(layer.named_parameters()):
        setattr(
            layer,
            name,
            nn.Parameter(torch.empty(parameter.shape, device="cpu", dtype=torch.float32)),
        )
    return layer
