"""A model given as code: hashed without running it, and run only if the hash is the file's."""

import importlib
import json
import os
import py_compile
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from federation_files import BASES, KEYS, TEXT, with_section

from decor.errors import InputError
from decor.federation.federation import Federation
from decor.learning import model_code
from decor.net.identity import Identity
from decor.net.ledger import Ledger

SOURCE = """
import torch
def model():
    return torch.nn.Linear(6, 3), torch.nn.functional.cross_entropy
"""
TRAP = "raise SystemExit('this was imported')\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder in Python's path; what was imported from it is forgotten afterwards."""
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in ("solo", "pack"):
            del sys.modules[name]


def package(folder, name="pack"):
    inner = folder / name / "deep"
    inner.mkdir(parents=True)
    for place in (inner.parent / "__init__.py", inner / "__init__.py", inner / "net.py"):
        place.write_text(TRAP)
    (inner / "notes.txt").write_text("not code")
    return folder / name


def test_the_hash_is_that_of_standard_tools_and_imports_nothing(folder):
    package(folder)
    tools = "find pack -name '*.py' | LC_ALL=C sort | xargs sha256sum | sha256sum"
    expected = subprocess.check_output(tools, shell=True, cwd=folder, text=True).split()[0]
    assert model_code.hash_source("pack.deep.net:model") == expected
    assert model_code.hash_source("pack:model") == expected, "the whole top-level package"
    (folder / "solo.py").write_text(TRAP)
    one = subprocess.check_output("sha256sum solo.py | sha256sum", shell=True, cwd=folder)
    assert model_code.hash_source("solo:model") == one.decode().split()[0]


@pytest.mark.parametrize("change", ["edit", "parent", "add", "rename", "remove", "swap"])
def test_a_change_anywhere_in_the_package_is_noticed(folder, change):
    root = package(folder)
    (root / "other.py").write_text("x = 1\n")
    before = model_code.hash_source("pack.deep.net:model")
    (root / "deep" / "notes.txt").write_text("still not code")
    assert model_code.hash_source("pack.deep.net:model") == before
    if change == "edit":
        (root / "deep" / "net.py").write_text(TRAP + "#")
    elif change == "parent":
        (root / "__init__.py").write_text(TRAP + "#")
    elif change == "add":
        (root / "deep" / "more.py").write_text("")
    elif change == "rename":
        (root / "other.py").rename(root / "another.py")
    elif change == "remove":
        (root / "other.py").unlink()
    else:
        (root / "other.py").rename(root / "kept")
        (root / "deep" / "net.py").rename(root / "other.py")
        (root / "kept").rename(root / "deep" / "net.py")
    assert model_code.hash_source("pack.deep.net:model") != before


def test_a_package_in_several_folders_has_one_hash_in_any_order(tmp_path, monkeypatch):
    for name in ("a", "b"):
        (tmp_path / name / "spread").mkdir(parents=True)
        (tmp_path / name / "spread" / f"{name}.py").write_text(TRAP)
    hashes, before = [], sys.path
    for order in (("a", "b"), ("b", "a")):
        paths = [str(tmp_path / name) for name in order]
        # a folder that is listed twice is one folder
        monkeypatch.setattr(sys, "path", [*paths, *paths[:1], *before])
        hashes.append(model_code.hash_source("spread.a:model"))
    assert hashes[0] == hashes[1]


