"""Every code block of the README and the documentation runs. A page that cannot run is a bug."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tomllib
from contextlib import suppress
from pathlib import Path

import pytest
from command_server import decor_command

import decor

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), flags=re.M | re.S)


MARK = "=== block"
"""Stands in a session's output before what a block prints."""
CUT = "…"
"""Stands on a page for lines of the output that it leaves out."""
STORIES = [page for page in PAGES if page.name.startswith("story-")]
"""Pages of which test_stories.py runs all that they show."""
SESSIONS = [page for page in PAGES if blocks(page, "bash") and page not in STORIES]
"""Pages whose bash is one session in one folder, and whose Python goes on there."""


NEEDED = {"doors.md": ("opacus", "dp_accounting")}
"""Packages that a page's code imports, and that `make test` does not install; `make test-doors`
runs it."""


@pytest.mark.filterwarnings("ignore:Secure RNG turned off", "ignore:Full backward hook is firing")
@pytest.mark.filterwarnings("ignore:Optimal order is the largest alpha")
@pytest.mark.parametrize(
    "page",
    [p for p in PAGES if blocks(p, "python") and p not in (*SESSIONS, *STORIES)],
    ids=lambda p: p.name,
)
def test_the_python_of_a_page_runs_from_top_to_bottom(page, tmp_path, monkeypatch, capsys):
    for package in NEEDED.get(page.name, ()):
        pytest.importorskip(package, reason=f"{package} is not installed: pip install '.[doors]'")
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__page__"}
    for block in blocks(page, "python"):
        exec(compile(block, page.name, "exec"), names)
    printed = capsys.readouterr().out
    for expected in blocks(page, "text"):
        assert expected in printed, f"{page.name} shows what its code does not print:\n{printed}"


AT_AN_END = "learning rate of the grid"
"""What decor compare warns of: the best of its rates was the smallest or the largest."""


def decor_lines(block):
    return [line for line in block.splitlines() if line.startswith("decor ")]


COMMANDS = [
    (page.name, decor_lines(block))
    for page in PAGES
    for block in blocks(page, "sh")
    if decor_lines(block)
]


@pytest.mark.parametrize(
    ("page", "lines"), COMMANDS, ids=lambda x: x if isinstance(x, str) else x[0]
)
def test_the_commands_of_a_page_work(page, lines, here, reproduced):
    """Those of one block one after the other, in one folder; a study, which nothing else needs,
    wherever it has run.
    """
    for line in lines:
        command = shlex.split(line, comments=True)
        if command[1] == "reproduce":
            assert command[-2] == "--output"
            reproduced(*command[2:-2])
            continue
        assert AT_AN_END not in here(*command[1:]).stdout, (
            "a page shows a search that did not search far enough"
        )


TORCHRUN = [
    line
    for line in (ROOT / "docs" / "distributed.md").read_text().splitlines()
    if line.startswith("torchrun ")
]


@pytest.mark.parametrize("line", TORCHRUN, ids=lambda line: line.split()[1])
def test_what_torchrun_starts_works_on_as_many_machines_as_the_page_says(line, tmp_path):
    """Machines are folders here: the same line in each, and the first process's folder has
    the run.
    """
    from decor.net.addresses import free_ports

    line = line.replace("alpha.example.org:29400", f"127.0.0.1:{free_ports(1)[0]}")
    machines = [tmp_path / str(k) for k in range(2 if "--nnodes 2" in line else 1)]
    started = []
    for machine in machines:
        machine.mkdir()
        command = [sys.executable, "-m", "torch.distributed.run", *shlex.split(line)[1:]]
        started.append(
            subprocess.Popen(
                command,
                cwd=machine,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                stderr=subprocess.PIPE,
            )
        )
    said = [process.communicate(timeout=240)[1].decode() for process in started]
    assert [process.returncode for process in started] == [0] * len(machines), said
    assert len(list(tmp_path.glob("*/*/report.html"))) == 1


