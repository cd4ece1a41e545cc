"""The model that a renewed federation begins with: one hash, whatever file it comes from."""

import hashlib
import struct

import numpy as np
import pytest
import torch
from federation_files import BASES, TEXT, with_section
from safetensors.numpy import save_file

from decor.errors import InputError
from decor.federation.federation import Federation, build_tasks
from decor.federation.local_gradient import LocalGradient
from decor.federation.start_model import StartModel, find_start, path_beside
from decor.results.run import Run

VALUES = {"weight": [[0.5, -2.0], [3.0, 0.25]], "bias": [1.0, -1.0]}
TIED = """
import torch
class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(3, 3, bias=False)
        self.again = torch.nn.Linear(3, 3)
        self.again.weight = self.first.weight
        self.register_buffer("offset", torch.full((3,), 7.0))
        self.frozen = torch.nn.Parameter(torch.full((3,), 5.0), requires_grad=False)
    def forward(self, x):
        return self.again(torch.tanh(self.first(x))) + self.offset + self.frozen
def model():
    return Tied(), torch.nn.functional.cross_entropy
"""


def start(dtype="<f4", **changed):
    return StartModel({name: np.array(x, dtype) for name, x in (VALUES | changed).items()})


def federation(text=TEXT, start=None):
    made = Federation.parse(text)
    return made if start is None else with_section(made, "model", start_sha256=start.sha256)


def test_the_hash_is_of_names_dtypes_shapes_and_little_endian_values():
    """Written out once more: a change here makes old files and new installations disagree."""
    text = b"decor start model 1\n"
    text += b'["bias", "float32", [2]]\n' + struct.pack("<2f", 1.0, -1.0)
    text += b'["weight", "float32", [2, 2]]\n' + struct.pack("<4f", 0.5, -2.0, 3.0, 0.25)
    assert start().sha256 == hashlib.sha256(text).hexdigest()


def test_order_layout_and_byte_order_are_not_part_of_it():
    turned = {name: np.array(VALUES[name], "<f4", order="F") for name in reversed(VALUES)}
    assert StartModel(turned).sha256 == start().sha256 == start(">f4").sha256


OTHERS = {
    "a value": start(bias=[1.0, -1.0000001]),
    "the sign of zero": start(bias=[0.0, -0.0]),
    "a shape": start(bias=[[1.0, -1.0]]),
    "a dtype": start("<f8"),
    "a name": StartModel({"weigh": start().parameters["weight"]}),
    "one more": start(more=[0.0]),
    "one less": StartModel({"weight": start().parameters["weight"]}),
    "values swapped between names": start(bias=[0.5, -2.0], weight=[[1.0, -1.0], [3.0, 0.25]]),
}


def test_everything_else_is():
    hashes = [start().sha256, *(each.sha256 for each in OTHERS.values())]
    assert len(set(hashes)) == len(hashes)


def test_a_file_gives_back_what_was_written(tmp_path):
    path = tmp_path / "heart.start.safetensors"
    path.write_bytes(start().file_bytes)
    assert StartModel.read(path).sha256 == start().sha256
    assert path_beside(tmp_path / "heart.toml") == path


def test_it_lies_beside_the_federation_file_or_where_it_is_said_to(tmp_path):
    file, wanted = tmp_path / "heart.toml", start().sha256
    with pytest.raises(InputError, match=r"heart\.start\.safetensors' is not there; get it from"):
        find_start(wanted, file, None)
    path_beside(file).write_bytes(start().file_bytes)
    assert find_start(wanted, file, None).sha256 == wanted
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(start(bias=[2.0, 2.0]).file_bytes)
    with pytest.raises(InputError, match="holds a model of SHA-256 .*, and training begins with"):
        find_start(wanted, file, elsewhere)
    # one that is named counts, and not the one beside the file
    path_beside(file).rename(elsewhere)
    assert find_start(wanted, file, elsewhere).sha256 == wanted


def test_a_federation_without_a_hash_begins_with_new_weights(tmp_path):
    file = tmp_path / "heart.toml"
    # a file that was left there means nothing
    path_beside(file).write_bytes(start().file_bytes)
    assert find_start(None, file, None) is None
    with pytest.raises(InputError, match="begins with new weights; drop --start"):
        find_start(None, file, path_beside(file))


@pytest.mark.parametrize("length", [0, 7, 60, -1])
def test_a_file_that_was_cut_short_is_refused_in_a_sentence(tmp_path, length):
    path = tmp_path / "cut"
    path.write_bytes(start().file_bytes[:length])
    with pytest.raises(InputError, match="cannot be read: .*; get it again"):
        StartModel.read(path)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -1e19, 2])
