"""One run on several processes, by torchrun: the results of one process, also after a kill."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import group_cases
import numpy as np
import pytest
import torch
from own_loops import train

import decor
from decor.results.run import Run

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
QUIET = {**os.environ, "OMP_NUM_THREADS": "1"}
SIZES = (2, 3)


@pytest.fixture(scope="module")
def groups(tmp_path_factory):
    """Runs all cases once for each number of processes; gives the folder."""
    done = {}

    def of(size):
        if size not in done:
            done[size] = tmp_path_factory.mktemp(f"group-{size}")
            command = [
                *TORCHRUN,
                "--nproc-per-node",
                str(size),
                group_cases.__file__,
                str(done[size]),
            ]
            ended = subprocess.run(command, env=QUIET, capture_output=True, text=True, timeout=300)
            assert ended.returncode == 0, ended.stderr[-3000:]
        return done[size]

    return of


@pytest.fixture(scope="module")
def alone():
    """The same runs by Vectorised with the same noise."""
    engine = decor.Vectorised(dtype="float64", seed=3, noise="edges")
    return {name: group_cases.train(engine, *case) for name, case in group_cases.cases().items()}


def difference(one, other):
    """The largest difference of two runs' models, relative to the largest parameter."""
    both = [(one.models[name].double(), other.models[name].double()) for name in one.models]
    return max(float((a - b).abs().max()) for a, b in both) / max(
        float(a.abs().max()) for a, _ in both
    )


@pytest.mark.parametrize("size", SIZES)
def test_every_number_of_processes_gives_the_numbers_of_one(groups, alone, size):
    for name, expected in alone.items():
        found = Run.load(groups(size) / name.replace(" ", "-"))
        assert (
            found.manifest["engine"]["name"] == "process-group"
            and found.manifest["task"] == expected.manifest["task"]
        )
        assert difference(expected, found) < 1e-13, name
        for metric, values in expected.history.items():
            assert found.history[metric] == pytest.approx(values, rel=1e-10, abs=1e-13), (
                name,
                metric,
            )


OF_OWN_LOOPS = (
    *("module", "several rounds, momentum", "noise by edge"),
    *("own noise per user", "complete", "star", "central", "no gossip"),
)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", OF_OWN_LOOPS)
def test_own_loops_that_do_what_a_group_does_have_its_models(groups, name, size):
    task, plan, options = group_cases.cases()[name]
    local_steps = options.pop("local_steps", 1)
    own = decor.simulate(
        plan,
        task.model,
        3,
        learning_rate=0.2,
        dtype="float64",
        noise="edges",
        allow_disconnected=True,
        **options,
    )
    train(own, task, local_steps)
    assert difference(own.run, Run.load(groups(size) / name.replace(" ", "-"))) < 1e-12


@pytest.mark.parametrize("size", SIZES)
def test_callbacks_resuming_and_grids_work_in_a_group(groups, alone, size):
    assert difference(alone["several rounds, momentum"], Run.load(groups(size) / "resumed")) < 1e-13
    given, made, _ = group_cases.cases()["several rounds, momentum"]
    plans = [made, group_cases.plan(made.topology, c=0.3)]
    engine = decor.Vectorised(dtype="float64", noise="edges")
    grid = decor.sweep(
        given, plans, learning_rates=(0.1, 0.2), seeds=(3, 5), engine=engine, keep_models=True
    )
    for k, run in enumerate(grid.runs):
        assert difference(run, Run.load(groups(size) / f"grid-{k}")) < 1e-13
    secret = Run.load(groups(size) / "secret")
    assert (
        not secret.simulated
        and secret.manifest["seed"] == "secret"
        and len(next(iter(secret.models.values()))) == 12
    )


HEAD = f"""
import os, sys
sys.path.insert(0, {os.path.dirname(group_cases.__file__)!r})
import decor, group_cases
FIRST = os.environ["RANK"] == "0"
def say(line):  # in one piece: both write into one pipe
    os.write(1, f"{{name}}\\t{{line}}\\n".encode())
"""


