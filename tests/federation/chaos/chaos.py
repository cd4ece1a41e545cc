"""Federations under kills, pauses and cut cables until the time is over, and what must hold then.

    python tests/federation/chaos/chaos.py --minutes 10 --seed 1
    python tests/federation/chaos/chaos.py --detect 20

The first form runs federations on three graphs, one after the other. Users are killed while they
are at work, one to three at once, and started again; they are stopped for a while; their
connections are cut, held, swallowed, or left half-open. All messages are recorded at the proxies
between the users. After each federation `broken_invariants` compares them with all ledgers and
logs. The second form runs every case of `cases.DETECTED` so many times, each with its own seed.

Prints one line of JSON, which `make chaos` adds to benchmarks/chaos.jsonl; progress goes to
standard error. Exit status: 0, or 1 if an invariant was broken (the federation's folder is kept,
and named). A seed fixes the order of faults, not the moments at which they meet the users' work.
"""

import argparse
import json
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

from fault_injection import POINTS  # noqa: E402
from trial_federation import ForkServer, Trial  # noqa: E402

PACE, TIMEOUT, STEPS = 0.03, 2.0, 150
"""Seconds that a message takes, seconds of silence that users tolerate, and steps of a run."""
SECONDS = 40.0
"""For which things go wrong in one federation, so that every graph has its turn."""
LAST = 0.8
"""Share of the steps after which nothing more goes wrong, so that all can come to the end."""
MOST_SECONDS = 240.0
"""In which users come to the end once nothing goes wrong any more."""
GRAPHS = {
    # given by its edges, as a random graph is: each user has three neighbours
    "random regular, 6": {
        "users": 6,
        "edges": tuple((a, b) for a in ("bonn", "jena", "essen") for b in ("ulm", "kiel", "trier")),
    },
    "star, 5": {"users": 5, "topology": "star", "quorum": 1.0},
    "ring, 8": {"users": 8, "topology": "ring"},
}
WITHIN_A_STEP = [
    point for point, (what, _) in POINTS.items() if what not in ("end", "save", "exchange", "share")
]
EDGE_FAULTS = ("cut", "refuse", "hold", "lose", "half_open")


