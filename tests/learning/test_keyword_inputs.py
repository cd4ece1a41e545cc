"""Several inputs, packed into one tensor: nothing is lost on the way."""

import copy

import cloudpickle
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from decor.learning.keyword_inputs import Layout, unpacking

DTYPES = [torch.float32, torch.float64, torch.int64, torch.int32, torch.bool, torch.uint8]


@given(
    st.lists(
        st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(1, 3), max_size=3)),
        min_size=1,
        max_size=4,
    ),
    st.integers(1, 4),
)
def test_what_is_packed_is_unpacked(parts, examples):
    generator = torch.Generator().manual_seed(0)
    inputs = {
        f"input{k}": (100 * torch.rand(examples, *shape, generator=generator)).to(dtype)
        for k, (dtype, shape) in enumerate(parts)
    }
    layout = Layout.of(inputs)
    unpacked = layout.unpack(layout.pack("user 0", inputs))
    assert list(unpacked) == list(inputs)
    for name, part in inputs.items():
        assert unpacked[name].shape == part.shape
        assert torch.equal(unpacked[name].to(part.dtype), part)
        assert part.is_floating_point() or unpacked[name].dtype == part.dtype


class Weighted(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, x, weight):
        return self.layer(x) * weight.unsqueeze(-1)


def test_the_model_keeps_its_parameters_and_can_be_copied_and_sent():
    model = Weighted()
    inputs = {"x": torch.randn(3, 2), "weight": torch.randn(3)}
    layout = Layout.of(inputs)
    packed, view = layout.pack("user 0", inputs), unpacking(model, layout)
    assert isinstance(view, Weighted) and repr(view) == repr(model)
    assert view.layer is model.layer
    for each in (view, copy.deepcopy(view), cloudpickle.loads(cloudpickle.dumps(view))):
        assert torch.equal(each(packed), model(**inputs))
        assert list(each.state_dict()) == ["layer.weight", "layer.bias"]