def on_one_machine(page, ports):
    """A page about several machines as one script: hosts are this one, and nodes run side by side
    until something else comes.
    """
    script = [
        "set -eu; trap 'kill -9 0' ERR",
        f'decor() {{ {shlex.join(decor_command())} "$@"; }}',
        "nodes=",
    ]
    for number, (language, block) in enumerate(
        re.findall(r"^```(bash|python)\n(.*?)^```", page.read_text(), flags=re.M | re.S)
    ):
        block = re.sub(
            r"(\w+)\.example\.org:7400", lambda found: f"127.0.0.1:{ports[found[1]]}", block
        )
        if language == "bash" and block.startswith("decor node"):
            # a node that fails ends the session at once: others would wait for it
            script.append(f'{{ {block.strip()} || kill -9 0; }} &\nnodes="$nodes $!"')
        elif language == "bash" and block.startswith("decor status"):
            socket = block.split()[-1].replace(".ledger", ".ledger.socket")
            script += [
                f"for _ in $(seq 300); do decor status {socket} 2>&1 | grep -q ': here' && "
                "break; sleep 0.1; done",
                block,
            ]
        else:
            # by its number: `wait -n` forgets one of two that end at the same time
            script.append(
                f'for node in $nodes; do wait "$node"; done; nodes=; echo {MARK} {number}'
            )
            script.append(
                block if language == "bash" else f"\"{sys.executable}\" - <<'PYTHON'\n{block}PYTHON"
            )
    return "\n".join(script)


def without_numbers(text):
    """Lines in which words with a digit, and rules of any length, are alike: they differ from run
    to run.
    """
    return [
        " ".join(re.sub(r"\S*\d\S*", "#", re.sub(r"-{2,}", "--", line)).split())
        for line in text.splitlines()
    ]


def is_shown(expected, printed):
    """Whether a page shows what was printed, from the first line to the last, with a mark wherever
    it leaves some out.
    """
    some = r"(?:.*\n)+?"
    wanted = "".join(
        some if line == CUT else re.escape(line) + r"\n" for line in without_numbers(expected)
    )
    return (
        re.fullmatch(wanted, "".join(f"{line}\n" for line in without_numbers(printed.strip("\n"))))
        is not None
    )


def outputs(page):
    """(number of the block that printed it, what the page shows of it)."""
    number, found = -1, []
    for language, block in re.findall(
        r"^```(bash|python|text)\n(.*?)^```", page.read_text(), flags=re.M | re.S
    ):
        number += language != "text"
        if language == "text":
            found.append((number, block))
    return found


