"""Frozen parameters: one copy, and a hash of their values."""

import gc

import torch
from torch import nn

from decor.learning.frozen import body_parameters, body_summary, convert

CPU = torch.device("cpu")


def body():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    model[0].requires_grad_(False)
    return model


def test_what_is_not_trained_is_given_without_a_copy():
    model = body()
    frozen = body_parameters(model)
    assert list(frozen) == ["0.weight", "0.bias"]
    assert frozen["0.weight"].data_ptr() == model[0].weight.data_ptr()


def test_the_hash_is_of_names_shapes_and_values_in_any_precision():
    model, same = body(), body()
    summary = body_summary(model)
    assert summary["parameters"] == 16 and summary == body_summary(same.double())
    # what is trained does not count
    with torch.no_grad():
        same[1].weight.zero_()
    assert summary == body_summary(same)
    with torch.no_grad():
        same[0].bias[2] += 1e-6
    assert summary != body_summary(same)
    renamed = nn.ModuleDict({"first": body()[0]})
    assert body_summary(renamed)["sha256"] != summary["sha256"]
    assert body_summary(nn.Linear(2, 2)) is None


def test_all_who_need_another_type_have_one_copy_while_it_is_held():
    p = nn.Parameter(torch.randn(5), requires_grad=False)
    assert convert(p, CPU, torch.float32).data_ptr() == p.data_ptr()
    first, second = convert(p, CPU, torch.float64), convert(p, CPU, torch.float64)
    assert first.dtype is torch.float64 and first.data_ptr() == second.data_ptr()
    with torch.no_grad():
        p.add_(1.0)
    assert torch.equal(convert(p, CPU, torch.float64), p.double())
    before = first.clone()
    assert torch.equal(first, before)
    del first, second
    gc.collect()
    assert torch.equal(convert(p, CPU, torch.float64), p.double())
