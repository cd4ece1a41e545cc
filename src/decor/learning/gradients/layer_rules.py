"""How common layers are computed for the parameters of n models at once, and what they contribute.

Inputs of rules begin with the dimension of examples: those of the first model, of the second, ...
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from decor.learning.attention import attend

from .contributions import Convolution, Geometry, Given, Lookup, Outer
from .recording import Contributions, Placeholder, Recording, Rule, is_for_all

convolution_backward = torch.ops.aten.convolution_backward


def _linear(
    recording: Recording, x: Any, weight: Any, bias: Any = None, transposed: bool = False
) -> Any:
    # NotImplemented is always right, only slow: examples then get copies of the parameter
    whole = isinstance(weight, Placeholder) or is_for_all(weight)
    if not torch.is_tensor(x) or weight.dim() != 2 or not whole or not is_for_all(bias):
        return NotImplemented
    x = _values(recording, x)

    def rule(numbers: Tensor, x: Tensor) -> Tensor:
        n, inputs, kind = recording.models, x.shape[-1], product_type(x)
        # a frozen weight comes here too, where the bias is trained
        W = weight.stacked if isinstance(weight, Placeholder) else weight.expand(n, *weight.shape)
        W = (W if transposed else W.transpose(1, 2)).to(kind)  # [n, inputs, outputs]
        own = bias.stacked if isinstance(bias, Placeholder) else bias
        # rounded once, for the product and for what it contributes
        short = x.detach().to(kind)

        def forward(_: Tensor) -> Tensor:
            out = short.new_empty(*x.shape[:-1], W.shape[2])
            flat, rows = out.view(n, -1, W.shape[2]), short.reshape(n, -1, inputs)
            if isinstance(bias, Placeholder):
                torch.baddbmm(own.to(kind).unsqueeze(1), rows, W, out=flat)
            else:
                torch.bmm(rows, W, out=flat)
            return out if bias is None or isinstance(bias, Placeholder) else out.add_(own)

        def backward(g: Tensor) -> Tensor:
            back = torch.bmm(g.reshape(n, -1, g.shape[-1]), W.transpose(1, 2))
            return back.view(x.shape).to(x.dtype)

        def contributions(g: Tensor) -> Contributions:
            tokens = g.reshape(len(numbers), -1, g.shape[-1])
            found: Contributions = []
            if isinstance(weight, Placeholder):
                into = short.reshape(len(numbers), -1, inputs)
                # as of the parameter itself, which the layer may have used the other way round
                pair = (into, tokens) if transposed != weight.flipped else (tokens, into)
                found.append((weight.known_as, Outer(*pair)))
            if isinstance(bias, Placeholder):
                # a sum over a single token would only be a copy
                several = tokens.shape[1] > 1
                whole = tokens.sum(1, dtype=own.dtype) if several else tokens[:, 0].to(own.dtype)
                found.append((bias.known_as, Given(whole)))
            return found

        return recording.layer(forward, backward, contributions, x)

    return recording.apply(rule, x)


def product_type(x: Tensor) -> torch.dtype:
    """The type of operands of products: that of autocast where there is one."""
    kind = x.device.type
    if x.dtype is torch.float32 and torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    return x.dtype


def _values(recording: Recording, x: Any) -> Any:
    """The input of a layer, which may be a parameter."""
    return recording.copy(x) if isinstance(x, Placeholder) else x


def _constant(recording: Recording, x: Any) -> Any:
    return recording.copy(x).detach()


def _transpose(recording: Recording, weight: Any, *dimensions: Any) -> Any:
    # other functions then see a matrix whose transpose is the parameter
    flat = dimensions[0] if len(dimensions) == 1 else dimensions
    swapped = not dimensions or sorted(k % 2 for k in flat) == [0, 1]
    if not isinstance(weight, Placeholder) or weight.dim() != 2 or not swapped:
        return NotImplemented
    return weight.transpose_of_all()


def _matmul(recording: Recording, x: Any, other: Any) -> Any:
    if not isinstance(other, Placeholder) or other.dim() != 2:
        return NotImplemented
    # behind @ a weight is [inputs, outputs], the other way round than in functional.linear
    return _linear(recording, x, other, None, True)


def _addmm(
    recording: Recording, bias: Any, mat1: Any, mat2: Any, *, beta: float = 1, alpha: float = 1
) -> Any:
    # other factors would have to enter the contributions too
    if not isinstance(mat2, Placeholder) or beta != 1 or alpha != 1 or bias.dim() != 1:
        return NotImplemented
    return _linear(recording, mat1, mat2, bias, True)


def _embedding(
    recording: Recording,
    ids: Any,
    weight: Any,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    # max_norm changes the table itself; frequencies change gradients, but no output
    if max_norm is not None or scale_grad_by_freq or not isinstance(weight, Placeholder):
        return NotImplemented
    if weight.flipped or not torch.is_tensor(ids):
        return NotImplemented
    rows = weight.shape[0]
    # may count from the end; its row is looked up like any other, but never trained
    silent = None if padding_idx is None else padding_idx % rows

    def rule(numbers: Tensor, ids: Tensor) -> Tensor:
        W = weight.stacked
        each = len(numbers) // len(W)
        first = torch.arange(len(W), device=ids.device).repeat_interleave(each)
        owner = first.view(-1, *[1] * (ids.dim() - 1))

        def contributions(g: Tensor) -> Contributions:
            tokens = g.reshape(len(numbers), -1, g.shape[-1])
            flat = ids.reshape(len(numbers), -1)
            if silent is not None:
                tokens = tokens.masked_fill((flat == silent).unsqueeze(2), 0.0)
            return [(weight.known_as, Lookup(tokens, flat, rows))]

        # ids are integers: no gradient goes on to them
        return recording.layer(lambda ids: W[owner, ids], None, contributions, ids)

    return recording.apply(rule, ids)


def _embedding_bag(
    recording: Recording,
    ids: Any,
    weight: Any,
    offsets: Any = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Any = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Any:
    # offsets make bags of unequal size, and only a sum or a mean is one of rows
    if offsets is not None or mode == "max" or not torch.is_tensor(ids) or ids.dim() != 2:
        return NotImplemented
    rows = _embedding(
        recording, ids, weight, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse
    )
    if rows is NotImplemented:
        return NotImplemented
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(-1)
    if padding_idx is None:
        return rows.mean(-2) if mode == "mean" else rows.sum(-2)
    # padding is left out of the sum, and of what a mean divides by; an empty bag is zero
    real = (ids != padding_idx % weight.shape[0]).unsqueeze(-1)
    total = rows.masked_fill(~real, 0.0).sum(-2)
    return total / real.sum(-2).clamp_min(1) if mode == "mean" else total


def _scale_and_shift(
    recording: Recording, hat: Tensor, weight: Any, bias: Any, first: int, last: int
) -> Tensor:
    """hat * weight + bias, each example with the parameters of its model.

    Args:
        recording: The run.
        hat: [N, ...].
        weight: Parameter or None.
        bias: Parameter or None.
        first: The first dimension of `hat` that the parameters have.
        last: The one after the last.
    """
    each = len(hat) // recording.models
    # dimension 0 stays, because each example has a gradient of its own
    over = (*range(1, first), *range(last, hat.dim()))
    ones = [1] * (first - 1), [1] * (hat.dim() - last)

    def expand_parameter(parameter: Any) -> Tensor:
        """In a shape that multiplies `hat`."""
        if isinstance(parameter, Placeholder):
            values = parameter.stacked.repeat_interleave(each, 0)
        else:
            values = parameter.unsqueeze(0)
        return values.view(len(values), *ones[0], *values.shape[1:], *ones[1])

    def add_up(values: Tensor) -> Tensor:
        # torch takes no dimensions for all
        return values.sum(over) if over else values

    def forward(hat: Tensor) -> Tensor:
        if weight is None:
            return hat + expand_parameter(bias)
        return (
            hat * expand_parameter(weight)
            if bias is None
            else torch.addcmul(expand_parameter(bias), hat, expand_parameter(weight))
        )

    def backward(g: Tensor) -> Tensor:
        return g if weight is None else g * expand_parameter(weight)

    def contributions(g: Tensor) -> Contributions:
        found: Contributions = []
        if isinstance(weight, Placeholder):
            found.append((weight.known_as, Given(add_up(g * hat.detach()))))
        if isinstance(bias, Placeholder):
            found.append((bias.known_as, Given(add_up(g))))
        return found

    return recording.layer(forward, backward, contributions, hat)


def _scales(weight: Any, bias: Any) -> bool:
    """Whether `_scale_and_shift` has these."""
    some = weight is not None or bias is not None
    return some and is_for_all(weight) and is_for_all(bias)


def _normalise(
    recording: Recording, x: Any, shape: Any, weight: Any, bias: Any, plain: Rule
) -> Any:
    """Normalisation over the last dimensions, then scale and shift."""
    if not _scales(weight, bias):
        return NotImplemented

    def rule(numbers: Tensor, x: Tensor) -> Tensor:
        return _scale_and_shift(recording, plain(x), weight, bias, x.dim() - len(shape), x.dim())

    return recording.apply(rule, _values(recording, x))


def _layer_norm(
    recording: Recording,
    x: Any,
    normalized_shape: Any,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
) -> Any:
    shape = tuple(normalized_shape)
    plain = lambda x: functional.layer_norm(x, shape, None, None, eps)  # noqa: E731
    return _normalise(recording, x, shape, weight, bias, plain)


def _rms_norm(
    recording: Recording,
    x: Any,
    normalized_shape: Any,
    weight: Any = None,
    eps: float | None = None,
) -> Any:
    shape = tuple(normalized_shape)
    plain = lambda x: functional.rms_norm(x, list(shape), None, eps)  # noqa: E731
    return _normalise(recording, x, shape, weight, None, plain)


def _group_norm(
    recording: Recording,
    x: Any,
    num_groups: int,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
) -> Any:
    if not _scales(weight, bias):
        return NotImplemented

    def rule(numbers: Tensor, x: Tensor) -> Tensor:
        # an example may hold several images, each of which has statistics of its own
        hat = functional.group_norm(x.flatten(0, 1), num_groups, None, None, eps).view(x.shape)
        return _scale_and_shift(recording, hat, weight, bias, 2, 3)

    return recording.apply(rule, _values(recording, x))


def _convolution(dimensions: int) -> Rule:
    """The rule of a convolution of so many dimensions."""

    def convolve(
        recording: Recording,
        x: Any,
        weight: Any,
        bias: Any = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Any:
        if not isinstance(weight, Placeholder) or not is_for_all(bias):
            return NotImplemented
        x = _values(recording, x)
        if x.dim() == dimensions + 1:  # one image without a batch
            batched = convolve(
                recording, x.unsqueeze(0), weight, bias, stride, padding, dilation, groups
            )
            return batched if batched is NotImplemented else batched.squeeze(0)
        kernel = tuple(weight.shape[2:])
        strides, steps = (_each(value, dimensions) for value in (stride, dilation))
        sides = _sides(padding, kernel, steps)
        # torch.convolution can only pad both sides alike
        if sides is None:
            return NotImplemented
        geometry = Geometry(kernel, strides, tuple((p, p) for p in sides), steps, groups)
        # False and zeros: not transposed, so there is no padding of outputs
        arguments = (list(strides), list(sides), list(steps), False, [0] * dimensions, groups)

        def of_weights(g: Tensor, x: Tensor) -> Tensor:
            """The gradient of one model's weights on all its images."""
            # read for its shape alone: the gradient of weights does not depend on their values
            like = x.new_empty(weight.shape)
            only = (False, True, False)
            found: Tensor = convolution_backward(g, x, like, None, *arguments, only)[1]
            return found

        def rule(numbers: Tensor, x: Tensor) -> Tensor:
            kind, n = product_type(x), recording.models
            W, short = weight.stacked.to(kind), x.detach().to(kind)
            own = (
                bias.stacked.to(kind)
                if isinstance(bias, Placeholder)
                else [None if bias is None else bias.to(kind)] * n
            )

            def forward(_: Tensor) -> Tensor:
                # a convolution takes one set of weights, so models come one after the other
                models = zip(short.reshape(n, -1, *x.shape[2:]), W, own, strict=True)
                each = [torch.convolution(x, w, b, *arguments) for x, w, b in models]
                out = each[0].new_empty(*x.shape[:2], *each[0].shape[1:])
                torch.stack(each, out=out.view(n, *each[0].shape))
                return out

            def backward(g: Tensor) -> Tensor:
                # any model's images would do, because only their shape is read
                like = short.reshape(n, -1, *x.shape[2:])[0]
                only = (True, False, False)
                models = zip(g.reshape(n, -1, *g.shape[2:]), W, strict=True)
                each = [
                    convolution_backward(g, like, w, None, *arguments, only)[0] for g, w in models
                ]
                return torch.stack(each).view(x.shape).to(x.dtype)

            def contributions(g: Tensor) -> Contributions:
                # a convolution's sum would be rounded to the type of its operands
                g, a = g.to(weight.dtype), short.to(weight.dtype)
                each = Convolution(g, a, weight.shape, geometry, of_weights)
                found: Contributions = [(weight.known_as, each)]
                if isinstance(bias, Placeholder):
                    # places are one dimension first, however many the convolution has
                    found.append((bias.known_as, Given(g.flatten(3).sum((1, 3)))))
                return found

            return recording.layer(forward, backward, contributions, x)

        return recording.apply(rule, x)

    return convolve


