"""The first year of a federation, with real processes: three quarters, each from the last model.

One member joins, one leaves, one replaces its key, one restores a backup of its ledger in mid-run.
In the end every ledger says what its data has spent, to the last digit of an independent
computation, and a fourth quarter beyond its limit sends nothing.
"""

import json
import shutil
import sys
from pathlib import Path

import pytest
from oracles import never_below, true_delta, true_worst
from trial_federation import ForkServer, Trial

sys.path.insert(0, str(Path(__file__).parent / "chaos"))

from cases import copy_ledger, side_files  # noqa: E402

from decor.federation.federation import (  # noqa: E402
    Federation,
    Member,
    Model,
    Network,
    Privacy,
    Training,
)
from decor.federation.start_model import StartModel, path_beside  # noqa: E402
from decor.net.addresses import free_ports  # noqa: E402
from decor.net.identity import Identity  # noqa: E402
from decor.net.ledger_reading import read_entries  # noqa: E402
from decor.results.run import Run  # noqa: E402

STEPS, DELTA, LIMIT = 12, 1e-5, 5.0
TOWNS = ("bonn", "ulm", "kiel", "jena")


class Quarter(Trial):
    """A federation of the year: own runs and logs, and the keys, data and ledgers of all."""

    def __init__(self, year, file):
        self.year, federation = year, Federation.read(file)
        folder = year.folder / federation.name
        folder.mkdir()
        names = [member.name for member in federation.members]
        keys = {name: year.keys[name] for name in names}
        self.ports = year.ports
        # slow enough for an operator to act in the middle
        self.set_up(folder, year.fork_server, federation, keys, pace=0.02, shared=year.folder)
        if path_beside(file).exists():
            shutil.copy(path_beside(file), path_beside(self.file))
        year.quarters.append(self)

    def make_ledger(self, name):
        if not self.path(name, "ledger").exists():
            words = ("--allow", LIMIT, "--allow-delta", DELTA)
            self.run_command(
                "ledger", "new", self.ledger(name), "--identity", self.key(name), *words
            )

    def run_command(self, *words, code=0):
        ended, said = self.decor(*words)
        assert ended == code, said
        return said

    def ledger(self, name):
        return self.path(name, "ledger")

    def key(self, name):
        return self.path(name, "key")

    def renew(self, *changes, by="bonn"):
        """The next quarter's file, from the model of one member; gives its path and what was said."""
        new = self.year.folder / f"after-{self.federation.name}.toml"
        start = ("--start", self.path(by, "run"))
        said = self.run_command("federation", "renew", self.file, "--output", new, *start, *changes)
        return new, said

    def model(self, name):
        return Run.load(self.path(name, "run")).average_model


class Year:
    def __init__(self, folder, fork_server):
        self.folder, self.fork_server, self.quarters = folder, fork_server, []
        self.keys = {name: Identity.new() for name in TOWNS}
        self.ports = dict(zip(TOWNS, free_ports(len(TOWNS)), strict=True))

    def first_file(self):
        members = [
            Member(name, f"127.0.0.1:{self.ports[name]}", self.keys[name].public)
            for name in TOWNS[:3]
        ]
        federation = Federation(
            name="heart",
            privacy=Privacy(epsilon=2.0, delta=DELTA, adversary="curious"),
            training=Training(steps=STEPS, clip=1.0, learning_rate=0.1, final_gossip_rounds=2),
            model=Model(kind="logistic", features=4),
            network=Network(
                edges=(("bonn", "ulm"), ("ulm", "kiel"), ("bonn", "kiel")),
                timeout=10.0,
                patience=60.0,
            ),
            members=tuple(members),
        )
        file = self.folder / "first.toml"
        file.write_text(federation.to_toml())
        return file

    def exact_epsilon(self, name):
        """What a user's data has spent against one curious user per quarter: mu^2 add up.

        Leverages are of inverses with 80 digits, every other user in turn as the curious one; the
        steps are what was on the wire, and once more what a backup made doubtful.
        """
        mu_squared = 0
        for quarter in self.quarters:
            if name not in quarter.pids:
                continue
            federation, plan = quarter.federation, quarter.federation.plan
            worst = true_worst(federation.topology, plan.sigma_cdp, plan.sigma_cor, 1)
            leverage = worst[quarter.names.index(name)]
            mu_squared += 4 * federation.training.clip**2 * quarter.paid[name] * leverage
        low, high = 0.0, 100.0
        for _ in range(80):
            middle = (low + high) / 2
            # a thousandth of delta is left to the noise tables
            fits = true_delta(middle, mu_squared**0.5) <= 0.999 * DELTA
            low, high = (low, middle) if fits else (middle, high)
        return high


@pytest.fixture
def year(tmp_path):
    with ForkServer() as fork_server:
        yield Year(tmp_path, fork_server)


def messages_heard(quarter):
    """How many steps of each user were on the wire."""
    steps = {(record.sender, record.message.step) for record in quarter.heard()}
    return {name: sum(sender == name for sender, _ in steps) for name in quarter.names}


def first_quarter(year):
    with Quarter(year, year.first_file()) as quarter:
        quarter.start()
        quarter.finished()
        quarter.check()
        quarter.paid = messages_heard(quarter)
    assert quarter.paid == dict.fromkeys(quarter.names, STEPS)
    return quarter


