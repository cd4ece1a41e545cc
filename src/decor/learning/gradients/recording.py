"""Runs a module with the parameters of n models at once and records how it uses them.

Examples are mapped over by `torch.vmap`, so that no example can influence another, whatever the
module does. In place of its parameters the module gets placeholders. A function that meets one,
such as `torch.nn.functional.linear`, is carried out for all models together by its rule, which
records what it saw. After one backward pass each record becomes contributions to the gradients of
single examples. A function without a rule gets a copy of the parameter for each example.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.func import functional_call, vmap
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from .contributions import Contribution, Given, join
from .module_memory import memory_dropped

Rule = Callable[..., Any]
Contributions = list[tuple[str, Contribution]]
"""To the gradients of parameters, by name."""


class Unsupported(Exception):
    """The module does what a recording cannot follow."""


@dataclass(frozen=True)
class Record:
    """One use of parameters.

    Attributes:
        output: Where to take the gradient from.
        contributions: From the output's gradient.
        input: What the contributions need besides.
        version: Of the input's values, which must not have changed until then.
    """

    output: GradientEdge
    contributions: Callable[[Tensor], Contributions]
    input: Tensor
    version: int


class Placeholder(torch.Tensor):
    """Stands for one parameter of all models; has no values, so it cannot be used unnoticed."""

    recording: Recording
    known_as: str
    stacked: Tensor
    flipped: bool
    """Whether `stacked` is the transpose of the parameter."""

    @staticmethod
    def __new__(
        cls, recording: Recording, name: str, values: Tensor, flipped: bool = False
    ) -> Placeholder:
        made: Placeholder = torch.Tensor._make_wrapper_subclass(
            cls, values.shape[1:], dtype=values.dtype, device=values.device, requires_grad=True
        )
        made.recording, made.known_as, made.stacked = recording, name, values
        made.flipped = flipped
        return made

    def transpose_of_all(self) -> Placeholder:
        """Of a matrix."""
        values = self.stacked.transpose(1, 2)
        return Placeholder(self.recording, self.known_as, values, not self.flipped)

    @classmethod
    def __torch_function__(
        cls,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        # torch reads attributes such as shape through __get__, but also values such as .T
        attribute = getattr(func, "__name__", "") == "__get__" and func not in _VALUES
        if attribute or func in DESCRIPTIONS:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        flat = _placeholders((*args, *kwargs.values()))
        recording = flat[0].recording
        if func in recording.rules:
            result = _follow(recording.rules[func], recording, args, kwargs)
            if result is not NotImplemented:
                return result
        for parameter in flat:
            recording.copied[parameter.known_as] = getattr(func, "__name__", str(func))
        # by identity, because == of tensors compares values, which placeholders do not have
        copies = {id(p): recording.copy(p) for p in flat}
        args, kwargs = _replace(args, copies), {k: _replace(v, copies) for k, v in kwargs.items()}
        return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        raise Unsupported(f"{func} was given a parameter without passing through torch's functions")


class Recording:
    """One run of a module for n models with m examples each, and one backward pass.

    Args:
        model: The module.
        parameters: Trained parameters of all models by name, [n, *shape].
        fixed: What is not trained, by name.
        tied: Further names of trained parameters.
        rules: How functions that meet a parameter are carried out for all models together:
            (recording, arguments) -> output, or NotImplemented for arguments they do not cover.
        randomness: As of `torch.vmap`.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        parameters: Mapping[str, Tensor],
        fixed: Mapping[str, Tensor],
        tied: Mapping[str, str],
        rules: Mapping[Any, Rule],
        randomness: str = "different",
    ) -> None:
        self.model, self.rules, self.randomness = model, rules, randomness
        # by identity: a value made of a frozen parameter is no frozen parameter
        self.frozen = {id(each) for each in fixed.values()}
        self.models = len(next(iter(parameters.values())))
        named = {name: Placeholder(self, name, values) for name, values in parameters.items()}
        self.named: dict[str, Tensor] = {
            **named,
            **{k: named[own] for k, own in tied.items()},
            **fixed,
        }
        self.records: list[Record] = []
        self.number: Tensor | None = None
        self.values, self.copied_values = 0, 0
        self.copied: dict[str, str] = {}
        """Parameters that examples have copies of -> the function that has no rule."""

    def run(self, cost: Callable[..., Tensor], *examples: Tensor) -> dict[str, Contribution]:
        """Contributions of all examples to the gradients, by parameter.

        Args:
            cost: (output of the module, targets) -> the loss of one example.
            examples: The inputs and targets, [n * m, ...]; the last are the targets.
        """

        def one(number: Tensor, *example: Tensor) -> Tensor:
            self.number = number
            output = functional_call(self.model, self.named, example[:-1], strict=False)
            # a loss is no product, and eight bits would be all that is known of it
            return cost(at_least_float32(output), example[-1])

        count = len(examples[0])
        numbers = torch.arange(count, device=examples[0].device)
        with torch.enable_grad(), _AllAtOnce(self), memory_dropped(self.model):
            each = vmap(one, randomness=self.randomness)(numbers, *examples)
        # placeholders refer to this recording: without this, what it holds stays for long
        records, self.records, self.named, self.number = self.records, [], {}, None
        if not records or not each.requires_grad:
            return {}
        edges = [record.output for record in records]
        # examples never meet under vmap: the gradient of the sum has each one's own
        ones = torch.ones_like(each)
        parts: dict[str, list[Contribution]] = {}
        # gradients have the types that the outputs had; what is made of them is float32
        with torch.no_grad(), torch.autocast(each.device.type, enabled=False):
            found = torch.autograd.grad(each, edges, ones, allow_unused=True)
            for record, g in zip(records, found, strict=True):
                # contributions would belong to other values than those the output was made of
                if record.input._version != record.version:
                    raise Unsupported("an input of a layer was changed in place")
                if g is None:
                    # the loss does not depend on this use
                    continue
                for name, contribution in record.contributions(g):
                    parts.setdefault(name, []).append(contribution)
            return {name: join(several) for name, several in parts.items()}

    def apply(self, rule: Rule, *inputs: Tensor) -> Tensor:
        """The rule, on all examples together."""
        if self.number is None:
            raise Unsupported("a parameter is used outside the module's forward")
        output: Tensor = _OnAll.apply(rule, self.number, *inputs)  # type: ignore[no-untyped-call]
        return output

    def layer(
        self,
        forward: Callable[[Tensor], Tensor],
        backward: Callable[[Tensor], Tensor] | None,
        contributions: Callable[[Tensor], Contributions],
        x: Tensor,
    ) -> Tensor:
        """The output of a layer for all examples, whose gradient makes contributions.

        Args:
            forward: From the input to a new output.
            backward: From the output's gradient to the input's; None if the input needs none.
            contributions: From the output's gradient.
            x: The input.
        """
        if not torch.is_grad_enabled():
            # nothing behind it has a gradient, and neither has what it is made of
            return forward(x.detach())
        leaf = torch.zeros((), device=x.device, requires_grad=True)
        output: Tensor = _Layer.apply(forward, backward, leaf, x)  # type: ignore[no-untyped-call]
        # what stays in memory until the backward pass: the size of chunks follows from it
        self.values += size_in_memory(output) + size_in_memory(x)
        # what changes the output in place later comes after this edge
        edge = get_gradient_edge(output)
        self.records.append(Record(edge, contributions, x, x._version))
        return output

    def copy(self, parameter: Placeholder) -> Tensor:
        """A copy of the parameter for each example."""

        def rule(numbers: Tensor) -> Tensor:
            values = parameter.stacked
            each = len(numbers) // len(values)
            self.copied_values += each * size_in_memory(values)
            return self.layer(
                lambda _: values.repeat_interleave(each, 0),
                None,
                lambda g: [
                    (parameter.known_as, Given(g.transpose(1, 2) if parameter.flipped else g))
                ],
                numbers,
            )

        return self.apply(rule)

    def body_linear(self, input: Any, weight: Any, bias: Any = None) -> Any:
        """A layer that is not trained: one product for all examples of all models.

        No model has a copy of it, and nothing is computed for its gradient. `vmap` would do the
        same, but add the bias apart, and round the result to a wider type in between.
        """
        known = all(p is None or id(p) in self.frozen for p in (weight, bias))
        whole = torch.is_tensor(input) and not isinstance(input, Placeholder)
        if not known or weight.dim() != 2 or not whole:
            return NotImplemented

        def rule(numbers: Tensor, x: Tensor) -> Tensor:
            rows = x.reshape(-1, x.shape[-1])
            out = functional.linear(rows, weight, bias)
            self.values += size_in_memory(out)
            return out.view(*x.shape[:-1], len(weight))

        return self.apply(rule, input)

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **options: Any,
    ) -> Any:
        """Scaled dot product attention, which `vmap` would take for one example after the other."""
        inputs = (query, key, value) if attn_mask is None else (query, key, value, attn_mask)
        # one call for all examples would drop other values in each
        alike = self.randomness == "same" and dropout_p > 0
        if alike or any(isinstance(x, Placeholder) for x in inputs):
            return NotImplemented

        # heads of queries may share those of keys: then there are fewer of these
        own = 3 if options.get("enable_gqa") else 2

        def rule(numbers: Tensor, q: Tensor, k: Tensor, v: Tensor, *masks: Tensor) -> Tensor:
            leading = torch.broadcast_shapes(  # type: ignore[no-untyped-call]
                *(x.shape[:-own] for x in (q, k, v))
            )
            aligned = [_align(x, len(leading) + own) for x in (q, k, v, *masks)]
            # [examples * ..., heads, tokens, size]
            q, k, v, *mask = [x.expand(*leading, *x.shape[-own:]).flatten(0, -4) for x in aligned]
            out = functional.scaled_dot_product_attention(
                q, k, v, mask[0] if mask else None, dropout_p, is_causal, **options
            )
            return out.reshape(*leading, *out.shape[-own:])

        return self.apply(rule, *inputs)