def _each(value: Any, dimensions: int) -> tuple[int, ...]:
    if isinstance(value, int):
        return (value,) * dimensions
    return tuple(value) * (dimensions if len(value) == 1 else 1)


def _sides(padding: Any, kernel: tuple[int, ...], steps: tuple[int, ...]) -> tuple[int, ...] | None:
    """Zeros on each side; None where they differ between the two sides."""
    if padding == "valid":
        return (0,) * len(kernel)
    if padding == "same":
        spans = [step * (size - 1) for step, size in zip(steps, kernel, strict=True)]
        # an odd span has one zero more at the end
        return None if any(span % 2 for span in spans) else tuple(span // 2 for span in spans)
    return _each(padding, len(kernel))


def _multi_head_attention(
    recording: Recording,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Any,
    in_proj_bias: Any,
    bias_k: Any,
    bias_v: Any,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Any,
    out_proj_bias: Any,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Any = None,
    k_proj_weight: Any = None,
    v_proj_weight: Any = None,
    static_k: Any = None,
    static_v: Any = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> Any:
    # torch's own function is right for these, at the price of copies for each example
    rare = (bias_k, bias_v, static_k, static_v)
    if add_zero_attn or any(each is not None for each in rare) or query.dim() != 3:
        return NotImplemented
    if use_separate_proj_weight:
        weights = (q_proj_weight, k_proj_weight, v_proj_weight)
        biases = (0.0, 0.0, 0.0) if in_proj_bias is None else in_proj_bias.chunk(3)
        q, k, v = (
            functional.linear(x, weight) + bias
            for x, weight, bias in zip((query, key, value), weights, biases, strict=True)
        )
    # self-attention takes one product instead of three
    elif query is key and key is value:
        q, k, v = functional.linear(query, in_proj_weight, in_proj_bias).chunk(3, -1)
    else:
        q, k, v = (
            # two thirds are in vain, but a slice of the weight would be copied for each example
            functional.linear(x, in_proj_weight, in_proj_bias).chunk(3, -1)[part]
            for part, x in enumerate((query, key, value))
        )

    def product(*inputs: Any) -> Tensor:
        out = recording.attend(*inputs)
        if out is NotImplemented:
            out = functional.scaled_dot_product_attention(*inputs)
        result: Tensor = out
        return result

    out, shares = attend(
        *(q, k, v, num_heads),
        mask=attn_mask,
        hidden=key_padding_mask,
        dropout=dropout_p if training else 0.0,
        weights=need_weights,
        average_weights=average_attn_weights,
        causal=is_causal,
        product=product,
    )
    return functional.linear(out, out_proj_weight, out_proj_bias), shares


def _lstm_cell(x: Tensor, h: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """(h, c) after one token, from what input and last output give the gates."""
    # in this order torch keeps the gates in its weights
    i, f, g, o = (x + h).chunk(4, -1)
    c = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def _gru_cell(x: Tensor, h: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    (xr, xz, xn), (hr, hz, hn) = x.chunk(3, -1), h.chunk(3, -1)
    z = (xz + hz).sigmoid()
    # as in torch the reset gate meets h after its weights, not before as in the GRU's paper
    n = (xn + (xr + hr).sigmoid() * hn).tanh()
    return (n + z * (state[0] - n),)


def _recurrent(cell: Callable[..., tuple[Tensor, ...]], states: int) -> Rule:
    """The rule of layers that take one token after the other.

    Args:
        cell: What one token does.
        states: Tensors that are passed on to the next token.
    """

    def run(
        recording: Recording,
        x: Any,
        start: Any,
        weights: Any,
        biases: Any,
        layers: Any,
        dropout: float,
        training: bool,
        bidirectional: bool,
        batch_first: Any = None,
    ) -> Any:
        directions = 2 if bidirectional else 1
        # packed sequences have other arguments
        if isinstance(layers, bool) or not isinstance(layers, int) or batch_first is None:
            return NotImplemented
        # two weights and two biases, and one more weight where the output is projected
        each = len(weights) // (layers * directions)
        projected = each % 2 == 1
        # an LSTM starts from two states, the others from a tensor alone
        start = (start,) if torch.is_tensor(start) else start
        x = x.transpose(0, 1) if batch_first else x
        last: list[tuple[Tensor, ...]] = []
        for layer in range(layers):
            outputs = []
            for direction in range(directions):
                k = layer * directions + direction
                own = weights[each * k : each * (k + 1)]
                state = tuple(part[k] for part in start)
                last_weight = own[-1] if projected else None
                own = own[:-1] if projected else own
                output, state = _along(cell, x, state, own, last_weight, bool(direction))
                outputs.append(output)
                last.append(state)
            x = torch.cat(outputs, -1) if directions > 1 else outputs[0]
            if dropout and training and layer < layers - 1:
                x = functional.dropout(x, dropout)
        ends = tuple(torch.stack([state[k] for state in last]) for k in range(states))
        return (x.transpose(0, 1) if batch_first else x, *ends)

    return run


def _along(
    cell: Callable[..., tuple[Tensor, ...]],
    x: Tensor,
    state: tuple[Tensor, ...],
    weights: Sequence[Any],
    projection: Any,
    backwards: bool,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """One layer in one direction over [tokens, batch, inputs]: its outputs and last states."""
    input_weight, own_weight, *biases = weights
    input_bias, own_bias = biases or (None, None)
    # for all tokens at once: only the product with the state has to wait for its turn
    into = functional.linear(x, input_weight, input_bias).unbind(0)
    outputs = []
    for token in reversed(into) if backwards else into:
        state = cell(token, functional.linear(state[0], own_weight, own_bias), state)
        if projection is not None:
            state = (functional.linear(state[0], projection), *state[1:])
        outputs.append(state[0])
    return torch.stack(outputs[::-1] if backwards else outputs), state


def _single(cell: Callable[..., tuple[Tensor, ...]]) -> Rule:
    """The rule of layers that take one token, such as `nn.LSTMCell`."""

    def run(
        recording: Recording,
        x: Any,
        start: Any,
        weight: Any,
        own_weight: Any,
        bias: Any = None,
        own_bias: Any = None,
    ) -> Any:
        alone = torch.is_tensor(start)
        state = (start,) if alone else tuple(start)
        own = functional.linear(state[0], own_weight, own_bias)
        found = cell(functional.linear(x, weight, bias), own, state)
        return found[0] if alone else found

    return run


def _rnn_cell(activation: Callable[[Tensor], Tensor]) -> Callable[..., tuple[Tensor, ...]]:
    return lambda x, h, state: (activation(x + h),)


RULES: Mapping[Any, Rule] = {
    functional.linear: _linear,
    torch.matmul: _matmul,
    torch.mm: _matmul,
    torch.Tensor.matmul: _matmul,
    torch.Tensor.mm: _matmul,
    torch.Tensor.__matmul__: _matmul,
    torch.addmm: _addmm,
    functional.embedding: _embedding,
    functional.embedding_bag: _embedding_bag,
    functional.layer_norm: _layer_norm,
    functional.rms_norm: _rms_norm,
    functional.group_norm: _group_norm,
    torch.conv1d: _convolution(1),
    torch.conv2d: _convolution(2),
    torch.conv3d: _convolution(3),
    functional.multi_head_attention_forward: _multi_head_attention,
    torch.lstm: _recurrent(_lstm_cell, 2),
    torch.gru: _recurrent(_gru_cell, 1),
    torch.rnn_tanh: _recurrent(_rnn_cell(torch.tanh), 1),
    torch.rnn_relu: _recurrent(_rnn_cell(torch.relu), 1),
    torch.lstm_cell: _single(_lstm_cell),
    torch.gru_cell: _single(_gru_cell),
    torch.rnn_tanh_cell: _single(_rnn_cell(torch.tanh)),
    torch.rnn_relu_cell: _single(_rnn_cell(torch.relu)),
    **dict.fromkeys((torch.detach, torch.Tensor.detach), _constant),
    torch.Tensor.data.__get__: _constant,  # type: ignore[attr-defined]
    **dict.fromkeys((torch.t, torch.Tensor.t, torch.transpose, torch.Tensor.transpose), _transpose),
    **dict.fromkeys((torch.permute, torch.Tensor.permute), _transpose),
    **{getattr(torch.Tensor, name).__get__: _transpose for name in ("T", "mT", "H", "mH")},
}
"""By the function that meets a parameter; see `Recording`."""
