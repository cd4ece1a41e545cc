"""The short form of `make chaos`: one federation under kills, and each case with one seed or two."""

import random
import sqlite3
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

from cases import DETECTED, SURVIVED, led_astray  # noqa: E402
from chaos import GRAPHS, PACE, TIMEOUT, Storm, broken_invariants, figures  # noqa: E402
from trial_federation import PATIENCE, Trial  # noqa: E402

KILLS = 10


def test_a_federation_survives_kills_pauses_and_cut_connections(tmp_path, fork_server):
    settings = {"timeout": TIMEOUT, "pace": PACE, "patience": 2 * TIMEOUT, "steps": 60}
    with Trial(tmp_path, fork_server, users=4, **settings) as trial:
        storm = Storm(trial, random.Random(3))
        storm.run(time.monotonic() + PATIENCE, KILLS)
        assert storm.broken == []
        assert storm.counts["kills"] >= KILLS and storm.counts["left behind"] == 0
        counted = figures(trial)
    assert counted["noise cancels"] > counted["noise stays"]


def test_two_keys_of_an_edge_one_used_twice_and_skips_after_a_liar_would_be_seen(
    tmp_path, fork_server
):
    """The invariants on a federation in good order, of whose ledgers and logs one is changed."""
    with Trial(tmp_path, fork_server, users=3, steps=4) as trial:
        trial.start()
        trial.finished()
        assert broken_invariants(trial) == []
        assert led_astray(trial, trial.names) == []
        log, ended = trial.path("bonn", "log"), trial.log("bonn")
        for at, what in (
            ("2026-01-01", ["bonn has skipped to step 3, where no honest user was"]),
            # after all messages: the others were there
            ("2100-01-01", []),
        ):
            skip = f'{at}T00:00:00.000Z user=bonn event="caught up" from_step=1 to_step=3\n'
            log.write_text(ended + skip)
            assert led_astray(trial, trial.names) == what
        log.write_text(ended)
        with closing(sqlite3.connect(trial.path("bonn", "ledger"))) as db:
            made = db.execute("SELECT * FROM messages WHERE step = 2").fetchall()
            db.execute("DELETE FROM messages WHERE step = 2")
            db.commit()
            # the others have taken it
            assert led_astray(trial, trial.names) == [] != led_astray(trial, ["bonn"])
            db.executemany(f"INSERT INTO messages VALUES ({', '.join('?' * 7)})", made)
            db.commit()
        real = trial.edge_keys

        def changed(change):
            keys = {name: real(name) for name in trial.names}
            change(keys)
            trial.edge_keys = keys.__getitem__
            return " ".join(broken_invariants(trial))

        def another(keys):
            keys["bonn"]["ulm", 2] = bytes(32), False

        def the_same_again(keys):
            keys["bonn"]["ulm", 2] = keys["bonn"]["ulm", 3]

        assert "step 2 of bonn and ulm has two keys" in changed(another)
        assert "is said to cancel, and has two keys" in changed(another)
        assert "one key serves" in changed(the_same_again)
        trial.path("bonn", "draws").write_text(bytes(32).hex() + "\n")
        assert "nobody has drawn afresh" not in changed(another)


def test_the_graphs_are_those_that_were_asked_for(tmp_path, fork_server):
    for k, (name, settings) in enumerate(GRAPHS.items()):
        (tmp_path / str(k)).mkdir()
        trial = Trial(tmp_path / str(k), fork_server, **settings)
        degrees = {each: sum(each in edge for edge in trial.edges) for each in trial.names}.values()
        assert trial.federation.topology.is_connected
        expected = {"random regular, 6": [3] * 6, "star, 5": [1] * 4 + [4], "ring, 8": [2] * 8}
        assert sorted(degrees) == expected[name]


@pytest.mark.parametrize("case", DETECTED)
def test_a_ledger_that_neighbours_know_better_is_noticed_before_a_second_message(
    tmp_path, fork_server, case
):
    DETECTED[case](tmp_path, fork_server, seed=1)


@pytest.mark.parametrize(
    "case, seed", [*((case, 0) for case in SURVIVED), ("reconnect while computing", 1)]
)
def test_honest_users_go_on(tmp_path, fork_server, case, seed):
    SURVIVED[case](tmp_path, fork_server, seed)