class _AllAtOnce(TorchFunctionMode):
    """Takes for all examples at once what `vmap` would take one after the other, or in parts."""

    def __init__(self, recording: Recording) -> None:
        super().__init__()
        self.rules: dict[Any, Rule] = {
            functional.scaled_dot_product_attention: recording.attend,
            functional.linear: recording.body_linear,
        }

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        rule = self.rules.get(func)
        result = NotImplemented if rule is None else rule(*args, **kwargs)
        return func(*args, **kwargs) if result is NotImplemented else result


def size_in_memory(x: Tensor) -> int:
    """The memory of a tensor, in values of four bytes."""
    return x.numel() * x.element_size() // 4


def at_least_float32(output: Any) -> Any:
    """A tensor of short values in float32; anything else as it is."""
    short = torch.is_tensor(output) and output.dtype in (torch.bfloat16, torch.float16)
    return output.float() if short else output


def _align(x: Tensor, dimensions: int) -> Tensor:
    """With ones after the dimension of examples, so that the others are the last."""
    return x.view(len(x), *[1] * (dimensions - x.dim()), *x.shape[1:])


class _OnAll(torch.autograd.Function):
    """Carries a rule through `vmap`: it sees whole tensors, examples first."""

    @staticmethod
    def forward(rule: Rule, number: Tensor, *inputs: Tensor) -> Tensor:
        raise Unsupported("a parameter is used where examples are not mapped over")

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Never called: there is a rule for `vmap`."""

    @staticmethod
    def vmap(info: Any, in_dims: Any, rule: Rule, number: Tensor, *inputs: Tensor) -> Any:
        count = info.batch_size
        whole = [
            x.unsqueeze(0).expand(count, *x.shape) if dim is None else x.movedim(dim, 0)
            for x, dim in zip(inputs, in_dims[2:], strict=True)
        ]
        return rule(number, *whole), 0


class _Layer(torch.autograd.Function):
    """A layer whose gradient goes to its input alone."""

    @staticmethod
    def forward(ctx: Any, forward: Any, backward: Any, leaf: Tensor, x: Tensor) -> Tensor:
        """`leaf` makes the output need a gradient where the input does not."""
        ctx.through = backward
        output: Tensor = forward(x)
        return output

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        needed = ctx.needs_input_grad[3] and ctx.through is not None
        return None, None, None, ctx.through(g) if needed else None


def _follow(
    rule: Rule, recording: Recording, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """What the rule makes of these arguments, or NotImplemented."""
    if kwargs:
        # the first argument of torch's functions, which rules take by place
        kwargs = dict(kwargs)
        args = (kwargs.pop("input"), *args) if "input" in kwargs else args
        try:
            inspect.signature(rule).bind(recording, *args, **kwargs)
        except TypeError:
            return NotImplemented
    return rule(recording, *args, **kwargs)


def is_for_all(value: Any) -> bool:
    """Whether a rule may use it for all examples: a parameter, or what no example has made."""
    if isinstance(value, Placeholder):
        return not value.flipped
    if not torch.is_tensor(value):
        return True
    mapped: bool = torch._C._functorch.is_batchedtensor(value)
    return not (mapped or value.requires_grad)


def _placeholders(values: Any) -> list[Placeholder]:
    """All placeholders among nested arguments."""
    if isinstance(values, Placeholder):
        return [values]
    if isinstance(values, (tuple, list)):
        return [p for value in values for p in _placeholders(value)]
    return []


def _replace(value: Any, copies: Mapping[int, Tensor]) -> Any:
    if isinstance(value, Placeholder):
        return copies[id(value)]
    if isinstance(value, (tuple, list)):
        return type(value)(_replace(each, copies) for each in value)
    return value


DESCRIPTIONS = {
    torch.Tensor.size,
    torch.Tensor.dim,
    torch.Tensor.numel,
    torch.Tensor.stride,
    torch.Tensor.is_floating_point,
    torch.Tensor.is_complex,
    torch.Tensor.__len__,
    torch.is_floating_point,
    torch.numel,
}
"""What may be asked of a parameter without using its values."""

_VALUES = {
    getattr(torch.Tensor, name).__get__ for name in ("T", "mT", "H", "mH", "data", "real", "imag")
}
"""Attributes that use values."""

# torch binds arguments to this signature at every use, which takes long where it is not stored
_OnAll.forward.__signature__ = inspect.signature(_OnAll.forward)  # type: ignore[attr-defined]
