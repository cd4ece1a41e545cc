"""An extra brings what its part of DECOR needs: nothing else of this environment can be loaded."""

import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]

BLOCK = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Block())
import decor
plan = decor.calibrate(decor.ring(4), decor.Exposure(clip=1.0, steps=2),
                       decor.Adversary.curious(), decor.Budget(epsilon=10.0, delta=1e-5))
def train(seed):
    task = decor.tasks.breast_cancer(users=4)
    return decor.train(task, plan, learning_rate=0.1, engine=decor.Vectorised(seed=seed))
"""


def needed(requirements):
    """The distributions that pip would install for these requirements."""
    found, todo = set(), [(Requirement(each), "") for each in requirements]
    while todo:
        requirement, extra = todo.pop()
        name = canonicalize_name(requirement.name)
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": extra})
        if not applies or (name, *requirement.extras) in found:
            continue
        found.add((name, *requirement.extras))
        try:
            below = requires(name) or []
        except PackageNotFoundError:  # of another machine, such as torch's for a GPU
            continue
        todo += [
            (Requirement(each), wanted) for each in below for wanted in ("", *requirement.extras)
        ]
    return {name for name, *_ in found}


def modules_without(extra):
    """Top-level modules of this environment that an installation with one extra does not have."""
    own = needed([*PROJECT["dependencies"], *PROJECT["optional-dependencies"][extra]])
    own.add(canonicalize_name(PROJECT["name"]))
    return {
        module
        for module, distributions in packages_distributions().items()
        if not own & {canonicalize_name(each) for each in distributions}
    }


def python(blocked, code):
    return subprocess.run(
        [sys.executable, "-c", BLOCK.format(blocked=blocked) + code],
        capture_output=True,
        text=True,
        timeout=240,
    )


def test_the_extra_train_is_enough_to_train():
    blocked = modules_without("train")
    assert {"pytest", "sphinx", "hypothesis"} <= blocked
    code = """
assert train(seed=0).simulated and not train(seed=None).simulated
decor.sweep(decor.tasks.breast_cancer(users=4), [plan], learning_rates=[0.1], seeds=[0])
from decor.cli.main import main
sys.exit(main("train --task breast-cancer --users 4 --epsilon 9 --steps 2 --learning-rate 1".split()
              + "--seed secret --output".split() + [sys.argv[-1]]))
"""
    done = python(blocked, code.replace("sys.argv[-1]", "__import__('tempfile').mkdtemp() + '/r'"))
    assert done.returncode == 0, done.stderr


def test_simulations_need_no_cryptography_and_private_runs_say_so():
    code = """
assert train(seed=0).simulated
decor.sweep(decor.tasks.breast_cancer(users=4), [plan], learning_rates=[0.1], seeds=[0])
try:
    train(seed=None)
except decor.MissingExtra as problem:
    print(problem)
"""
    done = python({"cryptography"}, code)
    assert done.returncode == 0, done.stderr
    assert done.stdout == (
        "private runs need cryptography: pip install '.[train]' in a clone of DECOR\n"
    )


TRAIN = "train --task least-squares --users 4 --epsilon 3 --steps 2 --learning-rate 1 --output run"


@pytest.mark.parametrize(
    "line", [TRAIN, "compare --epsilon 3", "report .", "reproduce gossip", "graph --plot a.png"]
)
def test_without_matplotlib_what_draws_says_so_before_it_begins(line, tmp_path):
    """As in the container image; planning needs none."""
    code = f"""
from decor.cli.main import main
assert main(["plan", "--epsilon", "3"]) == 0
import os
os.chdir({str(tmp_path)!r})
sys.exit(main({line.split()!r}))
"""
    done = python({"matplotlib"}, code)
    assert done.returncode == 2 and not [*tmp_path.iterdir()]
    (sentence,) = done.stderr.splitlines()
    assert sentence.endswith("need matplotlib: pip install . in a clone of DECOR")


def test_peers_without_cryptography_say_what_to_install():
    done = python({"cryptography"}, "decor.Peers")
    assert "decor.Peers needs cryptography: pip install '.[all]'" in done.stderr
