"""What `make dist` publishes: a wheel and an sdist that hold all that users need, and nothing else."""

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

import decor

yaml = pytest.importorskip("yaml", reason="pyyaml is not installed")
pytest.importorskip("hatchling", reason="hatchling is not installed")

ROOT = Path(__file__).parent.parent


def build(source, folder, kind):
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", folder]
    subprocess.run(command, cwd=source, check=True, capture_output=True, timeout=240)
    (made,) = Path(folder).iterdir()
    return made


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return build(ROOT, tmp_path_factory.mktemp("wheel"), "wheel")


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """The folder of an unpacked sdist."""
    folder = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(build(ROOT, tmp_path_factory.mktemp("sdist"), "sdist")) as archive:
        archive.extractall(folder, filter="data")
    (source,) = folder.iterdir()
    return source


def files_of(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_the_wheel_has_every_file_of_the_package_and_no_other(wheel):
    source = ROOT / "src"
    package = {
        str(file.relative_to(source))
        for file in (source / "decor").rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    assert {"decor/py.typed", "decor/ui/page/planner.html"} <= package
    assert {name for name in files_of(wheel) if ".dist-info/" not in name} == package


def test_the_metadata_say_what_it_is(wheel):
    (name,) = [each for each in files_of(wheel) if each.endswith(".dist-info/METADATA")]
    metadata = Parser().parsestr(files_of(wheel)[name].decode())
    assert metadata["Name"] == "decor-dp" and metadata["Version"] == decor.__version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
    assert "Typing :: Typed" in metadata.get_all("Classifier")
    # CONTRIBUTING.md has a row for each version, and what is tested there
    rows = re.findall(r"^\| ([\d., ]+) \| everything", (ROOT / "CONTRIBUTING.md").read_text(), re.M)
    tested = [each for row in rows for each in row.split(", ")]
    assert [each for each in metadata.get_all("Classifier") if ":: 3." in each] == [
        f"Programming Language :: Python :: {each}" for each in tested
    ]
    assert metadata.get_payload().startswith("# DECOR")


def test_the_sdist_makes_the_same_wheel(wheel, unpacked, tmp_path):
    assert files_of(build(unpacked, tmp_path, "wheel")) == files_of(wheel)
    for name in ("CHANGELOG.md", "CITATION.cff", "LICENSE", "SECURITY.md", "docs/guarantees.md"):
        assert (unpacked / name).is_file(), f"{name} is not in the sdist"
    # no tests, and no other folder: hatchling looks for names without a slash in all folders
    folders = {each.name for each in unpacked.iterdir() if each.is_dir()}
    assert folders == {"src", "docs", "deploy"}


def test_an_installed_wheel_plans_without_the_checkout(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    code = """
import decor, sys
from decor.cli.main import main
print(decor.__file__)
sys.exit(main(["plan", "--users", "8", "--epsilon", "3", "--steps", "10"]))
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(tmp_path / "site")) and "epsilon" in done.stdout


def test_the_citation_names_the_paper_and_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == decor.__version__
    paper = citation["preferred-citation"]
    readme = (ROOT / "README.md").read_text()
    assert f"title     = {{{paper['title']}}}" in readme
    for author in paper["authors"]:
        assert f"{author['family-names']}, {author['given-names']}" in readme