class Storm:
    """One federation and its faults.

    Args:
        trial: The federation, with proxies.
        dice: Chooses the faults.
    """

    def __init__(self, trial, dice):
        self.trial, self.dice = trial, dice
        self.counts, self.codes = Counter(), Counter()
        self.broken = []
        # what is still to be undone or done, as (time, action); users and edges that it concerns
        self._due, self._stopped, self._disturbed, self._down = [], set(), set(), set()
        # process -> whether it was at work when it was killed
        self._killed, self._noted = {}, set()
        self._marks = {}

    def run(self, end, kills=None):
        """Starts all users, lets things go wrong, and waits until all have come to the end.

        Args:
            end: `time.monotonic()` after which nothing more goes wrong.
            kills: So many are enough; None: no limit.
        """
        trial = self.trial
        for name in trial.names:
            self._start(name)
        for name in trial.names:
            trial.reached(name, 1)
        while (
            time.monotonic() < end
            and (kills is None or self.counts["kills"] < kills)
            and self._furthest() < LAST * trial.steps
        ):
            self._let_one_thing_go_wrong()
            self._wait(self.dice.uniform(0.1, 1.0))
        self._calm()
        self.broken += broken_invariants(trial)

    # faults

    def _let_one_thing_go_wrong(self):
        kind = self.dice.choices(("kill", "stop", "edge"), (6, 1, 3))[0]
        if kind == "kill":
            wanted = self.dice.randint(1, 3)
            names = [name for name in self.trial.names if self._is_up(name)]
            for name in self.dice.sample(names, min(wanted, len(names))):
                # asked before, and killed all the same if it was not: only that does not count
                self._killed[self.trial.pids[name]] = self._is_at_work(name)
                with suppress(AssertionError):  # it has ended meanwhile
                    self.trial.signal(name, signal.SIGKILL)
        elif kind == "stop":
            names = [name for name in self.trial.names if self._is_up(name)]
            if names:
                self._stop(self.dice.choice(names))
        else:
            free = [edge for edge in self.trial.proxies if edge not in self._disturbed]
            if free:
                self._disturb(self.dice.choice(free))

    def _stop(self, name):
        pid = self.trial.pids[name]
        self.trial.signal(name, signal.SIGSTOP)
        self.counts["pauses"] += 1
        self._stopped.add(name)

        def go_on():
            self._stopped.discard(name)
            if self.trial.alive(name) and self.trial.pids[name] == pid:
                self.trial.signal(name, signal.SIGCONT)

        self._later(self.dice.uniform(0.2, 2.5 * TIMEOUT), go_on)

    def _disturb(self, edge):
        how = self.dice.choice(EDGE_FAULTS)
        self.counts[how] += 1
        proxy = self.trial.proxies[edge]
        getattr(proxy, how)(*([self.dice.choice(edge)] if how == "half_open" else []))
        self._disturbed.add(edge)

        def heal():
            proxy.heal()
            proxy.delay(self.trial.pace)
            self._disturbed.discard(edge)

        self._later(0.0 if how == "cut" else self.dice.uniform(0.1, 1.5 * TIMEOUT), heal)

    # users

    def _start(self, name, **fault):
        self._marks[name] = len(self.trial.errors(name))
        self.trial.start(name, draws=str(self.trial.path(name, "draws")), **fault)

    def _is_up(self, name):
        return self.trial.alive(name) and name not in self._stopped

    def _is_at_work(self, name):
        """Whether a user has made messages, has not finished, and is among its neighbours."""
        said = self.trial.status(name)
        return (
            said.get("messages", 0) > 0
            and said["step"] < self.trial.steps
            and any(neighbour["here"] for neighbour in said["neighbours"])
        )

    def _furthest(self):
        heard = self.trial.heard()
        return max((record.message.step for record in heard), default=0)

    def _look_after(self, restarts=True):
        """Takes note of users that have ended, and lets their operators start them again."""
        for name in self.trial.names:
            pid = self.trial.pids[name]
            if pid in self._noted or self.trial.alive(name):
                continue
            self._noted.add(pid)
            code = self.trial.code(name)
            self.codes[str(code)] += 1
            if code == -signal.SIGKILL:
                # a process that was not killed from here has killed itself within a step
                self.counts["kills"] += self._killed.pop(pid, True)
                self.trial.killed[name] += 1
            self._check_end(name, code)
            if code in (-signal.SIGKILL, 1) and restarts:
                self._down.add(name)
                # at once, or after the others have gone on
                seconds = self.dice.choice((0.0, self.dice.uniform(0.0, 1.5 * TIMEOUT)))
                self._later(seconds, partial(self._restart, name))

    def _restart(self, name):
        self._down.discard(name)
        fault = {}
        if self.dice.random() < 0.3:
            step = self._furthest() + self.dice.randint(2, 8)
            if step < LAST * self.trial.steps:
                fault = {"kill": self.dice.choice(WITHIN_A_STEP), "step": step}
        self._start(name, **fault)

    def _check_end(self, name, code):
        said = self.trial.errors(name)[self._marks[name] :]
        has_sentence = any(line.startswith("decor: ") for line in said.splitlines())
        # 1 says why, and is worth a restart; here nothing is wrong with an input or a ledger
        if code not in (0, 4, -signal.SIGKILL) and not (code == 1 and has_sentence):
            self.broken.append(f"{name} ended with {code}: {said[-500:]}")

    # time

    def _later(self, seconds, action):
        self._due.append((time.monotonic() + seconds, action))

    def _wait(self, seconds):
        """Undoes and does what is due meanwhile."""
        end = time.monotonic() + seconds
        while True:
            self._look_after()
            for item in [item for item in self._due if item[0] <= time.monotonic()]:
                self._due.remove(item)
                item[1]()
            if time.monotonic() >= end:
                return
            time.sleep(0.05)

    def _calm(self):
        """Nothing goes wrong any more: waits until everybody has come to the end."""
        trial = self.trial
        self._wait(0)
        for _, action in self._due:
            action()
        self._due = []
        end = time.monotonic() + MOST_SECONDS
        while any(trial.alive(name) for name in trial.names) or self._down:
            self._wait(0.2)
            if not self._disturbed and not self._down:
                trial.hurry()
            self._send_home()
            if time.monotonic() > end:
                awake = [name for name in trial.names if trial.alive(name)]
                said = {name: trial.status(name).get("paused") for name in awake}
                self.broken.append(f"after {MOST_SECONDS:g} s there is no end of {said}")
                return
        self._look_after(restarts=False)

    def _send_home(self):
        """Tells users to stop for whom too few neighbours are left: nobody may be left behind."""
        trial = self.trial
        for name in trial.names:
            neighbours = {a if b == name else b for a, b in trial.edges if name in (a, b)}
            here = [other for other in neighbours if trial.alive(other) or other in self._down]
            quorum = max(1, round(trial.federation.network.quorum * len(neighbours) + 0.49))
            if trial.alive(name) and len(here) < quorum and trial.status(name).get("paused"):
                self.counts["left behind"] += 1
                said = trial.status(name)
                self.broken.append(f"{name} was left behind at step {said.get('step')}")
                # or the federation would not end
                trial.signal(name, signal.SIGTERM)
                trial.ended(name)


