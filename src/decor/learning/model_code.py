"""A model given as code: its source, found and hashed without running any of it, and its call.

The hash is the one that standard tools give, in the folder that holds the package `own`:

    find own -name '*.py' | LC_ALL=C sort | xargs sha256sum | sha256sum

It covers all source of the top-level package, or the one file of a module that is in no package.
What the code imports from other packages is not covered.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import BYTECODE_SUFFIXES, EXTENSION_SUFFIXES, ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from decor.errors import InputError

from . import own_data

_COMPILED = tuple(BYTECODE_SUFFIXES + EXTENSION_SUFFIXES)
_SHOWN = 12
"""Digits of a hash in a message."""


def hash_source(code: str) -> str:
    """SHA-256 of the source behind `code`, in hexadecimal; imports nothing.

    Args:
        code: "package.module:function".

    Raises:
        InputError: If the module is not installed, has no source, or could run code that is not in
            its source: compiled modules, folders behind links.
    """
    whole = hashlib.sha256()
    for name, digest in sorted(set(_source_files(code))):
        whole.update(f"{digest}  {name}\n".encode())
    return whole.hexdigest()


def verify(code: str, expected: str) -> None:
    """Raises InputError unless the installed source has the hash `expected`; imports nothing."""
    installed = hash_source(code)
    if installed != expected:
        raise InputError(
            f"the code of {_top(code)!r} that is installed here has SHA-256 {shorten(installed)}, "
            f"and model.code_sha256 of the federation is {shorten(expected)}; install the version "
            "that the federation was written for, or have all users agree on a new file"
        )


def shorten(digest: str) -> str:
    """The first digits of a hash, for messages."""
    return digest[:_SHOWN] + "..."


def call(code: str, sha256: str | None, seed: int, module_alone: bool = False) -> tuple[Any, Any]:
    """Imports and calls the function; torch's randomness begins at the seed.

    Args:
        code: "package.module:function".
        sha256: What `hash_source` must give; None to accept any code.
        seed: For torch, whose own state stays as it was.
        module_alone: Whether the function may return a module without a loss.

    Returns:
        (torch.nn.Module, loss); the loss is None where a module alone was returned.
    """
    import torch

    if sha256 is not None:
        verify(code, sha256)
    with _without_bytecode(sha256 is not None), torch.random.fork_rng(devices=[]):
        function = own_data.import_function(code, "model.code")
        torch.manual_seed(seed)
        try:
            made = function()
        except Exception as problem:  # any error of the user's code is the user's to correct
            raise InputError(
                f"model.code {code!r} failed: {type(problem).__name__}: {problem}"
            ) from problem
    match made:
        case (torch.nn.Module(), loss) if isinstance(made, tuple) and callable(loss):
            return made
        case torch.nn.Module() if module_alone:
            return made, None
    raise InputError(
        f"model.code {code!r} must return (torch.nn.Module, loss), not {type(made).__name__}"
    )


def _top(code: str) -> str:
    return code.partition(":")[0].partition(".")[0]


def _source_files(code: str) -> Iterator[tuple[str, str]]:
    """(name, SHA-256) of each source file; names begin with that of the top-level package."""
    top = _top(code)
    spec = _find(top, code)
    if spec.submodule_search_locations is None:
        # the finder prefers a compiled module where there are both
        if spec.origin is None or not spec.origin.endswith(".py"):
            raise InputError(
                f"model.code {code!r}: the module {top!r} has no source file; name a function in a "
                "package of your own"
            )
        yield f"{top}.py", _digest(Path(spec.origin))
        return
    found = False
    # a package without __init__.py may lie in several folders
    for location in spec.submodule_search_locations:
        for path in _walk(Path(location), top):
            name = f"{top}/{path.relative_to(location).as_posix()}"
            # each line of the hash is one file
            if not name.isprintable():
                raise InputError(f"the package {top!r} has a file {name!r}; rename it")
            found = True
            yield name, _digest(path)
    if not found:
        raise InputError(f"model.code {code!r}: the package {top!r} has no source; install it")


def _find(top: str, code: str) -> ModuleSpec:
    # only the top: to find "a.b", importlib would import a
    importlib.invalidate_caches()
    try:
        spec = find_spec(top)
    except (ImportError, ValueError):  # ValueError: a module that was made without a file
        spec = None
    if spec is None:
        raise InputError(
            f"model.code {code!r}: the module {top!r} is not installed; install it, or add its "
            "folder to PYTHONPATH"
        )
    return spec


def _walk(location: Path, top: str) -> Iterator[Path]:
    """The source files of a package; refuses what Python could run in place of them."""
    for folder, folders, files in os.walk(location):
        where = Path(folder)
        for name in folders:
            if (where / name).is_symlink():
                raise InputError(
                    f"the package {top!r} has a link to a folder, {str(where / name)!r}, whose "
                    "code would not be in the hash; put the folder itself there"
                )
        for name in files:
            # Python would run it in place of source, or without any; from __pycache__ it would
            # too, but `call` prevents that
            if name.endswith(_COMPILED) and where.name != "__pycache__":
                raise InputError(
                    f"the package {top!r} has a compiled module, {str(where / name)!r}, which a "
                    "hash of the source does not cover; put the model's function in a package "
                    "without one"
                )
            if name.endswith(".py"):
                yield where / name


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as problem:
        raise InputError(
            f"the code {str(path)!r} cannot be read: {problem.strerror}; install it again"
        ) from None


@contextmanager
def _without_bytecode(wanted: bool) -> Iterator[None]:
    """Meanwhile modules are compiled from their source.

    Whoever sends a package can put bytecode of other code beside its source, with any date.
    """
    if not wanted:
        yield
        return
    before = sys.pycache_prefix, sys.dont_write_bytecode
    with tempfile.TemporaryDirectory() as empty:
        sys.pycache_prefix, sys.dont_write_bytecode = empty, True
        try:
            yield
        finally:
            sys.pycache_prefix, sys.dont_write_bytecode = before
