"""A comparison without a base rate, as `decor compare` has saved it before, is still shown."""

import json
from pathlib import Path

from sample import comparison, read

from decor.results.comparison import ComparisonResult, write_comparison
from decor.results.report_data import Report
from decor.results.tables import base_rate_row


def test_a_report_without_a_base_rate_has_no_row_of_it(tmp_path):
    report = read(comparison())
    assert report.base_rate is None and base_rate_row(report) is None
    assert "base_rate" not in report.to_json()
    assert "always the same guess" not in str(ComparisonResult(report, Path(tmp_path)))


def test_what_is_written_is_read_again(tmp_path):
    written = write_comparison(read(comparison()), tmp_path)
    assert Report.from_json(json.loads((tmp_path / "report.json").read_text())) is not None
    assert all(Path(path).stat().st_size for path in written["figures"])
