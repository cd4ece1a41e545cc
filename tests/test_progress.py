"""Progress reports reach the listener, as a share of the work around them, and cost nothing without one."""

from decor import progress


def test_reports_go_to_the_listener_of_the_block_and_nowhere_else():
    reports = []
    progress.report("before", 1, 2)
    with progress.listening(lambda what, fraction: reports.append((what, fraction))):
        progress.report("inside", 1, 2)
        progress.report("unknown")
    progress.report("after", 1, 2)
    assert reports == [("inside", 0.5), ("unknown", None)]


def test_a_share_of_the_work_counts_as_that_share():
    reports = []
    with progress.listening(lambda what, fraction: reports.append(fraction)):
        with progress.share(0.5, 1.0):
            progress.report("half of the second half", 1, 2)
            progress.report("its start")
    assert reports == [0.75, 0.5]
