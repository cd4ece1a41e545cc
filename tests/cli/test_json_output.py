"""The command line that a report names."""

import sys

from decor.cli import json_output


def test_the_command_line_can_be_pasted_and_forgets_what_was_in_the_folder(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["decor", "train", "--output", "my run", "--overwrite"])
    assert json_output.command_line() == "decor train --output 'my run'"
