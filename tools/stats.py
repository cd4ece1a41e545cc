"""Figures about the code base, for `make stats`: size, comments, documentation, names, tests.

Everything is counted from the source; only the public objects are imported.
"""

from __future__ import annotations

import ast
import inspect
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "decor"
COLUMNS = 100

IRREGULAR = set(
    "begun bound brought built bought caught chosen come cut dealt done drawn driven fallen felt "
    "fought found frozen given gone grown heard held hidden hit hung kept known laid led left lent "
    "let lost made meant met paid proven put read run said seen sent set shared shown shut sought "
    "spent split spoken spread stood struck sworn taken taught thrown told thought torn understood "
    "undone woken won worn wound written".split()
)
NOT_PARTICIPLES = set(
    "seed need feed speed embed shed red bed indeed exceed proceed succeed "
    "read run set put cut split let hit shut left bound wound spread lead come felt run".split()
)
"""Words that are verbs or nouns as they stand: commands may have them."""


PROPERTIES = {
    "rounded_up",
    "rounded_up_range",
    "rounded_down",
    "scaled",
    "squared",
    "predicted_error",
    "listed_adversaries",
    "noised",
}
"""Adjectives and pure copies may be participles: public names, and numbers as text."""


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def comment_count(text: str) -> int:
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    directives = re.compile(r"#\s*(noqa|type:|mypy:|fmt:|pragma)")
    return sum(t.type == tokenize.COMMENT and not directives.match(t.string) for t in tokens)


def documentation_lines(tree: ast.Module) -> int:
    """Lines of docstrings, and of strings under constants."""
    return sum(
        node.end_lineno - node.lineno + 1
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def is_participle(name: str) -> bool:
    """Whether a function is named by a participle: `told`, `gathered_models`, `as_sent` is not."""
    first = name.strip("_").split("_")[0]
    if first in NOT_PARTICIPLES or name in PROPERTIES:
        return False
    return first in IRREGULAR or (len(first) > 4 and first.endswith("ed"))


def participles() -> Iterator[str]:
    """Functions named by a participle that are no properties."""
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and is_participle(
                node.name
            ):
                names = {ast.unparse(each).split(".")[-1] for each in node.decorator_list}
                if not names & {"property", "cached_property"}:
                    yield f"{path.relative_to(SOURCE)}:{node.lineno} {node.name}"


def public_objects() -> Iterator[tuple[str, object]]:
    """Every name of `decor.__all__`, functions of its modules, and methods of its classes."""
    import decor

    for name in decor.__all__:
        thing = getattr(decor, name)
        if inspect.ismodule(thing):
            for inner, member in vars(thing).items():
                own = getattr(member, "__module__", "") == thing.__name__
                if (
                    own
                    and not inner.startswith("_")
                    and (inspect.isfunction(member) or inspect.isclass(member))
                ):
                    yield f"{name}.{inner}", member
                    if inspect.isclass(member):
                        yield from methods(f"{name}.{inner}", member)
        else:
            yield name, thing
            if inspect.isclass(thing):
                yield from methods(name, thing)


def methods(name: str, thing: type) -> Iterator[tuple[str, object]]:
    for inner, member in vars(thing).items():
        function = member.__func__ if isinstance(member, classmethod | staticmethod) else member
        if not inner.startswith("_") and inspect.isfunction(function):
            yield f"{name}.{inner}", function


def undocumented(thing: object) -> list[str]:
    """Arguments that the documentation of a function or class does not name."""
    text = inspect.getdoc(thing) or ""
    if not text:
        return ["(no documentation)"]
    try:
        signature = inspect.signature(thing)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return []
    if inspect.isclass(thing) and (
        issubclass(thing, Exception) or getattr(thing, "_is_protocol", False)
    ):
        return []
    named = {name for name in signature.parameters if name not in ("self", "cls")}
    return sorted(name for name in named if not re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text))


def untested() -> list[str]:
    """Modules without a test file of their own name that the architecture test does not list."""
    sys.path.insert(0, str(ROOT / "tests"))
    from test_architecture import without_test_file

    return without_test_file()


def comment_ratio() -> float:
    """Comments per line of code."""
    texts = [path.read_text() for path in modules()]
    lines = [line.strip() for text in texts for line in text.splitlines()]
    alone = sum(line.startswith("#") for line in lines)
    documentation = sum(documentation_lines(ast.parse(text)) for text in texts)
    code = len(lines) - lines.count("") - documentation - alone
    return sum(comment_count(text) for text in texts) / code


def main() -> None:
    texts = {path: path.read_text() for path in modules()}
    trees = {path: ast.parse(text) for path, text in texts.items()}
    lines = sum(text.count("\n") for text in texts.values())
    blank = sum(not line.strip() for text in texts.values() for line in text.splitlines())
    documentation = sum(documentation_lines(tree) for tree in trees.values())
    alone = sum(
        line.strip().startswith("#") for text in texts.values() for line in text.splitlines()
    )
    code = lines - blank - documentation - alone
    statements = sum(isinstance(n, ast.stmt) for tree in trees.values() for n in ast.walk(tree))
    long = sum(len(line) > COLUMNS for text in texts.values() for line in text.splitlines())
    objects = {name: undocumented(thing) for name, thing in public_objects()}
    missing = {name: names for name, names in objects.items() if names}
    named = list(participles())
    rows = [
        ("lines of Python in src/decor", f"{lines:,}"),
        (
            "  of them code, documentation, comments, blank",
            f"{code:,}, {documentation:,}, {alone:,}, {blank:,}",
        ),
        ("statements", f"{statements:,}"),
        ("modules", f"{len(texts):,}"),
        ("comments per line of code", f"{comment_ratio():.3f}"),
        (f"lines over {COLUMNS} columns", f"{long:,}"),
        (
            "public objects with all arguments documented",
            f"{len(objects) - len(missing)} of {len(objects)}",
        ),
        ("functions named by a participle", f"{len(named)}"),
        ("modules without a test file, and not listed", f"{len(untested())}"),
    ]
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"{name:<{width}}  {value}")
    if "--list" in sys.argv:
        for name, names in missing.items():
            print(f"undocumented: {name}: {', '.join(names)}")
        for each in named:
            print(f"participle: {each}")
        for each in untested():
            print(f"untested: {each}")


if __name__ == "__main__":
    main()
