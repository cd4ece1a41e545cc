"""The package layout, enforced: who may import whom, and what importing decor must never load.

Every import counts, also inside functions and under TYPE_CHECKING. docs/architecture.md shows the
same arrows.
"""

import ast
import functools
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "decor"

LEAVES = {"errors", "checks", "choices", "array_types", "text", "progress", "cpu_cores", "version"}
BELOW_TRAINING = {*LEAVES, "graph", "privacy", "noise", "learning", "results"}
MAY_IMPORT = {
    "errors": set(),
    "checks": {"errors"},
    "array_types": set(),
    "choices": set(),
    "text": set(),
    "progress": set(),
    "cpu_cores": set(),
    "version": set(),
    "graph": LEAVES,
    "privacy": {*LEAVES, "graph"},
    "noise": LEAVES,
    "net": {*LEAVES, "noise"},
    # a recipe names how users gossip
    "learning": {*LEAVES, "graph"},
    # a saved model is built again from its definition
    "results": {*LEAVES, "graph", "privacy", "learning"},
    "training": BELOW_TRAINING,
    "distributed": {*BELOW_TRAINING, "training"},
    "federation": {*BELOW_TRAINING, "training", "net"},
    "auditing": {*BELOW_TRAINING, "training", "distributed", "net", "federation"},
    # accountants need the privacy alone, launchers start nodes
    "doors": {*BELOW_TRAINING, "training", "net", "federation"},
    # what the planner's page needs of the network is passed in by the command
    "ui": {*LEAVES, "graph", "privacy", "results"},
    # programs on the public names: no engine, no privacy, no noise behind them
    "reproductions": {"", *LEAVES, "results"},
    "cli": {
        "",
        *BELOW_TRAINING,
        "training",
        "distributed",
        "net",
        "federation",
        "auditing",
        "ui",
        "reproductions",
    },
}
MODULES = {
    ".".join(path.relative_to(SOURCE).with_suffix("").parts): path
    for path in sorted(SOURCE.rglob("*.py"))
    if path.parent != SOURCE or path.stem in MAY_IMPORT
}


NAMED_BY_OTHERS = ("federation.user_processes", "learning.own_data")
"""Who imports modules by a variable: of other libraries, and of the program of the caller."""


def is_dynamic_import(node):
    """Whether a node is a call such as `import_module("decor.net.ledger")`."""
    called = node.func if isinstance(node, ast.Call) else None
    name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", None)
    return name in ("import_module", "__import__")


def dynamic_names(call, package):
    """The modules that a call may import: all of a package whose name alone is written out.

    Nothing if no part of the name is written out.
    """
    name, parts = call.args[0], [""]
    if isinstance(name, ast.Constant):
        parts = [name.value]
    elif isinstance(name, ast.JoinedStr) and isinstance(name.values[0], ast.Constant):
        parts = [name.values[0].value, ""]
    text = f"{package}{parts[0]}" if parts[0].startswith(".") else parts[0]
    if len(parts) == 1:
        return {text} - {""}
    below = text.removeprefix("decor.")
    return {f"decor.{module}" for module in MODULES if module.startswith(below)}


@functools.cache
def imports(module):
    """Every name of decor that a module imports, below `decor.`; the package root itself is ""
    (`import decor`).
    """
    package = ["decor", *module.split(".")][:-1]
    names = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            names |= {f"{origin}.{alias.name}" for alias in node.names}
        elif is_dynamic_import(node):
            names |= dynamic_names(node, ".".join(package))
    return {name.partition(".")[2] for name in names if name.split(".")[0] == "decor"}


def imported_modules(module):
    """The modules among `imports`: `decor.graph.topology.Topology` is of the module
    graph.topology.
    """
    for name in imports(module):
        parts = name.split(".")
        for end in range(len(parts), 0, -1):
            if ".".join(parts[:end]) in MODULES:
                yield ".".join(parts[:end])
                break
            if ".".join([*parts[:end], "__init__"]) in MODULES:
                yield ".".join([*parts[:end], "__init__"])
                break


def cycles(edges):
    """Sets of modules that import each other, by Tarjan's algorithm."""
    index, low, stack, found = {}, {}, [], []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in edges[node]:
            if other not in index:
                visit(other)
            if other in stack:
                low[node] = min(low[node], low[other])
        if low[node] == index[node]:
            component = set(stack[stack.index(node) :])
            del stack[stack.index(node) :]
            if len(component) > 1:
                found.append(sorted(component))

    for node in edges:
        if node not in index:
            visit(node)
    return found


@pytest.mark.parametrize("module", MODULES)
def test_a_package_imports_only_what_it_may(module):
    package = module.split(".")[0]
    # `from decor import baselines` is an import of the root too: lazy names load whatever they need
    imported = {
        name.split(".")[0] if name.split(".")[0] in MAY_IMPORT or not name else ""
        for name in imports(module)
    }
    assert imported - MAY_IMPORT[package] - {package} == set()


