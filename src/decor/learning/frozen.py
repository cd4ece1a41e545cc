"""Parameters that are not trained, such as the body under adapters: public, and the same for all.

They exist once, whatever the number of users: no user has a copy, no message, ledger or run folder
has them, and no noise is added to them. A run's manifest has their hash.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import TensorWeakRef, WeakTensorKeyDictionary

_converted: Any = WeakTensorKeyDictionary()
"""Of a parameter: its version, and where its values are in other types, while something holds them.
"""


def body_parameters(module: nn.Module) -> dict[str, Tensor]:
    """What is not trained, by all its names; the module's own memory."""
    every = module.named_parameters(remove_duplicate=False)
    return {name: p.detach() for name, p in every if not p.requires_grad}


def body_summary(module: nn.Module) -> dict[str, Any] | None:
    """How many parameters are not trained, and their hash; None if all are trained.

    The hash is that of names, shapes and values, in whatever floating point type they are kept.
    """
    frozen = {name: p.detach() for name, p in module.named_parameters() if not p.requires_grad}
    if not frozen:
        return None
    whole = hashlib.sha256(b"decor frozen parameters 1\n")
    for name, values in sorted(frozen.items()):
        # one line of ASCII says how many bytes follow: no two modules give the same bytes
        whole.update(json.dumps([name, list(values.shape)]).encode("ascii") + b"\n")
        # every shorter type is exact in float64
        exact = values.to("cpu", torch.float64).contiguous().numpy()
        whole.update(exact.astype("<f8", copy=False).tobytes())
    count = sum(values.numel() for values in frozen.values())
    return {"parameters": count, "sha256": whole.hexdigest()}


def convert(p: nn.Parameter, device: torch.device, dtype: torch.dtype) -> Tensor:
    """A frozen parameter in another type or on another device: one copy for all who ask.

    Processes that are forked while a copy is held have it too.
    """
    values = p.detach()
    if (values.device, values.dtype) == (device, dtype) or not values.is_floating_point():
        return values.to(device)
    known = _converted.setdefault(p, {})
    # a parameter that was changed in place has another version
    version, held = known.get((device, dtype), (None, None))
    found = None if held is None or version != p._version else held()
    if found is None:
        found = values.to(device, dtype)
        known[device, dtype] = p._version, TensorWeakRef(found)
    result: Tensor = found
    return result
