"""What a node writes for its operator; its signals and sockets are tested in test_faults.py."""

import io
import re

from decor.errors import InputError
from decor.federation.operator import EventLog, error_text


def test_an_event_is_one_line_whatever_its_facts_are():
    to = io.StringIO()
    EventLog("bonn", to)("going on", step=3, why='a "b"\nc=\x1b[2J', empty="")
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z user=bonn event=\"going on\" step=3 "
        r"why=\"a 'b'\?c=\?\[2J\" empty=\"\"\n",
        to.getvalue(),
    )


def test_a_log_that_cannot_be_written_stops_nobody():
    class Full(io.StringIO):
        def write(self, text):
            raise OSError("no space left")

    EventLog("bonn", Full())("connected")


def test_only_our_own_errors_are_logged_with_their_text():
    assert error_text(InputError("take a smaller rate")) == "take a smaller rate"
    assert error_text(ValueError("patient 7 has 1.5")) == "ValueError"