def test_every_package_is_known():
    packages = {p.stem for p in SOURCE.glob("*.py") if not p.stem.startswith("__")} | {
        p.name for p in SOURCE.iterdir() if (p / "__init__.py").exists()
    }
    assert packages == set(MAY_IMPORT)


def test_no_modules_import_each_other_in_a_circle():
    assert cycles({module: set(imported_modules(module)) - {module} for module in MODULES}) == []


def test_a_circle_would_be_seen():
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == [["b", "c"]]


@pytest.mark.parametrize("heavy", ["torch", "numba", "matplotlib", "dp_accounting", "networkx"])
@pytest.mark.parametrize(
    "what", ["import decor", "from decor.cli.main import main; main(['plan', '--epsilon', '3'])"]
)
def test_the_core_starts_without(heavy, what):
    """A plan for 16 users answers at once because none of these is loaded; torch must never be."""
    code = f"import sys; {what}; sys.exit({heavy!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL).returncode == 0


def test_imports_by_name_are_seen():
    """Two were not: the nodes' of the network, and the studies'."""
    assert "net.identity" in imports("federation.file_rules")
    assert "reproductions.gossip" in imports("reproductions.catalogue")
    calls = {
        'import_module("decor.net.ledger")': {"decor.net.ledger"},
        'importlib.import_module(".ledger", __package__)': {"decor.cli.ledger"},
        '__import__("decor")': {"decor"},
        'import_module(f"decor.graph.f{rest}")': {"decor.graph.families", "decor.graph.files"},
        "import_module(name)": set(),
    }
    for text, names in calls.items():
        call = ast.parse(text).body[0].value
        assert is_dynamic_import(call) and dynamic_names(call, "decor.cli") == names, text


def test_modules_whose_names_are_not_written_out_are_imported_where_that_is_said():
    unknown = set()
    for module, path in MODULES.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if is_dynamic_import(node) and not dynamic_names(node, "decor"):
                unknown.add(module)
    assert unknown == set(NAMED_BY_OTHERS)


ENVIRONMENT = ("cli.", "distributed.", "learning.datasets.")
"""Who may read environment variables: commands, processes that join a group, and the search for
data sets.
"""


def test_no_environment_variable_is_read_elsewhere():
    """One that was, RANK in the lowest module, decided whether models were saved and whether audits
    attacked.
    """
    # not of MODULES: these two belong to no package, and every program loads the first
    entries = {name: SOURCE / f"{name}.py" for name in ("__init__", "__main__")}
    for module, path in (MODULES | entries).items():
        if not module.startswith(ENVIRONMENT):
            assert environment_names(path.read_text()) == set(), path


def environment_names(code):
    """What reads environment variables in a piece of code."""
    named = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Attribute):
            named.add(node.attr)
        elif isinstance(node, ast.alias):
            named.add(node.name)
    return named & {"environ", "environb", "getenv", "getenvb", "expandvars"}


def test_every_way_to_an_environment_variable_is_seen():
    for code in ("os.environ['A']", "from os import getenvb", "os.path.expandvars('$A')"):
        assert len(environment_names(code)) == 1


UNPICKLE = {"process_starter.py", "user_processes.py"}
"""Both ends of a descriptor between a process and the one it has started; no file, no network."""


def test_nothing_that_others_could_have_written_is_unpickled():
    for path in SOURCE.rglob("*.py"):
        if path.name not in UNPICKLE:
            assert "pickle" not in path.read_text().lower(), path


