"""Puts every fault of `faults.py` into a copy of the source, one after the other, and sees who
notices.

    python tests/mutations/run.py [--jobs N] [NAME ...]

First the audits and tests run on a copy without a fault, and have to pass: only then does it mean
anything if they fail. An audit has noticed a fault if it ends with code 1 and names what is not as
claimed, a test if it fails; a crash, a timeout or a test that cannot be collected is no catch.
Writes found.jsonl beside this file and docs/mutations.md; with NAMEs (or parts of them) the rows of
those faults alone. Ends with code 1 if a fault survives.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

from faults import AUDITS, FAULTS, Edit, Fault

ROOT = Path(__file__).parent.parent.parent
FOUND, PAGE = Path(__file__).with_name("found.jsonl"), ROOT / "docs" / "mutations.md"
SECONDS = 280
"""For all that one catcher may do: what takes longer has noticed nothing."""
_NO_FOLDERS = re.compile(r"(?<![\w.])/\S*/")
"""Folders of the machine that runs the tests, before the name of a file."""
COMPILED = (".nbi", ".nbc")
"""numba's caches.

They know of changes in their own file alone, and not of those in kernels that it calls from
another.
"""


def copied(to: Path, source: Path = ROOT, compiled: bool = False) -> Path:
    """The package and its tests, without anything that was compiled before (or with the
    kernels).
    """

    def ignored(_, names):
        return [
            name
            for name in names
            if name.endswith(".pyc") or (name.endswith(COMPILED) and not compiled)
        ]

    for part in ("src", "tests"):
        shutil.copytree(source / part, to / part, ignore=ignored)
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(source / name, to / name)
    return to


def pattern(old: str) -> re.Pattern[str]:
    """Matches the text however the formatter has broken its lines: faults outlive formatting."""
    tokens = list(re.finditer(r"\w+|[^\w\s]", old))
    parts = [re.escape(tokens[0].group())]
    for before, token in pairwise(tokens):
        apart = old[before.end() : token.start()]
        words = (before.group() + token.group()).isidentifier() or token.group().isalnum()
        gap = r"\s+" if apart and words and before.group()[-1].isalnum() else r"\s*"
        parts.append((r",?\s*" if token.group() in ")]}" else gap) + re.escape(token.group()))
    return re.compile("".join(parts))


def edited(text: str, edit: Edit) -> str:
    """The text with the fault in it."""
    return pattern(edit.old).sub(lambda _: edit.new.strip(), text)


def place(edit: Edit, root: Path = ROOT) -> Path:
    """The one file in which the text stands, once."""
    files = {
        path: len(pattern(edit.old).findall(path.read_text(encoding="utf-8")))
        for path in (root / "src" / "decor").glob(edit.files)
    }
    if sum(files.values()) != 1:
        raise SystemExit(
            f"{edit.old!r} stands {sum(files.values())} times in {edit.files}, and should once; "
            "mend faults.py"
        )
    return max(files, key=lambda path: files[path])


def faulty(to: Path, fault: Fault, source: Path = ROOT) -> Path:
    """A copy with the fault.

    Kernels compiled in `source` serve if no file with a kernel is touched.
    """
    kernels = any("njit" in place(edit, source).read_text(encoding="utf-8") for edit in fault.edits)
    copied(to, source, compiled=not kernels)
    for edit in fault.edits:
        path = place(edit, to)
        path.write_text(edited(path.read_text(encoding="utf-8"), edit), encoding="utf-8")
    return to


def run(root: Path, *words: str) -> tuple[int | None, str, str, float]:
    """A Python command in a copy: (code, stdout, stderr, seconds); no code if it took too long."""
    threads = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL")}
    environment = {**os.environ, "PYTHONPATH": str(root / "src"), "COLUMNS": "400", **threads}
    for name in ("NUMBA_CACHE_DIR", "PYTHONPYCACHEPREFIX", "PYTEST_ADDOPTS"):
        environment.pop(name, None)
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, *words],
        cwd=root,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    code = None
    try:
        out, err = process.communicate(timeout=SECONDS)
        code = process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        out, err = process.communicate()
    return code, out, err, round(time.monotonic() - began, 1)


def audited(root: Path, name: str) -> dict:
    """caught: the audit has failed, and says why."""
    code, out, err, seconds = run(root, "-m", "decor", "audit", *AUDITS[name].split(), "--json")
    found = {"audit": name, "caught": False, "seconds": seconds}
    if code == 0:
        return found | {"said": "passed"}
    try:
        data = json.loads(out)
    except ValueError:
        return found | {
            "said": "took too long"
            if code is None
            else f"crashed: {(err.strip().splitlines() or ['?'])[-1]}"
        }
    what = ["attacks"] * (not all(attack["passed"] for attack in data["attacks"]))
    what += dict.fromkeys(
        check["name"].removeprefix("parts: ") for check in data["checks"] if not check["passed"]
    )
    return found | {"caught": code == 1 and not data["passed"], "said": ", ".join(what)}


def tested(root: Path, tests: tuple[str, ...]) -> dict:
    """caught: a test has failed; it is named."""
    words = [f"tests/{test}" for test in tests]
    code, out, _, seconds = run(
        root, "-m", "pytest", "-x", "-rfE", "-p", "no:cacheprovider", *words
    )
    failed = [line for line in out.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    found = {"caught": code == 1 and bool(failed), "seconds": seconds}
    if found["caught"]:
        name, _, said = failed[0].partition(" ")[2].partition(" - ")
        return found | {
            "test": name.removeprefix("tests/"),
            "said": _NO_FOLDERS.sub("", said)[:160],
        }
    said = (
        "took too long"
        if code is None
        else "passed"
        if code == 0
        else f"pytest ended with code {code}: {out[-300:]}"
    )
    return found | {"said": said}


def mark(fault: Fault) -> str:
    """Changes with the fault and its catchers: a row made for others is not to be believed."""
    return hashlib.sha256(
        repr((fault.edits, fault.tests, AUDITS.get(fault.audit or ""))).encode()
    ).hexdigest()[:12]


def tried(fault: Fault, source: Path) -> dict:
    with tempfile.TemporaryDirectory(prefix="decor-fault-") as folder:
        root = faulty(Path(folder) / "copy", fault, source)
        by_audit = audited(root, fault.audit) if fault.audit else None
        by_test = tested(root, fault.tests)
    return {"fault": fault.name, "mark": mark(fault), "audit": by_audit, "test": by_test}


def survives(row: dict) -> bool:
    return not (row["test"]["caught"] or (row["audit"] or {}).get("caught"))


def sound(source: Path, faults: list[Fault], jobs: int) -> None:
    """Everything that should notice something has nothing to say about the source as it is."""
    where = run(source, "-c", "import decor; print(decor.__file__)")[1].strip()
    if not Path(where).is_relative_to(source):
        raise SystemExit(f"what is run is {where!r}, and not the copy {source}")
    audits = sorted({fault.audit for fault in faults if fault.audit})
    tests = tuple(sorted({test for fault in faults for test in fault.tests}))
    groups = [tests[k::4] for k in range(4) if tests[k::4]]  # each within its time
    with ThreadPoolExecutor(jobs) as pool:
        for name, row in zip(
            audits, pool.map(lambda name: audited(source, name), audits), strict=True
        ):
            tell(f"without a fault, audit {name!r}: {row['said']} ({row['seconds']:g} s)")
            if row["said"] != "passed":
                raise SystemExit(1)
        for row in pool.map(lambda group: tested(source, group), groups):
            tell(f"without a fault, tests: {row['said']} ({row['seconds']:g} s)")
            if row["said"] != "passed":
                raise SystemExit(1)


def tell(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


def told(row: dict) -> str:
    parts = [
        f"{kind}: {'caught' if row[kind]['caught'] else 'NOT'} ({row[kind]['said']})"
        for kind in ("audit", "test")
        if row[kind]
    ]
    return f"{'SURVIVES  ' if survives(row) else ''}{row['fault']}: {'; '.join(parts)}"


def kept() -> dict[str, dict]:
    """The rows of found.jsonl by the name of their fault."""
    lines = FOUND.read_text(encoding="utf-8").splitlines() if FOUND.exists() else []
    return {row["fault"]: row for row in map(json.loads, lines)}


def write(rows: dict[str, dict]) -> None:
    ordered = [rows[fault.name] for fault in FAULTS if fault.name in rows]
    FOUND.write_text("".join(json.dumps(row) + "\n" for row in ordered), encoding="utf-8")
    PAGE.write_text(page(rows), encoding="utf-8")


_TOP = """# Faults put in on purpose