def test_values_that_no_training_gives_are_refused(tmp_path, wrong):
    path = tmp_path / "wild"
    values = np.array([0, wrong], "<i8" if wrong == 2 else "<f4")
    save_file({"bias": values}, path)
    with pytest.raises(InputError, match="bias of the model to start from has values that are"):
        StartModel.read(path)


MISFITS = {
    "shape": ({"weight": (1, 29), "bias": (1,)}, r"float32\[1, 29\] weight, .* float32\[1, 30\]"),
    "missing": ({"weight": (1, 30)}, r"it has no bias, and the federation float32\[1\]"),
    "extra": ({"weight": (1, 30), "bias": (1,), "zeal": (2,)}, "zeal, and the federation none"),
}


@pytest.mark.parametrize("kind", MISFITS)
def test_a_model_that_does_not_fit_is_refused_with_the_parameter(kind):
    shapes, said = MISFITS[kind]
    other = StartModel({name: np.zeros(shape, "<f4") for name, shape in shapes.items()})
    one = federation(start=other)
    with pytest.raises(InputError, match=said):
        one.task((np.zeros((4, 30)), np.zeros(4)), user=0, start=other)


def test_the_dtype_must_be_the_federations():
    other = StartModel({"weight": np.zeros((1, 30), "<f8"), "bias": np.zeros(1, "<f8")})
    with pytest.raises(InputError, match=r"float64\[1\] bias, and the federation float32\[1\]"):
        federation(start=other).task((np.zeros((4, 30)), np.zeros(4)), user=0, start=other)


def test_a_user_trains_only_from_the_model_that_the_file_names():
    shard = np.zeros((4, 30)), np.zeros(4)
    named = StartModel({"weight": np.ones((1, 30), "<f4"), "bias": np.ones(1, "<f4")})
    other = StartModel({"weight": np.ones((1, 30), "<f4"), "bias": np.zeros(1, "<f4")})
    renewed, first = federation(start=named), federation()
    for wrong in (None, other):
        with pytest.raises(InputError, match="begins with the model of model.start_sha256"):
            renewed.task(shard, user=0, start=wrong)
        with pytest.raises(InputError, match="begins with the model of model.start_sha256"):
            build_tasks(renewed, [shard] * 4, None, wrong)
    with pytest.raises(InputError, match="model.start_sha256 None"):
        first.task(shard, user=0, start=named)
    # a user that only loads a final model needs none
    assert renewed.task(shard).parameters == 31


LINEAR = TEXT.replace('"logistic"', '"linear"')


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("unit", ["user", "example"])
@pytest.mark.parametrize("kind", ["logistic", "multinomial", "mlp", "linear", "code"])
def test_every_kind_of_model_begins_with_exactly_these_values(
    kind, unit, dtype, tmp_path, monkeypatch
):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "tied_start.py").write_text(TIED)
    text = {
        "logistic": TEXT,
        "multinomial": BASES["multinomial"],
        "mlp": BASES["mlp"],
        "linear": LINEAR,
        "code": BASES["code"].replace("own:model", "tied_start:model"),
    }[kind]
    text = text.replace("steps = 200", f'steps = 200\ndtype = "{dtype}"\nbatch_size = 4')
    if unit == "example":
        text = text.replace('"curious"', '"curious"\nunit = "example"')
        text = text.replace('7400"', '7400"\nrecords = 20')
    first = Federation.parse(text)
    width = 3 if kind == "code" else 30
    shard = np.zeros((20, width)), np.zeros(20, int)
    local = local_gradient(first, first.task(shard, user=0))
    # a model that training has moved, as a run holds it
    rng = np.random.default_rng(0)
    moved = rng.normal(size=local.parameters).astype(dtype)
    run = Run(first.plan, {}, local.state(moved), 1)
    begin = StartModel.of_run(run)
    renewed = with_section(first, "model", start_sha256=begin.sha256)
    task = renewed.task(shard, user=0, start=begin)
    again = local_gradient(renewed, task)
    assert again.start().dtype == moved.dtype and np.array_equal(again.start(), moved)
    assert not np.array_equal(local.start(), moved)
    assert StartModel({k: v[0].numpy() for k, v in again.state(moved).items()}).sha256 == (
        begin.sha256
    )
    if kind == "code":  # what is not trained is the code's
        assert set(begin.parameters) == {"first.weight", "again.weight", "again.bias"}
        state = task.model.state_dict()
        assert bool((state["offset"] == 7).all() and (state["frozen"] == 5).all())


def local_gradient(federation, task):
    recipe, random = federation.recipe, torch.manual_seed  # nothing is drawn
    return LocalGradient(task, federation.exposure, recipe, federation.dtype, random)
