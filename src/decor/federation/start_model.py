"""The model that a renewed federation begins with: a public file, named by its hash.

A function of messages that their senders' ledgers account for, so that it costs no budget
(docs/guarantees.md). The federation's file has its hash, and all users begin with the same bytes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from decor.array_types import Array
from decor.errors import InputError, require
from decor.learning.model_code import shorten
from decor.results.run import Run

if TYPE_CHECKING:  # a federation on one machine reads it without torch
    import torch

_LARGEST = 1e18
"""As of every model that users send (`vector_kernels.LARGEST`)."""


@dataclass(frozen=True, eq=False)
class StartModel:
    """The trained parameters of a model.

    Attributes:
        parameters: Each of them by its name, in the federation's dtype.
    """

    parameters: Mapping[str, Array]

    def __post_init__(self) -> None:
        for name, values in self.parameters.items():
            # written so that NaN is refused too
            if values.dtype.kind != "f" or not bool((np.abs(values) <= _LARGEST).all()):
                raise InputError(
                    f"{name} of the model to start from has values that are not finite, or beyond "
                    f"{_LARGEST:g}: has its training diverged? Start from another run"
                )

    @classmethod
    def of_run(cls, run: Run) -> StartModel:
        """The average of the models of a run, which is the user's own in the folder of a node.

        Args:
            run: With its models.
        """
        return cls({name: value.mean(0).numpy() for name, value in run.models.items()})

    @classmethod
    def read(cls, path: str | Path) -> StartModel:
        """Reads the file that `decor federation renew` writes, or the folder of a run."""
        if Path(path).is_dir():
            return cls.of_run(Run.load(path))
        require("safetensors", "train", "models")
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        try:
            return cls(load_file(path))
        # KeyError: a dtype that NumPy does not have
        except (OSError, SafetensorError, KeyError) as problem:
            raise InputError(
                f"the model to start from, {str(path)!r}, cannot be read: {problem}; get it again "
                "from the member who sent the federation file"
            ) from None

    @property
    def file_bytes(self) -> bytes:
        """The content of its file, in the format of safetensors."""
        require("safetensors", "train", "models")
        from safetensors.numpy import save

        contiguous = {name: np.ascontiguousarray(each) for name, each in self.parameters.items()}
        return bytes(save(contiguous))

    @cached_property
    def sha256(self) -> str:
        """The hash of names, shapes, dtypes and values, whatever file they come from."""
        whole = hashlib.sha256(b"decor start model 1\n")
        for name, values in sorted(self.parameters.items()):
            # one line of ASCII says how many bytes follow: no two models give the same bytes
            line = json.dumps([name, values.dtype.name, list(values.shape)])
            whole.update(line.encode("ascii") + b"\n")
            whole.update(values.astype(values.dtype.newbyteorder("<")).tobytes())
        return whole.hexdigest()

    def load_into(self, module: torch.nn.Module) -> None:
        """Gives a module these parameters.

        Args:
            module: A new module of the federation's model; changed in place.

        Raises:
            InputError: The parameters are not those of this module.
        """
        import torch

        # tied parameters are stored under each of their names
        named = module.named_parameters(remove_duplicate=False)
        own = {name: each for name, each in named if each.requires_grad}
        there = {name: _kind(each.shape, str(each.dtype)[6:]) for name, each in own.items()}
        here = {name: _kind(each.shape, each.dtype.name) for name, each in self.parameters.items()}
        for name in sorted({*there, *here}):
            if here.get(name) != there.get(name):
                raise InputError(
                    "the model to start from does not fit the federation's [model]: it has "
                    f"{here.get(name, 'no')} {name}, and the federation "
                    f"{there.get(name, 'none')}; take a run of the same model"
                )
        with torch.no_grad():
            for name, each in own.items():
                each.copy_(torch.from_numpy(self.parameters[name]))


def path_beside(file: str | Path) -> Path:
    """Where the model of a federation's file lies unless it is named: heart.start.safetensors.

    Args:
        file: The federation's file, such as heart.toml.
    """
    return Path(file).with_suffix(".start.safetensors")


def find_start(sha256: str | None, file: str | Path, given: str | Path | None) -> StartModel | None:
    """The model that training begins with; None where the federation begins with new weights.

    Args:
        sha256: `model.start_sha256` of the federation.
        file: The federation's file.
        given: The model's file, or the folder of a run; None: the file beside the federation's.

    Raises:
        InputError: There is no such file, or it holds another model.
    """
    if sha256 is None:
        if given is not None:
            raise InputError(
                f"{str(file)!r} has no model.start_sha256: its training begins with new weights; "
                "drop --start, or take the file of decor federation renew"
            )
        return None
    path = path_beside(file) if given is None else Path(given)
    way_out = "get it from the member who sent the federation file, or name it with --start"
    if not path.exists():
        raise InputError(
            f"training begins with the model of SHA-256 {shorten(sha256)}, and {str(path)!r} is "
            f"not there; {way_out}"
        )
    start = StartModel.read(path)
    if start.sha256 != sha256:
        raise InputError(
            f"{str(path)!r} holds a model of SHA-256 {shorten(start.sha256)}, and training begins "
            f"with the one of {shorten(sha256)}; {way_out}"
        )
    return start


def _kind(shape: Any, dtype: str) -> str:
    return f"{dtype}{list(shape)}"
