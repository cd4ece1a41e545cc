"""Adapters beside frozen layers: what they compute, and that nothing else is trained or kept."""

import copy
import json
import warnings

import pytest
import torch
from gradient_oracle import F64, added_by, assert_close, clips, expected, scattered, seeded
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import decor
from decor.errors import InputError
from decor.learning import losses
from decor.learning.batches import Batches
from decor.learning.gradients.book_keeping import BookKeeping
from decor.learning.gradients.choose import choose_gradients
from decor.learning.gradients.modules import Modules
from decor.learning.lora import AdaptedAttention, AdaptedLinear, Adapter, lora

aten = torch.ops.aten
VOCABULARY, CLASSES, SIZES = 11, 3, (4, 7, 3)


class Classifier(nn.Module):
    """Tokens, one of torch's transformer layers, and a head."""

    def __init__(self, width=8, **options):
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, width)
        self.body = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(
                width, 2, 12, dropout=0.0, batch_first=True, activation="gelu", **options
            ),
            2,
            enable_nested_tensor=False,
        )
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x):
        return self.head(self.body(self.words(x)).mean(1))


def classifier(**options):
    return seeded(lambda: Classifier(**options))


def task_of(module, sizes=SIZES, tokens=40, dtype=F64, **options):
    generator = torch.Generator().manual_seed(0)
    shards = [
        (
            torch.randint(VOCABULARY, (m, tokens), generator=generator),
            torch.randint(CLASSES, (m,), generator=generator),
        )
        for m in sizes
    ]
    return decor.Task(module.to(dtype), losses.cross_entropy, shards, **options)


def stirred(module, seed=1):
    """With adapters that are not zero, so that all gradients are different from zero."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in module.parameters():
            if p.requires_grad:
                p.add_(0.3 * torch.randn(p.shape, generator=generator).to(p))
    return module


def trained_names(module):
    return {name for name, p in module.named_parameters() if p.requires_grad}


# What is made of a module.


@pytest.mark.parametrize("options", [{}, {"norm_first": True}])
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_the_module_starts_as_what_it_was_and_shares_its_memory(mode, options):
    module = getattr(classifier(**options), mode)()
    before = copy.deepcopy(module.state_dict())
    x = torch.randint(VOCABULARY, (5, 6))
    adapted = lora(module, rank=2, train=("head",))
    assert torch.allclose(adapted(x), module(x), atol=1e-6)
    # also where torch has fused functions for layers in evaluation mode
    with torch.no_grad():
        assert torch.allclose(adapted(x), module(x), atol=1e-6)
        changed = stirred(adapted)(x)
        assert not torch.allclose(changed, module(x), atol=1e-3)
    with torch.enable_grad():
        assert torch.allclose(adapted(x), changed, atol=1e-6)
    # the module itself is as it was, and what is frozen is its memory
    assert all(p.requires_grad for p in module.parameters())
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
    inner = adapted.body.layers[0].linear1.base.weight
    assert inner.data_ptr() == module.body.layers[0].linear1.weight.data_ptr()


def test_adapters_and_named_layers_alone_are_trained():
    adapted = lora(classifier(), rank=2, train=("head",))
    layers = {f"body.layers.{k}" for k in range(2)}
    names = {f"{each}.{part}" for each in layers for part in ("self_attn.into", "self_attn.out")}
    names |= {f"{each}.{part}.adapter" for each in layers for part in ("linear1", "linear2")}
    wanted = {f"{name}.{side}" for name in names for side in ("down", "up")}
    assert trained_names(adapted) == wanted | {"head.weight", "head.bias"}
    adapted = lora(classifier(), rank=2, targets=("linear1", "head"))
    assert {type(adapted.head), type(adapted.body.layers[1].linear1)} == {AdaptedLinear}
    assert isinstance(adapted.body.layers[0].self_attn, nn.MultiheadAttention)
    # an end of names means all of them, a whole name that layer alone
    assert isinstance(lora(nn.Linear(3, 2)), AdaptedLinear)


def test_the_product_is_scaled_by_alpha_over_rank():
    base, x = nn.Linear(5, 4), torch.randn(3, 5)
    plain, scaled = (stirred(lora(base, rank=2, alpha=alpha)) for alpha in (None, 6.0))
    adapter = plain.adapter
    wanted = base(x) + x @ adapter.down.T @ adapter.up.T
    assert torch.allclose(plain(x), wanted, atol=1e-6)
    assert torch.allclose(scaled(x) - base(x), 3 * (plain(x) - base(x)), atol=1e-6)


def test_the_start_is_a_function_of_the_seed_alone():
    module, state = classifier(), torch.random.get_rng_state()
    first, again, other = (lora(module, rank=2, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(state, torch.random.get_rng_state())
    at = "body.layers.0.linear1.adapter.down"
    values = [each.get_parameter(at) for each in (first, again, other)]
    assert torch.equal(values[0], values[1]) and not torch.equal(values[0], values[2])
    assert not any(p.any() for name, p in first.named_parameters() if name.endswith(".up"))


def test_attention_to_other_tokens_and_masks_is_that_of_torch():
    torch.manual_seed(0)
    for first in (True, False):
        layer = nn.MultiheadAttention(8, 2, batch_first=first)
        adapted = lora(layer, rank=2)
        assert isinstance(adapted, AdaptedAttention)
        q, k, v = (torch.randn(4, 4, 8) for _ in range(3))
        hidden = torch.zeros(4, 4).masked_fill(torch.eye(4, dtype=torch.bool), -torch.inf)
        options = {"key_padding_mask": hidden, "attn_mask": torch.linspace(-1, 1, 16).view(4, 4)}
        for weights in (True, False):
            for inputs in ((q, k, v), (q, q, q)):
                found = adapted(*inputs, need_weights=weights, **options)
                wanted = layer(*inputs, need_weights=weights, **options)
                assert torch.allclose(found[0], wanted[0], atol=1e-6)
                assert not weights or torch.allclose(found[1], wanted[1], atol=1e-6)
    with pytest.raises(InputError, match="takes a batch"):
        adapted(q[0], q[0], q[0])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"rank": 0}, "rank"),
        ({"alpha": -1.0}, "alpha must be a positive number"),
        ({"targets": ("nothing",)}, "no layer has the name 'nothing'.*'body.layers.0.self_attn'"),
        ({"targets": "head"}, r"a sequence, such as \('head',\)"),
        ({"train": ("tail",)}, "no layer has the name 'tail'"),
        ({"targets": ("words",)}, "there is no layer to put an adapter on"),
    ],
)
def test_what_cannot_be_adapted_is_refused(arguments, words):
    with pytest.raises(InputError, match=words):
        lora(classifier(), **arguments)


# Their gradients.


class Products(TorchDispatchMode):
    """Writes down each product of matrices: the shapes of its operands and of its result."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket in (aten.mm, aten.addmm, aten.bmm, aten.baddbmm):
            *_, left, right = (tuple(each.shape) for each in args if torch.is_tensor(each))
            self.seen.append((left, right, tuple(result.shape)))
        return result