@pytest.mark.parametrize("page", SESSIONS, ids=lambda p: p.name)
def test_the_session_of_a_page_goes_from_its_first_line_to_its_last(page, tmp_path):
    from decor.learning import tasks
    from decor.net.addresses import free_ports

    names = ("bonn", "ulm", "kiel", "jena")[: 4 if "jena.csv" in page.read_text() else 3]
    task = tasks.breast_cancer(users=len(names), seed=0)
    for name, (X, y) in zip((*names, "public"), (*task.shards, task.test), strict=True):
        header = [*(f"x{k}" for k in range(X.shape[1])), "benign"]
        rows = [
            ",".join(map(str, (*record, label)))
            for record, label in zip(X.tolist(), y.tolist(), strict=True)
        ]
        (tmp_path / f"{name}.csv").write_text("\n".join([",".join(header), *rows]) + "\n")
    script = on_one_machine(page, dict(zip(names, free_ports(len(names)), strict=True)))
    with subprocess.Popen(
        ["bash", "-c", script],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as session:
        try:
            printed = session.communicate(timeout=240)[0]
        finally:
            with suppress(ProcessLookupError):  # nodes whose session has ended would wait for ever
                os.killpg(session.pid, signal.SIGKILL)
    assert session.returncode == 0 and AT_AN_END not in printed, printed
    _, *parts = re.split(rf"^{MARK} (\d+)\n", printed, flags=re.M)
    by_block = dict(zip(map(int, parts[::2]), parts[1::2], strict=True))
    for number, expected in outputs(page):
        # several speak at once
        if any(block.startswith("decor node") for block in blocks(page, "bash")):
            missing = {*without_numbers(expected)} - {CUT, *without_numbers(printed)}
            assert not missing, (
                f"{page.name} shows what its session does not print: {missing}\n{printed}"
            )
        else:
            assert is_shown(expected, by_block[number]), (
                f"{page.name} shows\n{expected}\nof\n{by_block[number]}"
            )


def test_what_a_page_leaves_out_must_be_marked():
    printed = "\na table\n---  ----\n12  ulm\n3  bonn\nthe end\n"
    for whole in (printed.lstrip(), "a table\n-- --\n7 ulm\n…\nthe end\n", "…\n7 ulm\n8 bonn\n…\n"):
        assert is_shown(whole, printed)
    for cut in (
        "a table\n-- --\n7 ulm\nthe end\n",
        "-- --\n1 ulm\n1 bonn\nthe end\n",
        "a table\n…\n1 bonn\n",
        "…\n2 kiel\n…\n",
    ):
        assert not is_shown(cut, printed)


def test_every_hint_of_what_to_install_is_true_for_a_reader_with_a_clone():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    source = [path for path in (ROOT / "src").rglob("*.py") if "decor-dp" in path.read_text()]
    assert not source, "the package is on no index"
    hints = [
        hint for page in PAGES for hint in re.findall(r"pip install '([^']*)'", page.read_text())
    ]
    assert len(hints) > 1 and all(hint in {f".[{extra}]" for extra in extras} for hint in hints), (
        hints
    )
    assert "pip install '.[train]' in a clone" in str(
        decor.MissingExtra.of("this needs torch", "train", "torch")
    )


def test_pages_show_commands_and_code_at_all():
    assert SESSIONS and COMMANDS and any(blocks(p, "python") for p in PAGES)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_within_the_repository_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
        assert "://" in target or (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_to_a_heading_lead_to_one(page):
    for target, anchor in re.findall(r"\]\(([^)#\s:]*)#([^)\s]+)\)", page.read_text()):
        headings = re.findall(
            r"^#+ (.*)", (page.parent / target if target else page).read_text(), flags=re.M
        )
        known = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
        assert anchor in known, f"{page.name} links to {target}#{anchor}"


def test_every_public_name_is_in_the_notation_or_the_readme_or_explains_itself():
    for name in decor.__all__:
        thing = getattr(decor, name)
        assert thing.__doc__, f"{name} has no docstring"


def test_the_pictures_of_the_documentation_can_be_drawn_again(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    import make_figures

    monkeypatch.setattr(make_figures, "FIGURES", tmp_path)
    make_figures.tightness()
    make_figures.plan()
    make_figures.choosing()
    make_figures.audit()
    make_figures.demo(seeds=2)  # of 24: what it finds is tested elsewhere
    make_figures.protocol()
    make_figures.scale()
    # the studies' own are drawn by reproductions/publish.py, from committed results
    # (tests/reproductions)
    others = {
        p.name
        for p in (ROOT / "docs" / "figures").iterdir()
        if not p.name.startswith("reproduction-")
    }
    # a browser takes those of `decor ui` (docs/make_planner.py), of pages that tests/ui looks at
    taken = {"planner.png", "federation.png"}
    assert {p.name for p in tmp_path.iterdir()} == others - taken
    for name in taken:
        assert (ROOT / "docs" / "figures" / name).stat().st_size < 150_000


@pytest.mark.filterwarnings("ignore")  # a notebook's own
def test_the_notebook_runs_and_shows_what_it_prints(monkeypatch):
    """Cell by cell, all but the pixels of its figure."""
    monkeypatch.syspath_prepend(ROOT / "docs")
    import make_notebooks

    kept = json.loads((make_notebooks.NOTEBOOKS / "own_loop.ipynb").read_text(encoding="utf-8"))
    made = make_notebooks.notebook(make_notebooks.OWN_LOOP)
    for notebook in (kept, made):
        for cell in notebook["cells"]:
            for output in cell.get("outputs", ()):
                output.get("data", {}).clear()
    assert made == kept, "say python docs/make_notebooks.py"


def test_the_protocol_page_shows_the_table_of_moves_and_its_picture(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    import make_protocol

    from decor.net.session import MOVES

    page = ROOT / "docs" / "protocol.md"
    assert len(make_protocol.moves()) == len(MOVES)
    assert make_protocol.page(page.read_text()) == page.read_text(), "say make docs"
    assert (
        make_protocol.picture() == (ROOT / "docs" / "figures" / make_protocol.PICTURE).read_text()
    ), "say make docs"


def test_the_protocol_page_names_every_message_and_event_of_the_log():
    from decor.net.messages import KINDS

    protocol, deploy = ((ROOT / "docs" / name).read_text() for name in ("protocol.md", "deploy.md"))
    for number, kind in KINDS.items():
        assert f"| {number} | {kind.__name__} |" in protocol and f"**{kind.__name__}**" in protocol
    source = "".join(
        path.read_text()
        for room in ("net", "federation")
        for path in (ROOT / "src" / "decor" / room).glob("*.py")
    )
    events = set(re.findall(r"\blog\(\s*\"([a-z ]+)\"", source))
    assert len(events) > 8 and all(f"`{event}`" in deploy for event in events), events


@pytest.mark.parametrize("name", ["accountant", "simulator", "beside", "own_noise"])
def test_the_benchmark_page_shows_what_was_measured(name):
    script, measured = ROOT / "benchmarks" / f"{name}.py", ROOT / "benchmarks" / f"{name}.jsonl"
    table = subprocess.run(
        [sys.executable, script, "--table", measured], capture_output=True, text=True, check=True
    ).stdout
    assert table.strip() in (ROOT / "docs" / "benchmarks.md").read_text()