def own_model(year):
    """A run of kiel with a model of its own: on a complete graph all models may be the same."""
    folder, run = year.folder / "own", Run.load(year.quarters[0].path("kiel", "run"))
    run.models["weight"].add_(0.01)
    run.save(folder)
    return folder


def second_quarter(year, file):
    """jena joins; ulm's ledger is restored from a backup in the middle of the run."""
    with Quarter(year, file) as quarter:
        # a member that takes its own model for the common one is told before anything is spent
        quarter.start("kiel", more=["--start", str(own_model(year))])
        assert quarter.ended("kiel") == 2 and "holds a model of SHA-256" in quarter.errors("kiel")
        assert len(read_entries(quarter.ledger("kiel"))) == 1
        quarter.start()
        quarter.reached("ulm", 2)
        known = copy_ledger(quarter.ledger("ulm"), year.folder / "backup") - STEPS
        quarter.reached("ulm", known + 2)
        quarter.kill("ulm")
        for file in side_files(quarter.ledger("ulm")):
            file.unlink(missing_ok=True)
        shutil.move(year.folder / "backup", quarter.ledger("ulm"))
        mark = len(quarter.errors("ulm"))
        quarter.start("ulm")
        code, said = quarter.ended("ulm"), quarter.errors("ulm")[mark:]
        assert code == 3 and "holds a receipt of this user" in said, (code, said)
        quarter.hurry()
        quarter.finished("bonn", "kiel", "jena")
        quarter.paid = messages_heard(quarter)
        last = read_entries(quarter.ledger("ulm"))[-1]
        assert last.ended is not None and last.steps == known
        # what has left and is not in the backup is paid for, and all of it once more
        assert known < quarter.paid["ulm"] <= last.repeated <= quarter.paid["ulm"] + 1
        quarter.paid["ulm"] = known + last.repeated
        fetch_for_ulm(quarter)
    return quarter


def fetch_for_ulm(quarter):
    """It has no model of its own: bonn serves one."""
    quarter.start("bonn", more=["--serve"])
    fetch = ("fetch", quarter.file, "--identity", quarter.key("ulm"))
    quarter.run_command(*fetch, "--output", quarter.path("ulm", "run"))
    assert all((quarter.model("ulm")[k] == v).all() for k, v in quarter.model("bonn").items())
    quarter.signal("bonn", 15)
    assert quarter.ended("bonn") in (0, 4)


def third_quarter(year, file):
    """kiel has left, and bonn has a new key."""
    key, old = year.folder / "bonn.key", year.folder / "bonn-old.key"
    key.rename(old)
    year.keys["bonn"].save(key)
    with Quarter(year, file) as quarter:
        assert quarter.names == ["bonn", "ulm", "jena"]
        quarter.start("bonn")
        assert quarter.ended("bonn") == 2
        assert "is the ledger of another key" in quarter.errors("bonn")
        adopt = ("ledger", "adopt", quarter.ledger("bonn"), "--identity", key)
        quarter.run_command(*adopt, "--old-key", old)
        mark = len(quarter.errors("bonn"))
        quarter.hurry()
        quarter.start()
        quarter.finished()
        assert "Traceback" not in quarter.errors("bonn")[mark:]
        quarter.check(codes={}, allow=LIMIT)
        quarter.paid = messages_heard(quarter)
    assert quarter.paid == dict.fromkeys(quarter.names, STEPS)
    return quarter


def test_a_year_of_renewals_costs_exactly_what_the_ledgers_say(year):
    first = first_quarter(year)
    file, said = first.renew(
        *("--learning-rate", 1e-7, "--add"),
        f"jena,127.0.0.1:{year.ports['jena']},{year.keys['jena'].line}",
    )
    assert "Edges added for those who join: bonn:jena, ulm:jena" in said
    second = second_quarter(year, file)
    assert second.federation.name == "heart-2"
    year.keys["bonn"] = Identity.new()
    change = f"bonn={year.keys['bonn'].line}"
    # ulm's folder has the model that it has fetched: any member can write the next file
    file, said = second.renew("--remove", "kiel", "--replace-key", change, by="ulm")
    assert "bonn has a new key" in said
    third = third_quarter(year, file)
    # steps were too small to move: everyone is where the first quarter ended
    start = StartModel.read(first.path("bonn", "run")).parameters["weight"]
    assert abs(start).max() > 0.05
    for name in third.names:
        assert abs(third.model(name)["weight"].numpy() - start).max() < 1e-4

    for name in TOWNS:
        said = third.run_command("ledger", "show", third.folder.parent / f"{name}.ledger", "--json")
        (total,) = [each for each in json.loads(said)["totals"] if each["unit"] == "user"]
        assert total["adversary"] == "curious" and total["delta"] == DELTA
        exact = year.exact_epsilon(name)
        assert never_below(total["epsilon"], exact, 1e-6), (name, total, exact)
        assert total["so_far"] == total["epsilon"] <= LIMIT

    # a fourth quarter that the ledger of ulm has no room for
    file, _ = third.renew("--epsilon", 4.5)
    with Quarter(year, file) as fourth:
        before = read_entries(fourth.ledger("ulm"))
        fourth.start("bonn", "ulm")
        assert fourth.ended("ulm") == 3 and "above 5 (delta" in fourth.errors("ulm")
        assert read_entries(fourth.ledger("ulm")) == before
        assert "connected" not in fourth.log("ulm") and fourth.heard() == []
