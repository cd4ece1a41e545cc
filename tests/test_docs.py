"""Every code block of the README and the documentation runs. A page that cannot run is a bug."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), flags=re.M | re.S)


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "python")], ids=lambda p: p.name)
def test_the_python_of_a_page_runs_from_top_to_bottom(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__page__"}
    for block in blocks(page, "python"):
        exec(compile(block, page.name, "exec"), names)
    printed = capsys.readouterr().out
    for expected in blocks(page, "text"):
        assert expected in printed, f"{page.name} shows what its code does not print:\n{printed}"


def decor_lines(block):
    return [line for line in block.splitlines() if line.startswith("decor ")]


COMMANDS = [(page.name, decor_lines(block)) for page in PAGES for block in blocks(page, "sh") if decor_lines(block)]


@pytest.mark.parametrize(("page", "lines"), COMMANDS, ids=lambda x: x if isinstance(x, str) else x[0])
def test_the_commands_of_a_page_work(page, lines, tmp_path):
    """Those of one block one after the other, in one folder."""
    for line in lines:
        command = shlex.split(line, comments=True)
        done = subprocess.run([sys.executable, "-m", *command], cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr


def test_pages_show_commands_and_code_at_all():
    assert COMMANDS and any(blocks(p, "python") for p in PAGES)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_within_the_repository_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
        assert "://" in target or (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_public_name_is_in_the_notation_or_the_readme_or_explains_itself():
    import decor

    for name in decor.__all__:
        thing = getattr(decor, name)
        assert thing.__doc__, f"{name} has no docstring"


def test_the_pictures_of_the_documentation_can_be_drawn_again(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    import make_figures

    monkeypatch.setattr(make_figures, "FIGURES", tmp_path)
    make_figures.tightness()
    make_figures.plan()
    make_figures.demo()
    # the studies' own are drawn by reproductions/publish.py, from committed results (tests/reproductions)
    others = {p.name for p in (ROOT / "docs" / "figures").iterdir() if not p.name.startswith("reproduction-")}
    assert {p.name for p in tmp_path.iterdir()} == others


@pytest.mark.parametrize("name", ["accountant", "simulator"])
def test_the_benchmark_page_shows_what_was_measured(name):
    script, measured = ROOT / "benchmarks" / f"{name}.py", ROOT / "benchmarks" / f"{name}.jsonl"
    table = subprocess.run([sys.executable, script, "--table", measured], capture_output=True, text=True, check=True).stdout
    assert table.strip() in (ROOT / "docs" / "benchmarks.md").read_text()