@pytest.fixture(scope="module")
def scripts(tmp_path_factory):
    """Two processes run all SCRIPTS below in order; gives what they print in each, and a folder."""
    folder = tmp_path_factory.mktemp("group")
    runs = [
        f"name = {name!r}\nexec({script!r}, globals() | {{'name': name}})\n"
        for name, script in SCRIPTS.items()
    ]
    (folder / "script.py").write_text(HEAD + "".join(runs))
    command = [*TORCHRUN, "--nproc-per-node", "2", folder / "script.py"]
    ended = subprocess.run(
        command, env=QUIET, capture_output=True, text=True, timeout=300, cwd=folder
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    lines = [line.split("\t", 1) for line in ended.stdout.splitlines()]
    return lambda name: [line for script, line in lines if script == name], folder


DIFFERENT = """
engine = decor.ProcessGroup(seed=3)
given, made, options = group_cases.cases()["several rounds, momentum"]
other = given if FIRST else decor.tasks.breast_cancer(users=12)
for what in (
    (given, group_cases.plan(made.topology, s=0.02 if FIRST else 0.002), options),
    (other, made, options),
    (given, made, {"momentum": 0.5 * FIRST}),
):
    try:
        group_cases.train(engine, *what)
    except decor.InputError as problem:
        say(problem)
group_cases.train(engine, given, made, options)
"""


def test_processes_that_do_not_have_the_same_are_refused_by_name(scripts):
    """Otherwise the guarantee would be of rank 0's plan, and the noise of another."""
    lines, _ = scripts
    for what in ("plans", "data and model", "recipe"):
        # on both ranks
        assert sum(f"do not have the same {what};" in line for line in lines("different")) == 2


CALLBACKS = """
given, made, options = group_cases.cases()["several rounds, momentum"]
engine, seen = decor.ProcessGroup(seed=3), []
def once(moment):
    seen.append(moment)
def broken(moment):
    raise ValueError("on purpose")
run = group_cases.train(engine, given, made, options | {"callbacks": [once] if FIRST else []})
again = group_cases.train(engine, given, made, options | {"resume": run if FIRST else None})  # it is finished, and stays so
run.save("run")
if FIRST:
    try:
        seen[0].run()
    except decor.InputError as problem:
        say(f"too late: {problem}")
try:
    group_cases.train(engine, given, made, options | {"callbacks": [broken] if FIRST else []})
except (ValueError, decor.DecorError) as problem:
    say(f"ended: {problem}")
try:
    group_cases.train(engine, given, made, options | {"batch_size": 1000})
except decor.InputError as problem:
    say(f"refused: {problem}")
secret = decor.ProcessGroup(seed=None)
for resume, restarts in ((run if FIRST else None, "0"), (None, "0" if FIRST else "1")):
    os.environ["TORCHELASTIC_RESTART_COUNT"] = restarts
    try:
        group_cases.train(secret, given, made, options | {"resume": resume})
    except decor.InputError as problem:
        say(f"refused: {problem}")
os.environ["TORCHELASTIC_RESTART_COUNT"] = "0"
"""


def test_callbacks_of_the_first_process_are_asked_and_its_failure_ends_all(scripts):
    lines, folder = scripts
    said = "\n".join(lines("callbacks"))
    assert "too late: a run can be asked for while" in said
    assert (
        "ended: on purpose" in said and "ended: the first process has failed in a callback" in said
    )
    assert (
        said.count("batch_size 1000 is larger") == 2
        and said.count("a private run cannot be resumed") == 4
    )
    assert len(next(iter(Run.load(folder / "run").models.values()))) == 12


LISTENING = """
import hashlib, json
import numpy as np, torch, torch.distributed as dist
from decor.distributed.communicator import Communicator
from decor.noise import integer_gaussians, private_noise

comm, heard, originals = Communicator.from_environment("cpu"), [], {}
def tap(name, which):
    original = originals[name] = getattr(dist, name)
    def tapped(*arguments, **options):
        heard.extend(hashlib.sha256(t.contiguous().numpy().tobytes()).hexdigest() for t in which(*arguments))
        return original(*arguments, **options)
    setattr(dist, name, tapped)
tap("broadcast", lambda tensor, source: [tensor] if dist.get_rank() == source else [])
tap("all_reduce", lambda tensor: [tensor])
tap("all_gather", lambda to, tensor: [tensor])
tap("send", lambda tensor, to: [tensor])
tap("batch_isend_irecv", lambda operations: [o.tensor for o in operations if o.op is dist.isend])

def listened(engine, scale, **options):
    '''Digests of all that this process sends in a run of one step, for users of whom one has features so many times as large.'''
    heard.clear()
    rng = np.random.default_rng(0)
    X = [rng.normal(size=(9, 4)) for _ in range(6)]
    shards = [((scale if i == 4 else 1.0) * x, rng.integers(0, 2, 9)) for i, x in enumerate(X)]
    model = torch.nn.Linear(4, 1, bias=False).double()
    torch.nn.init.zeros_(model.weight)  # at zero a gradient grows with the features, and a clipped one stays as it is
    task = decor.Task(model, decor.losses.logistic, shards)
    plan = decor.NoisePlan(decor.ring(6), decor.Exposure(1e-3, 1), decor.Adversary.curious(), 0.02, 0.1)
    decor.train(task, plan, learning_rate=0.1, engine=engine, **options)
    return list(heard)

def known(self, random=None):
    self._value = hashlib.sha256(b"of rank %d" % comm.rank).digest() if random in (None, os.urandom) else random(32)

kept, private_noise.Secret.__init__ = private_noise.Secret.__init__, known
private = [listened(decor.ProcessGroup(seed=None), scale) for scale in (1.0, 4.0)]
private_noise.Secret.__init__ = kept
fresh = listened(decor.ProcessGroup(seed=None), 1.0)
simulated = [listened(decor.ProcessGroup(seed=3), scale) for scale in (1.0, 4.0)]
say(json.dumps([len(private[0]), private[0] == private[1], private[0] == fresh, simulated[0] == simulated[1]]))
for name, original in originals.items():
    setattr(dist, name, original)
"""


def test_of_a_private_run_nothing_travels_but_what_follows_from_the_integers_on_the_grid(scripts):
    """The same secrets twice, on data with equal clipped gradients but another loss and hash.

    A simulation sends a hash of the data and its loss, so there the same test sees a difference.
    """
    lines, _ = scripts
    heard = [json.loads(line) for line in lines("listening")]
    assert len(heard) == 2
    for count, same, fresh, simulated in heard:
        assert count > 5 and same and not fresh and not simulated


CROSSING = """
import json
import numpy as np
d, steps, seen = 4000, 3, []
task = decor.Task(decor.models.linear(d), decor.losses.squared, [(np.zeros((2, d)), np.zeros(2)) for _ in range(6)])
plan = decor.NoisePlan(decor.ring(6), decor.Exposure(1.0, steps), decor.Adversary.curious(), 0.02, 0.3)
engine = decor.ProcessGroup(seed=None, dtype="float64", on_messages=lambda t, m: seen.append(m[:, 0, 0].numpy().copy()))
run = decor.train(task, plan, learning_rate=1.0, engine=engine, gossip_rounds=0)
if FIRST:
    steps = np.diff(np.stack(seen), axis=0)
    memory = float(np.corrcoef(steps[0].ravel(), steps[1].ravel())[0, 1])
    say(json.dumps([float(steps.std()), float(steps.sum(1).std() / np.sqrt(6)), memory]))
    say(json.dumps(np.cov(steps[0]).tolist()))
    assert not run.simulated and "fingerprint" not in json.dumps(run.manifest)
"""


def test_edges_between_processes_cancel_in_a_private_run_and_every_rank_draws_its_own(scripts):
    lines, _ = scripts
    figures, covariance = (json.loads(line) for line in lines("crossing"))
    noise, own, memory = figures
    assert abs(own / 0.02 - 1) < 0.05, (
        "in the sum of all users each user's own noise is left, and no edge's"
    )
    assert abs(noise / np.hypot(0.02, 0.3 * np.sqrt(2)) - 1) < 0.05 and abs(memory) < 0.05
    expected = 0.02**2 * np.eye(6) + 0.3**2 * (
        2 * np.eye(6) - np.roll(np.eye(6), 1, 0) - np.roll(np.eye(6), -1, 0)
    )
    assert (np.abs(np.array(covariance) - expected) < 0.08 * expected.max()).all()


AUDIT = """
from decor.distributed.world import World
plan = decor.NoisePlan(decor.ring(3), decor.Exposure(1.0, 2), decor.Adversary.curious(), 1.0, 1.0)
audit = decor.audit(plan, engine=decor.ProcessGroup(), canaries=3000, steps=2)
say(f"{World.current().rank} {audit.passed} {str(audit)[:60]}")
"""


def test_the_first_process_has_the_audit_and_the_others_say_that_they_measured_nothing(scripts):
    lines, _ = scripts
    first, second = sorted(lines("audit"))
    assert (
        first.startswith("0 True PASS")
        and second.startswith("1 False FAIL")
        and "nothing was measured" in second
    )


SCRIPTS = {
    "different": DIFFERENT,
    "callbacks": CALLBACKS,
    "listening": LISTENING,
    "crossing": CROSSING,
    "audit": AUDIT,
}


def test_a_private_run_is_not_begun_again_by_processes_that_replace_others(tmp_path):
    """When a machine joins, torchrun restarts all, counts no restart and keeps its store."""
    script = tmp_path / "script.py"
    script.write_text(
        "import decor, numpy as np\n"
        "task = decor.Task(decor.models.linear(3), decor.losses.squared, [(np.ones((2, 3)), "
        "np.ones(2))] * 3)\n"
        "plan = decor.NoisePlan(decor.ring(3), decor.Exposure(1.0, 2), decor.Adversary.curious(), "
        "0.02, 0.3)\n"
        "for _ in range(2):  # who trains twice knows it\n"
        "    decor.train(task, plan, learning_rate=0.1, engine=decor.ProcessGroup(seed=None))\n"
    )
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True)
    told = {"RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": store.port}
    told |= {"TORCHELASTIC_USE_AGENT_STORE": True, "TORCHELASTIC_RESTART_COUNT": 0}
    environment = QUIET | {name: str(value) for name, value in told.items()}
    first, second = (
        subprocess.run(
            [sys.executable, script], env=environment, capture_output=True, text=True, timeout=240
        )
        for _ in range(2)
    )
    assert first.returncode == 0, first.stderr[-2000:]
    assert second.returncode == 1 and "a private run cannot be" in second.stderr