REFUSED = {
    "builtin": ("sys:exit", "has no source file"),
    "nowhere": ("nowhere.at.all:model", "'nowhere' is not installed"),
    "bytecode alone": ("solo:model", "has no source file"),
    "compiled": ("pack:model", r"has a compiled module, .*fast.*\.so"),
    "bytecode in it": ("pack:model", r"has a compiled module, .*net\.pyc"),
    "link": ("pack:model", "has a link to a folder, .*elsewhere"),
    "line break": ("pack:model", r"has a file 'pack/a\\nb.py'; rename it"),
    "empty": ("hollow:model", "the package 'hollow' has no source"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_code_that_a_hash_of_sources_cannot_cover_is_refused(folder, case):
    code, words = REFUSED[case]
    root = package(folder)
    (folder / "hollow").mkdir()
    if case == "compiled":
        (root / f"fast{importlib.machinery.EXTENSION_SUFFIXES[0]}").write_bytes(b"")
    elif case == "bytecode in it":
        py_compile.compile(root / "deep" / "net.py", root / "deep" / "net.pyc")
    elif case == "link":
        (root / "elsewhere").symlink_to(folder / "hollow")
    elif case == "line break":
        (root / "a\nb.py").write_text("")
    elif case == "bytecode alone":
        (folder / "source.py").write_text(TRAP)
        py_compile.compile(folder / "source.py", folder / "solo.pyc")
    with pytest.raises(InputError, match=words):
        model_code.hash_source(code)


def test_only_the_code_of_the_files_hash_is_run(folder):
    (folder / "solo.py").write_text(SOURCE)
    sha256 = model_code.hash_source("solo:model")
    federation = with_section(
        Federation.parse(BASES["code"]), "model", code="solo:model", code_sha256=sha256
    )
    assert Federation.parse(federation.to_toml()).digest == federation.digest
    assert federation.parameters == 21
    del sys.modules["solo"]
    (folder / "solo.py").write_text(TRAP)
    other = model_code.hash_source("solo:model")
    for use in (
        lambda f: f.parameters,
        lambda f: f.task(([[1.0] * 6], [0])),
    ):
        with pytest.raises(InputError) as caught:
            use(with_section(federation, "model", seed=1))  # nothing is remembered
        said = str(caught.value)
        assert "'solo'" in said and sha256[:12] in said and other[:12] in said
        assert "install the version" in said and "solo" not in sys.modules


def test_code_with_too_large_a_model_is_refused_when_it_is_measured(folder):
    big = "torch.nn.Linear(1 << 15, 1 << 15, device='meta')"
    (folder / "solo.py").write_text(SOURCE.replace("torch.nn.Linear(6, 3)", big))
    federation = with_section(Federation.parse(BASES["code"]), "model", code="solo:model")
    with pytest.raises(InputError, match="1,073,774,592 parameters, more than the 4 GB"):
        _ = federation.parameters


@pytest.mark.parametrize("hashed", [True, False])
def test_planted_bytecode_is_not_run_in_place_of_hashed_source(folder, hashed):
    """Bytecode in __pycache__ is trusted by Python if it says so itself."""
    planted = folder / "planted.py"
    planted.write_text(TRAP)
    (folder / "solo.py").write_text(SOURCE)
    py_compile.compile(
        planted,
        importlib.util.cache_from_source(folder / "solo.py"),
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )
    sha256 = model_code.hash_source("solo:model") if hashed else None
    before = sys.pycache_prefix, sys.dont_write_bytecode
    if hashed:
        module, _ = model_code.call("solo:model", sha256, 0)
        assert module.out_features == 3
    else:  # without a hash nothing is promised, and this shows that the trap works
        with pytest.raises(SystemExit, match="this was imported"):
            model_code.call("solo:model", sha256, 0)
    assert (sys.pycache_prefix, sys.dont_write_bytecode) == before


def test_a_file_without_the_hash_keeps_its_digest_and_one_with_it_has_another():
    plain, hashed = Federation.parse(BASES["code"]), Federation.parse(BASES["hashed"])
    assert "model.code_sha256" not in plain.fields() and "code_sha256" not in plain.to_toml()
    assert plain.digest.hex() == (
        "38197a9489c62a3d3db642ef788e435c4da32ba806df97d0e91262342483a0ee"
    )
    # a folder of version 0.1 holds the digest that its file had then
    old = Path(__file__).parent.parent / "version_0_1"
    then = json.loads((old / "bonn" / "manifest.json").read_text())["federation"]
    assert Federation.read(old / "federation.toml").digest.hex() == then
    assert hashed.fields()["model.code_sha256"] == "0" * 64 and hashed.digest != plain.digest


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (TEXT.replace("features", f'code_sha256 = "{"0" * 64}"\nfeatures'), "applies only with"),
        (BASES["hashed"].replace("0" * 64, "0" * 63), "64 hexadecimal digits"),
        (BASES["hashed"].replace("0" * 64, "A" * 64), "64 hexadecimal digits"),
    ],
    ids=["no code", "short", "capitals"],
)
def test_a_hash_has_its_place_and_form(text, words):
    with pytest.raises(InputError, match=f"model.code_sha256.*{words}"):
        Federation.parse(text)


