"""The documentation as a site that works from disk: `make docs`.

The same pages read as plain Markdown on a code host.

What a page cannot say in plain Markdown is added here when it is read: the navigation, the
changelog, and the help of every command, which is asked for and not copied. Nothing is fetched from
anywhere, by the build or by the pages.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pygments.lexers.shell import BashLexer
from pygments.lexers.special import TextLexer

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "src"))
os.environ["COLUMNS"] = "92"  # of the commands' help

import decor  # noqa: E402

NAVIGATION = {
    "Start": {"tutorial": "Tutorial", "choosing": "Choosing", "planner": "Planner"},
    "Stories": {
        "story-hospitals": "Five hospitals, one table",
        "story-images": "Digits at eight post offices",
        "story-text": "Urgent or not, in eight doctors' words",
        "story-bank": "Forty branches, every quarter",
    },
    "What is promised": {
        "guarantees": "Guarantees",
        "attacks": "Attacks",
        "audit": "Audit",
        "mutations": "Mutations",
        "theory": "Theory",
        "noise": "Noise on a grid",
    },
    "Run it": {
        "own-data": "Your own data",
        "own-files": "With files and commands",
        "training": "Training",
        "own-loop": "Your own loop",
        "doors": "Inside other packages",
        "deploy": "Deploying",
        "operations": "Operating",
        "distributed": "Processes and GPUs",
    },
    "Look it up": {
        "commands": "Commands",
        "api": "API",
        "notation": "Notation",
        "protocol": "Protocol",
    },
    "Evidence": {"reproduction": "Reproduction", "benchmarks": "Benchmarks", "scale": "Scale"},
    "About": {
        "architecture": "Architecture",
        "design": "Design decisions",
        "changelog": "Changelog",
    },
}
"""Every page, by what it is for."""

project, author, version = "DECOR", "the DECOR authors", decor.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
napoleon_use_ivar = True  # fields of dataclasses are documented in the class
myst_heading_anchors = 4
suppress_warnings = ["config.cache"]  # none of the code below is a setting
default_role = "code"  # docstrings write `names` as Markdown does
highlight_language = "text"
nitpicky = False
pygments_style, pygments_dark_style = "friendly", "native"

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 88
python_use_unqualified_type_names = True
add_module_names = False

html_theme = "furo"
html_title = "DECOR"
html_static_path = ["site"]
html_css_files = ["site.css"]
html_favicon = "site/logo.svg"
html_logo = "site/logo.svg"
html_copy_source = False
html_show_copyright = False
html_theme_options = {
    "light_css_variables": dict.fromkeys(
        ("color-brand-primary", "color-brand-content", "color-api-name"), "#1f5fa8"
    ),
    "dark_css_variables": dict.fromkeys(
        ("color-brand-primary", "color-brand-content", "color-api-name"), "#7db3f0"
    ),
    "navigation_with_keys": True,
}


def navigation() -> str:
    trees = []
    for caption, group in NAVIGATION.items():
        entries = [f"{title} <{page}>" for page, title in group.items()]
        trees.append(
            "\n".join(["```{toctree}", ":hidden:", f":caption: {caption}", "", *entries, "```", ""])
        )
    return "\n".join(trees)


def commands(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Every command, in the order of `decor --help`."""
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not below:
        yield parser
    for action in below:
        for one in action.choices.values():
            yield from commands(one)


def help_of_commands() -> str:
    from decor.cli.main import parser as top

    return "\n".join(
        f"## {one.prog}\n\n```text\n{one.format_help().strip()}\n```\n" for one in commands(top())
    )


ADDED = {
    "index": lambda text: f"{text}\n{navigation()}",
    "commands": lambda text: f"{text}\n{help_of_commands()}",
    "changelog": lambda text: (HERE.parent / "CHANGELOG.md").read_text(),
}


def add(app: Any, page: str, source: list[str]) -> None:
    text = ADDED[page](source[0]) if page in ADDED else source[0]
    # what lies beside docs/ is no page of the site
    source[0] = re.sub(r"\[([^\]]+)\]\(\.\./[^)]+\)", r"\1", text)


def plain(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Docstrings are plain text with `names`: a bar is a norm, and no reference."""
    lines[:] = [line.replace("|", r"\|") for line in lines]


def texts(app: Any, problem: Exception | None) -> None:
    """A browser fetches nothing from disk, so that the search page has every page's text in a
    script, for its excerpts.
    """
    if problem is None and app.builder.name == "html":
        found = {}
        for page in sorted(app.env.found_docs):
            text = Path(app.outdir, f"{page}.html").read_text()
            body = re.search(r'<article role="main".*?</article>', text, flags=re.S)
            found[f"{page}.html"] = body[0] if body else ""
        Path(app.outdir, "_static", "texts.js").write_text(
            f"window.DECOR_TEXTS = {json.dumps(found)};\n"
        )


def only_when_searching(
    app: Any, page: str, template: str, context: dict[str, Any], doctree: Any
) -> None:
    if page == "search":
        app.add_js_file("texts.js")
        app.add_js_file("search.js")


def setup(app: Any) -> None:
    app.add_lexer("bash-slurm", BashLexer)
    app.add_lexer("csv", TextLexer)
    app.connect("source-read", add)
    app.connect("autodoc-process-docstring", plain)
    app.connect("html-page-context", only_when_searching)
    app.connect("build-finished", texts)
