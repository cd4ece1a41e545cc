from typing import NamedTuple

import pytest

from decor.cli.main import main


class Done(NamedTuple):
    stdout: str
    stderr: str


@pytest.fixture
def here(monkeypatch, capsys, tmp_path):
    """The command within this process, which has everything loaded already; every command also runs in its own somewhere."""
    monkeypatch.chdir(tmp_path)

    def run_here(*arguments, check=0):
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as stopped:
            code = stopped.code
        done = Done(*capsys.readouterr())
        assert (code or 0) == check, done.stderr
        if check == 2:
            assert len(done.stderr.strip().splitlines()) == 1, done.stderr
            assert done.stdout == ""
        return done

    return run_here