Would anything here notice if the privacy were broken? Every row is a fault that was put into a copy of the source; the audit
(`decor audit`, on what goes over the wire) and a test ran on that copy. **{caught} of {all} are noticed: {audits} by an audit,
{tests} by a test, {both} by both.** Where no audit is named, its column says why none can see it. The catchers pass on the
source as it is; a crash is no catch. Made by `make mutations` (`tests/mutations/run.py`; faults in `faults.py`, rows in
`found.jsonl`).
"""


def page(rows: dict[str, dict]) -> str:
    """docs/mutations.md, a part for every package."""
    found = [rows[fault.name] for fault in FAULTS if fault.name in rows]
    audits, tests = (
        [bool(row[kind] and row[kind]["caught"]) for row in found] for kind in ("audit", "test")
    )
    both = sum(a and t for a, t in zip(audits, tests, strict=True))
    caught = sum(not survives(row) for row in found)
    parts = [
        _TOP.format(caught=caught, all=len(found), audits=sum(audits), tests=sum(tests), both=both)
    ]
    for package in dict.fromkeys(fault.package for fault in FAULTS):
        parts.append(
            f"\n## {package}/\n\n| fault | what it would cost | audit: what failed | test "
            "|\n|---|---|---|---|\n"
        )
        parts += [
            _line(fault, rows[fault.name])
            for fault in FAULTS
            if fault.package == package and fault.name in rows
        ]
    parts.append("\n## The audits\n\n| name | `decor audit` with |\n|---|---|\n")
    parts += [f"| {name} | `{options}` |\n" for name, options in AUDITS.items()]
    return "".join(parts)


def _line(fault: Fault, row: dict) -> str:
    test = f"`{row['test']['test']}`" if row["test"]["caught"] else "**not noticed**"
    if row["audit"] is None:
        audit = f"- ({fault.dash})"
    else:
        audit = (
            f"{row['audit']['audit']}: "
            f"{row['audit']['said'] if row['audit']['caught'] else '**not noticed**'}"
        )
    return f"| {fault.name} | {fault.cost} | {audit} | {test} |\n"


def main() -> int:
    parser = argparse.ArgumentParser(description="Sees who notices the faults of faults.py.")
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="faults, or parts of their names (default: all)"
    )
    parser.add_argument(
        "--jobs", type=int, default=1, metavar="N", help="faults at a time (default: 1)"
    )
    options = parser.parse_args()
    chosen = [
        fault
        for fault in FAULTS
        if not options.names or any(name in fault.name for name in options.names)
    ]
    if not chosen:
        parser.error(f"no fault is called {' or '.join(options.names)}")
    for fault in FAULTS:
        for edit in fault.edits:
            place(edit)
    known = {fault.name for fault in FAULTS}
    rows = {name: row for name, row in kept().items() if options.names and name in known}
    with (
        tempfile.TemporaryDirectory(prefix="decor-source-") as folder,
        ThreadPoolExecutor(options.jobs) as pool,
    ):
        source = copied(Path(folder) / "copy")
        sound(source, chosen, options.jobs)
        for k, row in enumerate(pool.map(lambda fault: tried(fault, source), chosen)):
            tell(f"{k + 1} of {len(chosen)}  {told(row)}")
            rows[row["fault"]] = row
            write(rows)
    left = [name for name, row in rows.items() if survives(row)]
    tell(
        f"{len(rows) - len(left)} of {len(FAULTS)} faults are noticed"
        + "".join(f"; {name!r} survives" for name in left)
    )
    return 1 if left or len(rows) < len(FAULTS) else 0


if __name__ == "__main__":
    sys.exit(main())