COMMAND = "-m decor train --task breast-cancer --users 8 --topology torus --epsilon 10".split()
COMMAND += "--learning-rate 0.01 --momentum 0.5 --evaluate-every 20".split()
GROUP = "--engine process-group --processes 2".split()


def worker(parent, rank):
    """The process of a rank among the children of torchrun."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if int((entry / "stat").read_text().rpartition(")")[2].split()[1]) != parent:
                continue
            if f"RANK={rank}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                return int(entry.name)
        except (OSError, ValueError):  # gone meanwhile
            continue
    return None


def taken(folder):
    """Steps of the run in a folder; the file may be replaced at any time."""
    manifest = folder / "manifest.json"
    return json.loads(manifest.read_text())["steps_taken"] if manifest.exists() else 0


def test_a_killed_rank_is_started_again_and_the_end_is_that_of_an_uninterrupted_run(tmp_path):
    steps = 800
    command = [*COMMAND, "--steps", str(steps)]
    torchrun = [*TORCHRUN, "--nproc-per-node", "2", "--max-restarts", "1"]
    with (tmp_path / "err").open("wb") as err:
        team = subprocess.Popen(
            [*torchrun, *command, "--checkpoint-every", "0.2", "--output", tmp_path / "run"],
            env=QUIET,
            stdout=err,
            stderr=err,
        )
        until = time.monotonic() + 240
        while not taken(tmp_path / "run"):
            assert team.poll() is None and time.monotonic() < until, (tmp_path / "err").read_text()
            time.sleep(0.05)
        os.kill(worker(team.pid, 1), signal.SIGKILL)
        assert taken(tmp_path / "run") < steps  # it was in the middle
        assert team.wait(timeout=240) == 0, (tmp_path / "err").read_text()
    killed = Run.load(tmp_path / "run")
    alone = [sys.executable, *command, *GROUP, "--output", tmp_path / "whole"]
    subprocess.run(alone, env=QUIET, check=True, capture_output=True, timeout=240)
    whole = Run.load(tmp_path / "whole")
    assert killed.stopped is None and killed.steps_taken == steps
    assert difference(whole, killed) == 0.0 and killed.history == whole.history


def test_the_command_refuses_in_one_sentence_what_would_lose_a_run(here, tmp_path):
    given, made, options = group_cases.cases()["user level"]
    group_cases.train(decor.Vectorised(), given, made, options).save(tmp_path / "a")
    to = ["--steps", "2", "--output", tmp_path / "a"]
    short = [*COMMAND[2:], *GROUP, *to]
    assert "holds a run" in here(*short, check=2).stderr
    torchrun = [*TORCHRUN, "--nproc-per-node", "2", "--max-restarts", "1", *COMMAND, *to]
    refused = subprocess.run(torchrun, env=QUIET, capture_output=True, text=True, timeout=240)
    # once, and once more where torchrun tries again
    assert refused.returncode != 0 and refused.stderr.count("decor: ") == 2
    assert "holds a run" in refused.stderr
    for words, said in (
        (["--processes", "9"], "from 1 to the 8 users"),
        (["--learning-rate", "-1"], "learning_rate must be"),
    ):
        assert said in here(*short, "--overwrite", *words, check=2).stderr


def test_alone_it_is_one_process_and_says_so():
    given, made, options = group_cases.cases()["user level"]
    run = group_cases.train(decor.ProcessGroup(dtype="float64", seed=3), given, made, options)
    assert run.manifest["engine"]["name"] == "process-group"
    with pytest.raises(decor.InputError, match="dtype must be"):
        decor.ProcessGroup(dtype="half")
    assert torch.get_num_threads() >= 1
