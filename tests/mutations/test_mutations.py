"""The table of faults cannot rot: every fault can still be put in, was noticed, and some are put in
here and now.
"""

import json
from pathlib import Path

import pytest
import run
from faults import AUDITS, FAULTS, ISSUE, Edit, Fault


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_every_fault_has_its_place_in_the_source_and_leaves_something_that_compiles(fault):
    changed = {}
    for edit in fault.edits:
        path = run.place(edit)
        text = changed.get(path, path.read_text(encoding="utf-8"))
        changed[path] = run.edited(text, edit)
        assert changed[path] != text
    for path, text in changed.items():
        compile(text, path.name, "exec")


def test_a_text_that_stands_nowhere_or_twice_is_told():
    for old in ("no such line", "import"):
        with pytest.raises(SystemExit, match="and should once; mend faults.py"):
            run.place(Edit("noise/root.py", old, ""))


def test_there_are_enough_faults_and_every_one_of_the_issues_is_among_them():
    names = [fault.name for fault in FAULTS]
    assert len(names) == len(set(names)) >= 24
    assert {fault.issue for fault in FAULTS} - {None} == set(ISSUE)
    assert {fault.package for fault in FAULTS} >= {
        "noise",
        "training",
        "learning",
        "privacy",
        "federation",
        "net",
    }
    assert {fault.audit for fault in FAULTS} - {None} == set(AUDITS), (
        "every audit is for some fault"
    )
    assert all((fault.audit is None) == bool(fault.dash) for fault in FAULTS), (
        "without an audit there is a reason"
    )


def test_every_fault_was_noticed_as_it_is_written_down_now():
    rows = run.kept()
    assert list(rows) == [fault.name for fault in FAULTS]
    for fault in FAULTS:
        row = rows[fault.name]
        assert row["mark"] == run.mark(fault), f"{fault.name!r} has changed; run make mutations"
        assert row["test"]["caught"] and (fault.audit is None or row["audit"]["caught"]), fault.name
        assert not run.survives(row)


def test_the_page_is_made_of_the_rows():
    assert run.page(run.kept()) == run.PAGE.read_text(encoding="utf-8"), "run make mutations"


def test_what_is_not_noticed_survives_and_is_told():
    missed, caught = ({"caught": found, "said": "so"} for found in (False, True))
    assert run.survives({"audit": None, "test": missed}) and run.survives(
        {"audit": missed, "test": missed}
    )
    assert not run.survives({"audit": caught, "test": missed}) and not run.survives(
        {"audit": None, "test": caught}
    )
    assert (
        run.told({"fault": "one", "audit": missed, "test": missed})
        == "SURVIVES  one: audit: NOT (so); test: NOT (so)"
    )


def outcome(code, out, err=""):
    return lambda root, *words: (code, out, err, 0.1)


def test_a_crash_or_a_timeout_is_no_catch(monkeypatch):
    failed = {
        "passed": False,
        "attacks": [{"passed": False}],
        "checks": [{"name": "parts: memory", "passed": False}],
    }
    for code, out, caught, said in (
        (0, "{}", False, "passed"),
        (1, json.dumps(failed), True, "attacks, memory"),
        (
            1,
            "",
            False,
            "crashed: ValueError: no",
        ),  # what Python ends with when nobody catches an error
        (2, "", False, "crashed: ValueError: no"),
        (None, "", False, "took too long"),
    ):
        monkeypatch.setattr(run, "run", outcome(code, out, "Traceback\nValueError: no"))
        found = run.audited(Path(), "small")
        assert (found["caught"], found["said"]) == (caught, said)
    for code, out, caught, said in (
        (0, "1 passed", False, "passed"),
        (1, "FAILED tests/noise/test_root.py::test_it[a b] - assert 1 == 2", True, "assert 1 == 2"),
        (
            2,
            "ERROR tests/noise/test_root.py - SyntaxError",
            False,
            "pytest ended with code 2: ERROR tests/noise/test_root.py - SyntaxError",
        ),
        (None, "", False, "took too long"),
    ):
        monkeypatch.setattr(run, "run", outcome(code, out))
        found = run.tested(Path(), ("noise/test_root.py",))
        assert (found["caught"], found["said"]) == (caught, said)


def test_kernels_compiled_before_never_stand_for_faulty_ones(tmp_path):
    """numba looks at a kernel's own file alone: `rows.py` would go on with the `fill` of a
    `gaussians.py` that has changed.
    """
    source = run.copied(tmp_path / "source")
    for name in ("rows.fill-1.py311.nbi", "rows.fill-1.py311.1.nbc", "rows.cpython-311.pyc"):
        path = source / "src/decor/training/__pycache__" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"compiled before")
    kept = {}
    for name in ("simulator: noise reused over steps", "accountant: T-1 steps"):
        fault = next(fault for fault in FAULTS if fault.name == name)
        root = run.faulty(tmp_path / fault.package, fault, source)
        kept[fault.package] = sorted(path.suffix for path in root.rglob("__pycache__/*"))
    assert kept == {"noise": [], "privacy": [".nbc", ".nbi"]}
    assert not any(run.copied(tmp_path / "again", source).rglob("__pycache__/*"))


REALLY = {
    "accountant: T-1 steps": {"attacks"},
    "simulator: noise reused over steps": {"next step", "memory"},
}
"""Some that are put in here: in the claim, and in a kernel that others have compiled into theirs.
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", REALLY)
def test_the_audit_fails_on_a_faulty_copy(name, tmp_path):
    fault = next(fault for fault in FAULTS if fault.name == name)
    found = run.audited(run.faulty(tmp_path / "copy", fault), fault.audit)
    assert found["caught"] and REALLY[name] <= set(found["said"].split(", ")), found


@pytest.mark.slow
def test_the_audit_passes_on_a_copy_with_a_change_that_is_no_fault(tmp_path):
    harmless = Edit(
        "privacy/loss/accountant.py",
        "return step * step * segment.exposure.steps",
        "return segment.exposure.steps * step**2",
    )
    root = run.faulty(tmp_path / "copy", Fault("none", "nothing", (harmless,), ()))
    assert run.audited(root, "two steps")["said"] == "passed"
