"""The rooms of the house, enforced: who may import whom, and what importing decor must never drag in."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "decor"

_TRAINED = {"errors", "progress", "machine", "graph", "privacy", "noise", "learning", "results"}
MAY_IMPORT = {
    "errors": set(),
    "progress": set(),
    "machine": set(),
    "graph": {"errors"},
    "privacy": {"errors", "progress", "graph"},
    "noise": {"errors"},
    "net": {"errors", "noise"},
    # a recipe says how users gossip
    "learning": {"errors", "progress", "graph"},
    "results": {"errors", "progress", "graph", "privacy"},
    "engines": _TRAINED,
    # real users: where the network meets what is trained over it
    "federation": {*_TRAINED, "net", "engines"},
    # attacks on what engines and real users send
    "auditing": {*_TRAINED, "net", "engines", "federation"},
    # the planner's page; what it needs of the network is handed in by the command
    "ui": {"errors", "progress", "graph", "privacy", "results"},
    # programs on the public names: no engine, no privacy, no noise behind them
    "reproductions": {"errors", "progress", "machine", "results"},
    "cli": {*_TRAINED, "net", "engines", "federation", "auditing", "ui", "reproductions"},
}
FILES = sorted(path for path in SOURCE.rglob("*.py") if path.parent != SOURCE or path.stem in MAY_IMPORT)


def rooms_imported(path):
    """Rooms of decor named in any import of the file, also inside functions."""
    package = ["decor", *path.relative_to(SOURCE).with_suffix("").parts][:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            names = [f"{module}.{alias.name}" for alias in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "decor":
                yield parts[1] if len(parts) > 1 else ""


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_no_room_imports_what_it_may_not(path):
    room = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    # the public names, which `decor/__init__.py` takes from graph and privacy
    public = (
        {"", "baselines", "theory", "Topology"}
        if room in ("cli", "results", "engines", "federation", "reproductions", "ui")
        else set()
    )
    strangers = set(rooms_imported(path)) - MAY_IMPORT[room] - {room} - public
    assert not strangers, f"{path.name} in {room}/ imports {strangers}"


def test_every_room_is_known():
    rooms = {p.stem for p in SOURCE.glob("*.py") if not p.stem.startswith("__")} | {
        p.name for p in SOURCE.iterdir() if (p / "__init__.py").exists()
    }
    assert rooms == set(MAY_IMPORT)


@pytest.mark.parametrize("heavy", ["torch", "numba", "matplotlib", "dp_accounting", "networkx"])
@pytest.mark.parametrize("what", ["import decor", "from decor.cli.main import main; main(['plan', '--epsilon', '3'])"])
def test_the_core_starts_without(heavy, what):
    """A plan for 16 users answers at once because none of these is loaded; torch must never be."""
    code = f"import sys; {what}; sys.exit({heavy!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL).returncode == 0


ENVIRONMENT = ("cli/", "engines/world.py", "engines/team.py", "engines/process_group.py", "learning/datasets/")
"""Who may read environment variables: commands, who joins a process group, and who looks for the folder of data sets."""


def test_no_environment_variable_is_read_elsewhere():
    """One that was, RANK in the lowest module, decided whether models were saved and whether audits attacked."""
    for path in SOURCE.rglob("*.py"):
        if not str(path.relative_to(SOURCE)).startswith(ENVIRONMENT):
            for node in ast.walk(ast.parse(path.read_text())):
                named = node.attr if isinstance(node, ast.Attribute) else node.name if isinstance(node, ast.alias) else ""
                assert named not in ("environ", "environb", "getenv", "getenvb"), path


def test_nothing_is_ever_unpickled():
    for path in SOURCE.rglob("*.py"):
        assert "pickle" not in path.read_text().lower(), path
