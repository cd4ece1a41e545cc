"""`decor report` shows saved runs side by side."""

from .commands import TRAIN


def test_report_shows_saved_runs_side_by_side(here, tmp_path):
    runs = []
    for epsilon in (3, 30):
        runs.append(tmp_path / f"run-{epsilon}")
        here(*TRAIN, "--epsilon", epsilon, "--output", runs[-1])
    out = here("report", *runs, "--output", tmp_path / "both.html").stdout
    assert "run-3" in out and "run-30" in out
    page = (tmp_path / "both.html").read_text()
    assert "run-30" in page and "(3, 1e-05)-SecLDP" in page


def test_runs_with_the_same_name_are_shown_by_their_paths(here, tmp_path):
    for folder in ("a", "b"):
        here(*TRAIN, "--output", f"{folder}/run")
    out = here("report", "a/run", "b/run").stdout
    assert "a/run" in out and "b/run" in out and (tmp_path / "report.html").exists()


def test_a_missing_run_is_named(here):
    assert "no-such-run" in here("report", "no-such-run", check=2).stderr