@pytest.mark.parametrize("tokens", [1, 3, 40])
@pytest.mark.parametrize("kind", ["poisson", "all"])
def test_clipped_gradients_are_those_of_autograd_for_what_is_trained(kind, tokens):
    given = task_of(stirred(lora(classifier(), rank=2, train=("head",))), tokens=tokens)
    gradients = BookKeeping(given, F64, unit="user")
    size, sampling = (None, "fixed") if kind == "all" else (3, kind)
    batch = Batches(SIZES, size, sampling, (11, 12)).draw(3)
    blocks = scattered(gradients, given.users, scale=0.1)
    state = gradients.state(blocks)
    assert state.keys() == trained_names(given.model)
    for level, wanted in expected(given, state, batch, *clips()).items():
        assert_close(added_by(gradients, blocks, batch, level), wanted, 1e-9)


def test_adapters_are_recorded_and_the_body_is_one_product_for_all_models():
    given = task_of(lora(classifier(), rank=2), tokens=6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gradients = choose_gradients(given, "example", 3, torch.float32)
    assert type(gradients) is BookKeeping
    models = gradients.initial()[0].expand(3, -1).contiguous()
    X, y = (torch.cat(part + part)[:15] for part in zip(*given.shards, strict=True))
    recording = gradients._recording(models)
    recording.copy = lambda parameter: pytest.fail(f"{parameter.known_as} was copied")
    with Products() as products:
        gradients._run(recording, X, y, True)
    rows = 15 * 6  # tokens of all examples of the three models
    weights = [(8, 24), (8, 8), (8, 12), (12, 8)]
    for inputs, outputs in weights:
        forward = ((rows, inputs), (inputs, outputs), (rows, outputs))
        backward = ((rows, outputs), (outputs, inputs), (rows, inputs))
        # of the two layers; (8, 8) is the same in both directions
        assert products.seen.count(forward) >= 2
        assert products.seen.count(backward) >= (1 if outputs == 24 else 2)
    # no product has the gradient of a frozen weight as its result, of one model or of several
    frozen = {shape[::way] for shape in weights for way in (1, -1)}
    assert not any(result[-2:] in frozen for *_, result in products.seen)
    # and none takes a stack of frozen weights: operands with three dimensions have the rank's size
    assert all(2 in (*left, *right) for left, right, _ in products.seen if right[:-2] == (3,))


@pytest.mark.parametrize("path", ["auto", "generic"])
def test_only_what_is_trained_counts_in_the_clip(path):
    """A large frozen layer would otherwise take the clip for itself."""
    given = task_of(stirred(lora(classifier(), rank=2)), tokens=5)
    gradients = (BookKeeping if path == "auto" else Modules)(given, F64)
    batch = Batches(SIZES, None, "fixed", (11,)).draw(0)
    blocks = [b.expand(3, 1, 1, *b.shape).clone() for b in gradients.initial()]
    clip, one = torch.full((1, 1), 1e-6, dtype=F64), torch.ones(1, 1, dtype=F64)
    added = added_by(gradients, blocks, batch, "example", clip=clip, alpha=one)
    # every example is far above this clip: each adds a vector of its length over the batch
    single = [decor.Task(given.model, given.loss, [(X[:1], y[:1])]) for X, y in given.shards]
    for k, alone in enumerate(single):
        path = type(gradients)(alone, F64)
        rows = Batches((1,), None, "fixed", (11,)).draw(0)
        to = added_by(path, [b[k : k + 1] for b in blocks], rows, "example", clip=clip, alpha=one)
        whole = torch.cat([value.flatten() for value in to.values()])
        assert abs(float(whole.norm()) / 1e-6 - 1) < 1e-9
    assert sum(value[0].numel() for value in added.values()) == given.parameters


# Runs: the body is in none of their files.


def plan_of(users, steps=3, unit="example", records=6):
    more = {"batch_size": 3, "records": records} if unit == "example" else {}
    return decor.calibrate(
        decor.complete(users),
        decor.Exposure(clip=1.0, steps=steps, unit=unit, **more),
        decor.Adversary.eavesdropper(),
        decor.Budget(20.0, 1e-5),
    )


def body_bytes(task):
    frozen = sorted(
        (p.detach() for p in task.model.parameters() if not p.requires_grad), key=torch.numel
    )
    return frozen[-1].contiguous().numpy().tobytes()


def test_a_private_run_keeps_and_releases_adapters_alone(tmp_path):
    given = task_of(lora(classifier(), rank=2), (6, 6, 6), 5, torch.float32)
    engine = decor.Vectorised(seed=None)
    run = decor.train(given, plan_of(3), learning_rate=0.1, engine=engine)
    assert run.models.keys() == trained_names(given.model)
    # in memory the average is a whole state dict, over the module's own body
    given.model.load_state_dict(run.average_model)
    own = dict(given.model.named_parameters())
    assert all(each.data_ptr() == own[name].data_ptr() for name, each in run.frozen.items())
    run.save(tmp_path / "run")
    run.release(tmp_path / "released")
    for folder in (tmp_path / "run", tmp_path / "released"):
        for file in folder.iterdir():
            assert body_bytes(given) not in file.read_bytes(), file
        loaded = decor.Run.load(folder)
        assert loaded.average_model.keys() == trained_names(given.model)
        missing = given.model.load_state_dict(loaded.average_model, strict=False).missing_keys
        assert not {*missing} & trained_names(given.model)
        frozen = json.loads((folder / "manifest.json").read_text())["frozen"]
        assert frozen == given.frozen and frozen["parameters"] == sum(
            p.numel() for p in given.model.parameters() if not p.requires_grad
        )
    card = (tmp_path / "released" / "MODEL_CARD.md").read_text()
    assert given.frozen["sha256"] in card


def test_messages_and_listeners_see_adapters_alone():
    given = task_of(lora(classifier(), rank=2), (6, 6), 5, torch.float32)
    sizes = []
    engine = decor.Vectorised(on_messages=lambda step, sent: sizes.append(sent.shape[-1]))
    decor.train(given, plan_of(2), learning_rate=0.1, engine=engine)
    assert sizes == [given.parameters] * 3


def test_peers_send_and_store_adapters_alone(tmp_path):
    given = task_of(lora(classifier(), rank=2), (6, 6), 5, torch.float32)
    engine = decor.Peers(folder=tmp_path, timeout=60.0)
    run = decor.train(given, plan_of(2, steps=2), learning_rate=0.1, engine=engine)
    assert (
        run.models.keys() == trained_names(given.model) and run.manifest["frozen"] == given.frozen
    )
    given.model.load_state_dict(run.average_model)
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert {file.suffix for file in files} >= {".ledger", ".safetensors"}
    whole = body_bytes(given)
    for file in files:
        assert whole not in file.read_bytes(), file


def own_classifier():
    """Called by name, as the code of a definition."""
    module = lora(classifier(), rank=2, train=("head",))
    return module, losses.cross_entropy


def other_body():
    module, loss = own_classifier()
    with torch.no_grad():
        module.words.weight[3, 3] += 1e-3
    return module, loss


def test_a_run_makes_its_model_on_the_body_that_it_was_trained_on(tmp_path, monkeypatch):
    from decor.learning.definition import Definition
    from decor.learning.file_model import Model

    def definition(function):
        return Definition(Model(code=f"test_lora:{function}", seed=0), None)

    module, _ = own_classifier()
    given = task_of(module, (6, 6), 5, torch.float32, definition=definition("own_classifier"))
    run = decor.train(given, plan_of(2), learning_rate=0.5)
    run.save(tmp_path / "run")
    loaded = decor.Run.load(tmp_path / "run")
    x = given.shards[0][0]
    module.load_state_dict(run.average_model)
    with torch.no_grad():
        assert torch.allclose(loaded.model(trust_code=True)(x), module.eval()(x), atol=1e-6)
    changed = {**loaded.manifest, "definition": definition("other_body").to_json()}
    object.__setattr__(loaded, "manifest", changed)
    with pytest.raises(InputError, match="frozen parameters of the run's model are not those"):
        loaded.model(trust_code=True)


def test_built_in_models_with_frozen_parts_are_modules_of_your_own():
    """Their definition would build them whole, from another start."""
    layer = nn.Linear(4, 1)
    layer.bias.requires_grad_(False)
    X = torch.randn(6, 4)
    given = decor.Task(layer, losses.logistic, [(X, (X[:, 0] > 0).long())] * 2)
    run = decor.train(given, plan_of(2), learning_rate=0.5)
    with pytest.raises(InputError, match="does not say how its model is made"):
        run.model()


# The real package.


def test_models_of_peft_have_the_gradients_of_autograd():
    peft = pytest.importorskip("peft", reason="peft is not installed: pip install decor-dp[doors]")
    config = peft.LoraConfig(
        r=2,
        target_modules=["linear1", "linear2"],
        modules_to_save=["head"],
        init_lora_weights=False,
    )
    module = peft.get_peft_model(classifier(), config)
    given = task_of(module, tokens=6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gradients = choose_gradients(given, "example", 3, F64)
    assert type(gradients) is BookKeeping
    batch = Batches(SIZES, 3, "poisson", (11, 12)).draw(3)
    blocks = scattered(gradients, given.users, scale=0.1)
    state = gradients.state(blocks)
    assert state.keys() == trained_names(module) and any("lora_A" in name for name in state)
    for level, wanted in expected(given, state, batch, *clips()).items():
        assert_close(added_by(gradients, blocks, batch, level), wanted, 1e-9)


class Logits(nn.Module):
    def __init__(self, body):
        super().__init__()
        self.body = body

    def forward(self, x):
        return self.body(input_ids=x).logits


def test_a_transformer_of_transformers_trains_through_peft(tmp_path):
    peft = pytest.importorskip("peft", reason="peft is not installed: pip install decor-dp[doors]")
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
        num_labels=CLASSES,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    own = peft.LoraConfig(r=2, target_modules=["query", "value"], task_type="SEQ_CLS")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of its own functions
        module = Logits(peft.get_peft_model(BertForSequenceClassification(config), own))
    given = task_of(module, (6, 6), 8, torch.float32)
    runs = [
        decor.train(given, plan_of(2), learning_rate=0.1, engine=decor.Vectorised(path=path))
        for path in ("auto", "generic")
    ]
    assert runs[0].models.keys() == trained_names(module)
    for name, values in runs[0].models.items():
        assert torch.allclose(values, runs[1].models[name], atol=1e-5), name


def test_an_adapter_says_what_it_is():
    adapter = lora(nn.Linear(5, 3), rank=2, alpha=4.0).adapter
    assert isinstance(adapter, Adapter) and repr(adapter) == "Adapter(5, 3, rank=2, scale=2)"
