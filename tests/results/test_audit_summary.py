"""What is read back of an audit: this plan's alone, and nothing that is not one."""

import copy
import json

import pytest

import decor
from decor.errors import InputError
from decor.results.audit_summary import AuditSummary, fingerprint, load_audit, render_section

PLAN = decor.NoisePlan(
    decor.ring(4), decor.Exposure(clip=1.0, steps=10), decor.Adversary.curious(), 1.0, 2.0
)
ROW = {
    "engine": "vectorised", "adversary": "curious", "claimed_epsilon": 3.0, "measured_epsilon": 2.5, "reached": 0.9,
    "passed": True,
}  # fmt: skip
AUDIT = {
    "statement": "PASS", "unit": "user", "adversaries": [ROW], "checks": [{"passed": True}], "failures": [],
    "plan": fingerprint(PLAN),
}  # fmt: skip


def put(folder, data):
    (folder / "audit.json").write_text(
        data if isinstance(data, str) else json.dumps(data), encoding="utf-8"
    )


def test_an_audit_is_shown_beside_its_own_plan_only(tmp_path):
    assert load_audit(tmp_path, PLAN) is None
    put(tmp_path, AUDIT)
    against_another = decor.NoisePlan(
        PLAN.topology, PLAN.exposure, decor.Adversary.everyone(), 1.0, 2.0
    )
    assert load_audit(tmp_path, PLAN).to_json() == AUDIT
    assert load_audit(tmp_path, against_another).to_json() == AUDIT
    with pytest.warns(UserWarning, match="a different plan"):
        assert load_audit(tmp_path, PLAN.scaled(0.01)) is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"failures": 3},
        {"checks": [{"said": "x"}]},
        {"checks": 3},
        {"adversaries": [ROW | {"claimed_epsilon": 10**400}]},
        {"statement": None},
        {"adversaries": [ROW | {"passed": "no"}]},
        {"adversaries": [ROW | {"claimed_epsilon": "much"}]},
        {"adversaries": {"a": 1}},
    ],
)
def test_what_is_no_audit_is_refused_with_a_sentence(tmp_path, wrong):
    put(tmp_path, copy.deepcopy(AUDIT) | wrong)
    with pytest.raises(InputError, match="run decor audit again"):
        load_audit(tmp_path, PLAN)


@pytest.mark.parametrize("text", ["[1]", "null", '"x"', "{", "[" * 100_000])
def test_what_is_not_even_an_object_is_refused_with_a_sentence(tmp_path, text):
    put(tmp_path, text)
    with pytest.raises(InputError, match="run decor audit again"):
        load_audit(tmp_path, PLAN)


def test_nothing_of_an_audit_is_markup():
    bad = "<script>"
    rows = [ROW | {"engine": bad, "adversary": bad}]
    data = AUDIT | {"statement": bad, "failures": [bad], "adversaries": rows}
    audit = AuditSummary.from_json(data)
    assert bad not in render_section([(bad, audit), (bad, audit)])


def cells(**row):
    return AuditSummary.from_json(AUDIT | {"adversaries": [ROW | row]}).rows[0]


def test_at_example_level_what_was_measured_is_not_called_a_bound():
    assert cells()[3] == ">= 2.5"
    assert AuditSummary.from_json(AUDIT | {"unit": "example"}).rows[0][3] == "about 2.5"


def test_a_claim_is_rounded_up_and_a_measurement_down():
    row = cells(claimed_epsilon=3.00001, measured_epsilon=2.4999, reached=0.99999)
    assert row[2:5] == ["3.001", ">= 2.49", "99.9 %"]
    row = cells(claimed_epsilon="inf", measured_epsilon=1e-322, reached="inf", passed=False)
    assert row[2:] == ["inf", ">= 9.88131e-323", "inf", "FAIL"]