def test_without_leave_nothing_of_a_federations_code_is_run(folder, tmp_path):
    (folder / "own.py").write_text(TRAP)
    file = tmp_path / "code.toml"
    file.write_text(BASES["code"])
    federation = Federation.read(file, run_code=False)
    assert federation.digest == Federation.parse(BASES["code"]).digest
    for use in (
        lambda: federation.parameters,
        lambda: federation.model_bytes,
        lambda: federation.grid,
        lambda: with_section(federation, "training", steps=3).parameters,
        lambda: federation.task(([[1.0]], [0])),
    ):
        with pytest.raises(InputError, match="not run|may not be run"):
            use()
    assert "own" not in sys.modules


def test_an_epsilon_that_needs_the_size_of_unknown_code_is_not_told(folder, tmp_path):
    """Against the plan's adversary a node keeps the budget or refuses; beyond it, nobody knows."""
    from decor.privacy.adversary import Adversary

    file = tmp_path / "code.toml"
    file.write_text(BASES["code"])
    unknown = Federation.read(file, run_code=False)
    known = Federation.parse(TEXT)
    assert unknown.guarantee().epsilon == known.guarantee().epsilon <= 3
    weaker = Adversary.eavesdropper()
    assert unknown.guarantee(weaker).epsilon == known.guarantee(weaker).epsilon
    with pytest.raises(InputError, match="epsilon against everyone is unknown"):
        unknown.guarantee(Adversary.everyone())


def test_a_node_refuses_code_whose_model_is_too_large_for_the_epsilon_that_check_prints(
    folder, tmp_path, here
):
    """So the epsilon that is printed without the size holds for every model that is ever run."""
    (folder / "solo.py").write_text(SOURCE.replace("6, 3", "1000, 300"))
    identity, other = Identity.new(), Identity.new()
    identity.save(tmp_path / "bonn.key")
    text = BASES["code"].replace("own:model", "solo:model").replace("epsilon = 3.0", "epsilon = 38")
    text = text.replace("steps = 200", "steps = 2000")
    for k, each in enumerate((identity, other)):
        text = text.replace(KEYS[k], each.line)
    file = tmp_path / "code.toml"
    file.write_text(text)
    assert 37 < Federation.read(file, run_code=False).guarantee().epsilon <= 38
    np.savez(tmp_path / "data.npz", X=np.zeros((5, 1000), np.float32), y=np.zeros(5, int))
    options = {"identity": "bonn.key", "data": "data.npz", "ledger": "bonn.ledger"}
    words = [word for name, path in options.items() for word in (f"--{name}", tmp_path / path)]
    Ledger.create(tmp_path / "bonn.ledger", identity.public)
    said = here("node", file, *words, check=2).stderr
    assert "300,300 parameters epsilon can be at most" in said
    with Ledger(tmp_path / "bonn.ledger") as ledger:
        assert ledger.entries() == []


def test_a_node_refuses_other_code_than_the_files_before_it_has_run_any(tmp_path):
    """As real processes: one hospital writes the file, another has a later version of the code."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    }

    def run(line, code=0):
        done = subprocess.run(
            [sys.executable, "-m", "decor", *line],
            capture_output=True,
            text=True,
            timeout=240,
            cwd=tmp_path,
            env=environment,
        )
        assert done.returncode == code and "Traceback" not in done.stderr, done.stderr
        return done.stdout if code == 0 else done.stderr

    (tmp_path / "own.py").write_text(SOURCE)
    keys = [run(["keygen", name]).strip() for name in ("bonn", "ulm")]
    users = [
        word
        for name, key in zip(("bonn", "ulm"), keys, strict=True)
        for word in ("--user", f"{name},127.0.0.1:{7400 + len(name)},{key}")
    ]
    new = "federation new --output f.toml --name f --epsilon 3 --steps 5 --code own:model".split()
    assert "The code installed here is the file's" in run([*new, *users])
    sha256 = re.search('code_sha256 = "([0-9a-f]{64})"', (tmp_path / "f.toml").read_text())[1]
    (tmp_path / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n{SOURCE}")
    (tmp_path / "data.csv").write_text("1,2,3,4,5,6,0\n" * 20)
    said = run("node f.toml --identity bonn.key --data data.csv --ledger b.ledger".split(), code=2)
    assert len(said.splitlines()) == 1 and "'own'" in said and sha256[:12] in said
    assert not (tmp_path / "ran").exists() and not (tmp_path / "b.ledger").exists()
    told = run(["federation", "check", "f.toml"])
    assert "NOT the file's" in told and sha256[:12] in told
    assert not (tmp_path / "ran").exists()
    assert "'own'" in run(["federation", "check", "f.toml", "--trust-code"], code=2)
    assert not (tmp_path / "ran").exists()
