"""The section [model] of a federation's file, or of a task's."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from decor.errors import InputError

from .file_rules import Rule, abbreviate, check_fields, choice, file_field, text, whole

_HASH = text("64 hexadecimal digits in lower case", re.compile(r"[0-9a-f]{64}"))
LOSSES = ("logistic", "cross-entropy", "squared")
CODE = text(
    '"package.module:function"',
    re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII),
)


_OF_KINDS = ("features", "classes", "hidden", "activation", "image", "channels", "seed")


def _image(value: Any) -> tuple[int, ...] | None:
    sizes = _sizes(value)
    return sizes if sizes is not None and len(sizes) == 3 else None


def _sizes(value: Any) -> tuple[int, ...] | None:
    if not isinstance(value, list | tuple) or not value:
        return None
    return tuple(value) if all(map(whole(1).accept, value)) else None


@dataclass(frozen=True, kw_only=True)
class Model:
    """[model]: a built-in `kind` with its sizes, or public `code`: a function -> (module, loss).

    Logistic, multinomial and linear models start at fixed weights. The first weights of an MLP or a
    CNN, and what code draws from torch, follow from the seed. `code_sha256` is the hash of the
    code's source (`model_code.hash_source`); a node does not run other code. `start_sha256` is the
    hash of the model that training begins with instead of those weights (`start_model.StartModel`).
    The loss follows from the kind, or code returns it; `loss` names another.
    """

    kind: str | None = file_field(
        choice("logistic", "multinomial", "mlp", "linear", "cnn"),
        None,
        help="built-in model: logistic, multinomial, mlp, linear or cnn",
        metavar="NAME",
    )
    code: str | None = file_field(
        CODE,
        None,
        help="instead of --model, a public function that returns (module, loss)",
        metavar="MODULE:FUNCTION",
    )
    code_sha256: str | None = file_field(_HASH, None, newer=True)
    start_sha256: str | None = file_field(_HASH, None, newer=True)
    features: int | None = file_field(
        whole(1),
        None,
        help="number of input features; required without --code and --task",
        metavar="N",
    )
    classes: int | None = file_field(
        whole(2),
        None,
        help="with --model multinomial or mlp, number of classes",
        metavar="N",
    )
    hidden: tuple[int, ...] | None = file_field(
        Rule("a list of layers' sizes, such as [128]", _sizes),
        None,
        help="with --model mlp, sizes of the hidden layers, such as 128 or 128,64",
        metavar="N,...",
    )
    activation: str | None = file_field(
        choice("relu", "tanh"),
        None,
        help="with --model mlp, its activation: relu or tanh (default: relu)",
        metavar="NAME",
    )
    # the integers of TOML have 64 bits, with a sign
    seed: int | None = file_field(
        whole(0, 2**63 - 1),
        None,
        help="with --model mlp or --code, seed for the initial weights (default: 0)",
    )

    image: tuple[int, ...] | None = file_field(
        Rule("[channels, height, width], such as [1, 28, 28]", _image),
        None,
        help="with --model cnn, channels, height and width of an image, such as 1,28,28",
        metavar="C,H,W",
        newer=True,
    )
    channels: tuple[int, ...] | None = file_field(
        Rule("a list of the channels of each convolution, such as [8, 16]", _sizes),
        None,
        help="with --model cnn, channels of each convolution, such as 8,16",
        metavar="N,...",
        newer=True,
    )
    loss: str | None = file_field(
        choice(*LOSSES),
        None,
        help="with --code for a function that returns a module alone, its loss: logistic, "
        "cross-entropy or squared; with --model mlp, squared predicts one number",
        metavar="NAME",
        newer=True,
    )

    def __post_init__(self) -> None:
        check_fields(self, "model")
        # exactly one of the two
        if (self.kind is None) == (self.code is None):
            raise InputError(
                'give either model.kind, such as "logistic", or model.code, such as '
                '"package.module:function"'
            )
        if self.code is None and self.code_sha256 is not None:
            raise InputError("model.code_sha256 applies only with model.code; drop it")
        what = self.kind or "code"
        usual = dict(_DEFAULTS[what])
        self._check_loss(what)
        if self.loss == "squared" and self.kind is not None:
            usual.pop("classes", None)  # one number is predicted
        if self.kind == "cnn" and self.image is not None and self.features is None:
            # one follows from the other; if both are given, they are compared below
            object.__setattr__(self, "features", math.prod(self.image))
        for name in _OF_KINDS:
            given = getattr(self, name)
            if name not in usual and given is not None:
                raise InputError(
                    f"model.{name} {abbreviate(given)} does not apply to model {what!r}; drop it"
                )
            # 0 stands for a field that this kind does not take
            if given is None and usual.get(name, 0) is None:
                needed = self.__dataclass_fields__[name].metadata["rule"].description
                raise InputError(f"model.{name} is missing: model {what!r} needs {needed}")
            if given is None:
                # written out: a default that is left out and one that is given have one digest
                object.__setattr__(self, name, usual.get(name))
        if self.kind == "logistic" and self.classes != 2:
            raise InputError(
                f'model.classes must be 2 for "logistic", not {self.classes}; take '
                '"multinomial" for more'
            )
        if self.kind == "cnn":
            self._check_image(self.image or (), self.channels or ())

    def _check_image(self, image: tuple[int, ...], channels: tuple[int, ...]) -> None:
        if math.prod(image) != self.features:
            raise InputError(
                f"model.image {list(image)} has {math.prod(image):,} values, and an example has "
                f"{self.features:,}; give the image's channels, height and width"
            )
        # each convolution is followed by pooling, which halves height and width
        if min(image[1:]) >> len(channels) < 1:
            raise InputError(
                f"model.channels names {len(channels)} convolutions, each of which halves the "
                f"image, and {list(image)} is too small; name fewer"
            )

    def _check_loss(self, what: str) -> None:
        known = _LOSSES_OF.get(what, LOSSES)
        if self.loss is not None and self.loss not in known:
            raise InputError(
                f"model.loss {self.loss!r} does not apply to model {what!r}, whose loss is "
                f"{' or '.join(known)}; drop it"
            )
        # the usual loss is not written out: older files have no such field, and keep their digest
        if self.kind is not None and self.loss == known[0]:
            object.__setattr__(self, "loss", None)

    @property
    def sizes(self) -> tuple[int, ...] | None:
        """Units of each linear layer, from features to outputs; None for a model given as code."""
        if self.features is None:
            return None
        # a logistic model has one output for its two classes
        # an MLP that predicts a number has no classes, and one output too
        outputs = self.classes if self.kind in ("multinomial", "mlp", "cnn") else 1
        if self.image is not None and self.channels:
            halved = [side >> len(self.channels) for side in self.image[1:]]
            return (self.channels[-1] * math.prod(halved), outputs or 1)
        return (self.features, *(self.hidden or ()), outputs or 1)

    @property
    def description(self) -> str:
        """The model in words, such as "mlp: 30 features, hidden 16, relu, 2 classes"."""
        if self.code is not None:
            known = f" (SHA-256 {self.code_sha256})" if self.code_sha256 else ""
            return f"the code {self.code}{known}"
        sizes = [f"{self.features:,} features"]
        for name in ("image", "channels", "hidden"):
            if (values := getattr(self, name)) is not None:
                sizes.append(f"{name} {'-'.join(map(str, values))}")
        if self.activation is not None:
            sizes.append(self.activation)
        if self.classes is not None:
            sizes.append(f"{self.classes} classes")
        return f"{self.kind}: {', '.join(sizes)}"


_LOSSES_OF: dict[str, tuple[str, ...]] = {
    "logistic": ("logistic",),
    "multinomial": ("cross-entropy",),
    "mlp": ("cross-entropy", "squared"),
    "linear": ("squared",),
    "cnn": ("cross-entropy",),
}
"""The losses of each built-in kind, the usual one first."""
_DEFAULTS: dict[str, dict[str, Any]] = {
    "logistic": {"features": None, "classes": 2},
    "multinomial": {"features": None, "classes": None},
    "mlp": {"features": None, "classes": None, "hidden": None, "activation": "relu", "seed": 0},
    "linear": {"features": None},
    "cnn": {"features": None, "classes": None, "image": None, "channels": None, "seed": 0},
    "code": {"seed": 0},
}
"""The fields that each kind of model takes, and their defaults (None: the field is required)."""