def broken_invariants(trial):
    """What does not hold of a federation whose users have all ended, as sentences.

    One message of each user and step, at all recipients; every ledger has what was sent; no
    traceback; the two ends of an edge differ in a step only if one of them has drawn afresh, and
    are said to agree only if they do; no key is used twice. (Nobody is left behind: `Storm` notices.)
    """
    broken = []
    try:
        accepted = {n: c for n in trial.names if (c := trial.code(n)) == 1}
        trial.check(codes=accepted)
    except AssertionError as problem:
        broken.append(f"check: {problem}"[:1000])
    keys = {name: trial.edge_keys(name) for name in trial.names}
    drawn = set()
    for name in trial.names:
        if (file := trial.path(name, "draws")).exists():
            drawn |= {bytes.fromhex(line) for line in file.read_text().split()}
    users = {}
    for name, own in keys.items():
        for (neighbour, step), (key, is_cancelled) in own.items():
            users.setdefault(key, []).append((name, neighbour, step))
            theirs = keys[neighbour].get((name, step))
            place = f"step {step} of {name} and {neighbour}"
            is_same = theirs is not None and theirs[0] == key
            if theirs is not None and not is_same and not {key, theirs[0]} & drawn:
                broken.append(f"{place} has two keys, and nobody has drawn afresh")
            if is_cancelled and not is_same:
                broken.append(f"{place} is said to cancel, and has two keys")
    for places in users.values():
        ends = {(*sorted(place[:2]), place[2]) for place in places}
        if len(places) > 2 or len(ends) > 1:
            broken.append(f"one key serves {places}")
    return broken


def figures(trial):
    """Steps with a message, and edge-steps of both ends whose noise cancels, or does not."""
    count = Counter()
    for name in trial.names:
        own = trial.edge_keys(name)
        count["messages"] += len({step for _, step in own})
        for (neighbour, step), (key, _) in own.items():
            if name < neighbour:
                theirs = trial.edge_keys(neighbour).get((name, step))
                count["noise cancels" if theirs and theirs[0] == key else "noise stays"] += 1
    return count


def run_chaos(minutes, seed, report):
    """Federations on all graphs in turn; returns the row."""
    dice = random.Random(seed)
    end = time.monotonic() + 60 * minutes
    counts, codes, broken, federations = Counter(), Counter(), [], 0
    with ForkServer() as fork_server:
        while time.monotonic() < end:
            graph = list(GRAPHS)[federations % len(GRAPHS)]
            folder = Path(tempfile.mkdtemp(prefix="chaos-"))
            settings = {"timeout": TIMEOUT, "steps": STEPS, "pace": PACE, "patience": 2 * TIMEOUT}
            with Trial(folder, fork_server, **settings | GRAPHS[graph]) as trial:
                storm = Storm(trial, dice)
                storm.run(min(end, time.monotonic() + SECONDS))
                counts += storm.counts + figures(trial)
            federations += 1
            codes += storm.codes
            broken += [f"{folder} ({graph}): {each}" for each in storm.broken]
            if not storm.broken:
                shutil.rmtree(folder)
            report(f"{graph}: {dict(storm.counts)}, exit codes {dict(storm.codes)}")
            for each in storm.broken:
                report(f"BROKEN in {folder}: {each}")
    return {
        "benchmark": "chaos",
        "what": f"federations on {'; '.join(GRAPHS)} users, under kills and cut connections",
        "minutes": minutes,
        "seed": seed,
        "federations": federations,
        **{name: counts[name] for name in ("kills", "pauses", *EDGE_FAULTS)},
        **{
            name.replace(" ", "_"): counts[name]
            for name in ("messages", "noise cancels", "noise stays", "left behind")
        },
        "exit_codes": dict(sorted(codes.items())),
        "broken": broken,
    }


def run_detections(runs, seed, report):
    """Each case so many times; returns the row."""
    from cases import DETECTED

    row = {"benchmark": "chaos", "what": "ledgers that are detected", "runs": runs, "seed": seed}
    broken, left_twice = [], 0
    with ForkServer() as fork_server:
        for case, detect in DETECTED.items():
            row[case] = 0
            for k in range(runs):
                folder = Path(tempfile.mkdtemp(prefix=f"chaos-{case}-"))
                try:
                    raced = detect(folder, fork_server, seed + k)
                except AssertionError as problem:
                    broken.append(f"{case}, seed {seed + k}, {folder}: {problem}"[:1000])
                    report(f"BROKEN: {broken[-1]}")
                else:
                    row[case] += 1
                    # of a race alone: see `cases.race`
                    left_twice += bool(raced)
                    shutil.rmtree(folder)
            report(f"{case}: detected in {row[case]} of {runs} runs")
    return {**row, "races_with_messages_that_left_twice": left_twice, "broken": broken}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="how long things go wrong")
    parser.add_argument("--seed", type=int, default=1, help="chooses the faults")
    parser.add_argument(
        "--detect", type=int, metavar="RUNS", help="instead: runs of each case of a wrong ledger"
    )
    options = parser.parse_args()
    report = partial(print, file=sys.stderr, flush=True)
    if options.detect is None:
        row = run_chaos(options.minutes, options.seed, report)
    else:
        row = run_detections(options.detect, options.seed, report)
    print(json.dumps(row), flush=True)
    return 1 if row["broken"] else 0


if __name__ == "__main__":
    sys.exit(main())
