"""Pages as files: a template of `page/`, filled once, and written in one move."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

from decor.errors import InputError


def page_file(name: str) -> str:
    """The text of a file in `page/`."""
    return (resources.files("decor.results") / "page" / name).read_text("utf-8")


def fill_template(name: str, parts: Mapping[str, str]) -> str:
    """A template of `page/` with its parts, which are markup already.

    Args:
        name: The template's file.
        parts: What stands in the place of each {{name}}.
    """
    # one pass, so that text of the data that looks like a placeholder stays as it is
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], page_file(name))


def write_page(text: str, path: str | Path) -> None:
    """Writes a page to a file, which is never left half-written.

    Args:
        text: The page.
        path: The file.

    Raises:
        InputError: If the file cannot be written.
    """
    partial = Path(f"{path}.partial")
    try:
        # "replace": names of folders may hold bytes that are not UTF-8
        partial.write_bytes(text.encode("utf-8", "replace"))
        os.replace(partial, path)
    except OSError as problem:
        partial.unlink(missing_ok=True)
        reason = problem.strerror or problem
        raise InputError(f"the report {str(path)!r} cannot be written: {reason}") from None
