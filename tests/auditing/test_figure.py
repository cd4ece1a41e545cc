"""The figure of an audit."""

import pytest
from small_audits import plan

import decor
from decor.auditing.figure import draw
from decor.results.audit_summary import AuditSummary


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_the_figure_is_drawn_in_the_format_of_its_name(suffix, tmp_path):
    audit = decor.audit(plan(), engine=decor.Vectorised(), canaries=3_000, steps=2)
    path = tmp_path / f"audit.{suffix}"
    draw(AuditSummary.from_json(audit.to_json()), path)
    assert path.stat().st_size > 1_000