TESTED_ELSEWHERE: dict[str, str] = {
    "array_types": "types only",
    "choices": "types only",
    "cpu_cores": "training/test_threads.py: threads up to the number of cores",
    "version": "cli/test_main.py: `decor --version`",
    "cli.federation": "cli/test_main.py: the help of each of its commands",
    "cli.ledger": "cli/test_ledger_spending.py: `decor ledger FILE`; cli/test_main.py: help",
    "cli.sign_pages": "cli/test_report.py: plans, federation files and ledgers, right and wrong",
    "cli.reproduce": "reproductions/test_figure_one.py and reproductions/test_running.py",
    "cli.status": "federation/test_local_federation.py and test_faults.py: all states of a node",
    "cli.user_options": "cli/test_federation_new.py and test_next_federation.py: right and wrong",
    "federation.fetch": "cli/test_fetch_model.py: models that are served; federation/test_faults.py",
    "federation.file_member": "federation/test_file.py: every field, right and wrong",
    "federation.file_rules": "federation/test_file.py: every field, right and wrong",
    "federation.local_gradient": "learning/gradients/test_clip.py: what a node sends is clipped",
    "federation.user_files": "federation/test_local_federation.py: the files of every user",
    "federation.user_processes": "federation/test_process_starter.py: the process of the starter",
    "federation.node": "federation/test_contract.py: the simulator's models; test_faults.py: crashes",
    "net.ledger_conversion": "net/test_ledger.py: ledgers of version 0.1",
    "net.ledger_file": "net/test_ledger.py: damaged, locked and foreign files, full disks",
    "net.ledger_reading": "net/test_ledger.py: readers beside a writer",
    "net.peer_barrier": "net/test_peer.py: quorums, silence, keys that are waited for",
    "net.peer_config": "net/test_peer.py: quorums of all sizes; federation/test_terms.py",
    "net.peer_receiver": "net/test_peer.py: what is refused; net/test_fuzz.py: every refusal",
    "net.peer_sender": "net/test_peer.py: what a new connection is sent",
    "net.peer_state": "net/test_peer.py: restarts",
    "net.relay_side": "net/test_relay.py: what is passed on, held back and refused",
    "distributed.communicator": "distributed/test_process_group.py: collectives of real processes",
    "distributed.rank_share": "distributed/test_process_group.py: results of one process",
    "privacy.leverage.branch_kernels": "privacy/leverage/test_branch.py: searches, and each error bound",
    "privacy.leverage.limit": "privacy/test_calibrate.py and privacy/test_examples.py: whole plans",
    "privacy.leverage.network": "privacy/leverage/test_dense.py and test_branch.py: networks of all kinds",
    "privacy.loss.loss_distribution": "privacy/loss/test_subsampled.py: compositions and single steps",
    "privacy.threads": "privacy/leverage/test_coalition.py: every search runs in it",
    "reproductions.a9a": "reproductions/test_figure_one.py: the quick variant",
    "reproductions.catalogue": "reproductions/test_writing.py: each study by its name",
    "reproductions.least_squares": "reproductions/test_figure_one.py: the quick variant",
    "reproductions.mnist": "reproductions/test_figure_one.py: the quick variant",
    "reproductions.published": "reproductions/test_committed.py: read off, beside ours",
    "reproductions.tuned_curve": "reproductions/test_irregular.py: curves with the best settings",
    "learning.build_model": "federation/test_model.py: every kind, and data that fits it",
    "learning.file_model": "federation/test_file.py: every field, right and wrong",
    "learning.model_code": "federation/test_model_code.py: hashes, refusals, what is run",
    "learning.file_rules": "federation/test_file.py: every field, right and wrong",
    "learning.file_toml": "federation/test_file.py: what is written is read again",
    "learning.gradients.choose": "learning/gradients/test_gradients.py: every path it chooses",
    "learning.gradients.contributions": "learning/gradients/test_book_keeping.py: bounds of lengths",
    "learning.gradients.layer_rules": "learning/gradients/test_book_keeping.py: each kind of layer",
    "learning.gradients.recording": "learning/gradients/test_book_keeping.py: each kind of layer",
    "learning.gradients.interface": "learning/gradients/test_gradients.py: one contract for all",
    "learning.gradients.dense_layers": "learning/gradients/test_gradients.py: against autograd",
    "learning.gradients.linear": "learning/gradients/test_gradients.py: against autograd",
    "results.axes": "results/test_figures.py and results/test_inline_svg.py: every figure uses them",
    "results.safe_files": "results/test_run.py: broken files, full disks, saves that are killed",
    "results.html_page": "results/test_report.py: placeholders, files that cannot be written",
    "results.live_status": "ui/test_watch.py: what the planner reads of a run that trains",
    "results.publication": "training/test_private.py: what a released folder holds",
    "training.cuda.channel": "training/test_cuda.py: results of a CPU",
    "training.cuda.kernels": "training/test_cuda.py: results of a CPU",
    "training.cuda.steps": "training/test_cuda.py: results of a CPU",
    "training.engine": "federation/test_contract.py: one contract for every engine",
    "training.measurement": "training/test_descent.py: both paths measure the same",
    "training.share": "training/test_channel.py: channels; training/test_private.py: private grids",
    "training.simulation": "training/test_descent.py and training/test_private.py: whole runs",
    "training.train": "training/test_descent.py: runs against Algorithm 1 written out",
    "training.vectorised": "training/test_descent.py: simulations; training/test_private.py: private",
}
"""Modules without a test file of their own name, and where they are tested."""


def without_test_file():
    """Modules that have no tests/<package>/test_<module>.py and are not listed."""
    tests = Path(__file__).parent
    missing = []
    for module in MODULES:
        *packages, name = module.split(".")
        if name != "__init__" and not (tests.joinpath(*packages) / f"test_{name}.py").exists():
            missing.append(module)
    return [module for module in missing if module not in TESTED_ELSEWHERE]


def test_every_module_has_a_test_file_or_a_reason():
    assert without_test_file() == []
    assert [module for module in TESTED_ELSEWHERE if module not in MODULES] == []
