"""The process that starts users: what its caller may have done before, what it is sent, and that no
process outlives the others.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest
import torch
from command_server import decor_command

import decor
from decor.federation.peers_engine import split_by_user
from decor.federation.process_starter import ProcessStarter, Work, _file_of
from decor.federation.user_files import UserFiles
from decor.learning.recipe import Recipe
from decor.net.identity import Identity
from decor.training.engine import Setting

CALLER = """
import os, sys, threading, torch, decor

def no_fork(*_):
    raise AssertionError("the caller's process forks itself")

os.fork = os.forkpty = no_fork
device = sys.argv[1]
# autograd's threads, and one of our own
weights = torch.ones(50, 50, requires_grad=True, device=device)
(weights @ weights).sum().backward()
threading.Thread(target=threading.Event().wait, daemon=True).start()
scale = 0.5

class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.LayerNorm(5), torch.nn.Linear(5, 3))

    def forward(self, X):
        return scale * self.layers(X)

def train():
    smoothing = 0.1
    loss = lambda output, y: torch.nn.functional.cross_entropy(output, y, label_smoothing=smoothing)
    torch.manual_seed(0)
    shards = [(torch.randn(20, 6), torch.randint(0, 3, (20,))) for _ in range(3)]
    plan = decor.calibrate(decor.ring(3), decor.Exposure(1.0, 4), decor.Adversary.curious(), decor.Budget(10.0, 1e-5))
    return decor.train(decor.Task(Scaled(), loss, shards), plan, learning_rate=0.1, engine=decor.Peers())

run = train()
print(run.steps_taken, sorted(run.models)[0], torch.isfinite(run.models["layers.0.weight"]).all().item())
"""
"""A program without `if __name__ == "__main__"`, with a model, a loss and a closure of its own."""

pytestmark = pytest.mark.usefixtures("new_interpreter")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_caller_that_has_used_autograd_and_threads_starts_users_and_never_forks(device, tmp_path):
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no GPU here that torch can use")
    (tmp_path / "caller.py").write_text(CALLER)
    command = [sys.executable, tmp_path / "caller.py", device]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.stdout == "4 layers.0.bias True\n", done.stderr[-3000:]


def test_decor_up_leaves_torch_to_the_starter(trial):
    code = (
        "import sys; from decor.cli.main import main; code = main(sys.argv[1:]); "
        "sys.exit(code or 100 * ('torch' in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "up", "trial/federation.toml"],
        cwd=trial,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "The average of all models is right on" in done.stdout


@pytest.mark.parametrize(
    "killed", ["the caller", "the caller and the starter", "the caller of a user that hangs"]
)
def test_when_the_caller_is_killed_no_process_is_left(killed, long_trial):
    with up(long_trial) as caller:
        everyone = wait_for_work(caller, long_trial)
        # the caller is the first of its session, and the starter its only child
        (starter,) = [pid for pid in everyone if parent(pid) == caller.pid]
        if "hangs" in killed:
            os.kill(max(everyone), signal.SIGSTOP)
        os.kill(caller.pid, signal.SIGKILL)
        if "starter" in killed:
            os.kill(starter, signal.SIGKILL)
        wait_until(lambda: not session(caller.pid))
        assert caller.wait() == -signal.SIGKILL


def test_ctrl_c_stops_everyone_in_good_order(long_trial):
    with up(long_trial) as caller:
        wait_for_work(caller, long_trial)
        # as a terminal does: to every process of the group
        os.killpg(caller.pid, signal.SIGINT)
        _, errors = caller.communicate(timeout=240)
        assert caller.returncode == 130 and errors.endswith("decor: interrupted\n")
        assert "Traceback" not in errors and not session(caller.pid)
    for log in (long_trial / "trial" / "run").glob("*.log"):
        assert "event=stopped" in log.read_text(), "every user has saved its model"


def test_private_keys_are_in_no_argument_environment_or_file(starter, tmp_path):
    identities = [Identity.new() for _ in range(3)]
    task = decor.tasks.breast_cancer(users=3, seed=0)
    terms, files = make_terms(task, identities), make_files(tmp_path)
    starter.prepare(terms, identities, partial(split_by_user, task), files)
    pids = [starter.pid, *starter.start(0)]
    wait_until((tmp_path / "user-0.ledger.socket").exists)
    with _file_of(Work(terms, partial(split_by_user, task), files, False, None)) as file:
        file.seek(0)
        seen = [file.read()]
    for pid in pids:
        seen += [Path(f"/proc/{pid}/{name}").read_bytes() for name in ("cmdline", "environ")]
    seen += [each.read_bytes() for each in tmp_path.rglob("*") if each.is_file()]
    for identity in identities:
        key = identity.key.private_bytes_raw()
        assert not any(form in text for text in seen for form in (key, key.hex().encode()))


def test_shards_that_are_parts_of_one_array_are_sent_once(tmp_path):
    X = torch.zeros(1600, 100)
    shards = [(X[100 * k : 100 * (k + 1)], torch.zeros(100)) for k in range(16)]
    task = decor.Task(decor.models.linear(100), decor.losses.squared, shards)
    terms = make_terms(decor.tasks.breast_cancer(users=3, seed=0), [Identity.new()] * 3)
    work = Work(terms, partial(split_by_user, task), make_files(tmp_path), False, None)
    with _file_of(work) as file:
        assert os.fstat(file.fileno()).st_size < 1.2 * X.numel() * X.element_size()


class Locked(torch.nn.Linear):
    def __init__(self):
        super().__init__(30, 1)
        self.lock = threading.Lock()


def test_what_cannot_be_sent_is_named(starter, tmp_path):
    lock, usual = threading.Lock(), decor.tasks.breast_cancer(users=3, seed=0)

    def guarded(output, y):
        with lock:
            return output.mean()

    terms = make_terms(usual, [Identity.new() for _ in range(3)])
    for model, loss, named in (
        (usual.model, guarded, "the loss of the task cannot be sent"),
        (Locked(), decor.losses.squared, "the model of the task cannot be sent"),
    ):
        task = decor.Task(model, loss, usual.shards)
        with pytest.raises(decor.InputError, match=f"{named}.*cannot pickle '_thread.lock' object"):
            starter.prepare(terms, [], partial(split_by_user, task), make_files(tmp_path))


def refuse(task):
    raise decor.BudgetError("not on this machine")


def test_what_fails_in_the_starter_is_an_error_of_the_caller(starter, tmp_path):
    task = decor.tasks.breast_cancer(users=3, seed=0)
    terms, files = make_terms(task, [Identity.new()] * 3), make_files(tmp_path)
    with pytest.raises(decor.BudgetError, match="not on this machine"):
        starter.prepare(terms, [], partial(refuse, task), files)
    with pytest.raises(decor.InputError, match="cannot be made anew .*: ZeroDivisionError"):
        starter.prepare(terms, [], partial(divmod, 1, 0), files)
    starter.prepare(terms, [], partial(split_by_user, task), files)


def test_the_users_have_the_default_dtype_of_the_caller(starter, tmp_path):
    task = decor.tasks.breast_cancer(users=3, seed=0)
    terms, files = make_terms(task, [Identity.new()] * 3), make_files(tmp_path)
    torch.set_default_dtype(torch.float64)
    try:
        with pytest.raises(decor.InputError, match="torch.float64"):
            starter.prepare(terms, [], partial(tell_dtype, task), files)
    finally:
        torch.set_default_dtype(torch.float32)


def tell_dtype(task):
    raise TypeError(torch.get_default_dtype())


def test_a_starter_that_dies_before_anything_is_started_is_reported(starter, tmp_path):
    task = decor.tasks.breast_cancer(users=3, seed=0)
    terms, files = make_terms(task, [Identity.new()] * 3), make_files(tmp_path)
    os.kill(starter.pid, signal.SIGKILL)
    with pytest.raises(decor.DecorError, match="the process that starts the users ended with code"):
        starter.prepare(terms, [], partial(split_by_user, task), files)


def test_no_module_of_the_working_folder_takes_the_place_of_another(tmp_path, monkeypatch):
    (tmp_path / "json.py").write_text("raise SystemExit('the wrong module')")
    monkeypatch.chdir(tmp_path)
    task = decor.tasks.breast_cancer(users=3, seed=0)
    terms = make_terms(task, [Identity.new()] * 3)
    with ProcessStarter() as starter:
        starter.prepare(terms, [], partial(split_by_user, task), make_files(tmp_path))


@pytest.fixture
def starter():
    with ProcessStarter() as one:
        yield one


@pytest.fixture
def trial(tmp_path):
    return make_trial(tmp_path, steps=5)


@pytest.fixture
def long_trial(tmp_path):
    """It takes longer than any test waits."""
    return make_trial(tmp_path, steps=100_000)


def make_trial(folder, steps):
    new = (
        f"federation new --task breast-cancer --users 3 --epsilon 10 --steps {steps} --output trial"
    )
    command = [*decor_command(), *new.split()]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=300)
    return folder


def up(folder):
    """`decor up` as the first process of a session of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "decor", "up", "trial/federation.toml"],
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for_work(caller, folder):
    """All processes of `decor up`, once every user has taken a step."""

    def is_at_work():
        assert caller.poll() is None, caller.stderr.read()
        logs = [log.read_text() for log in (folder / "trial" / "run").glob("*.log")]
        return sum('event="at work"' in log for log in logs) == 3

    wait_until(is_at_work)
    everyone = session(caller.pid)
    assert len(everyone) == 5, "the caller, the starter and three users"
    return everyone


def wait_until(condition, seconds=240):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


def session(leader):
    """The running processes of a session."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, number = stat.read_text().rpartition(")")[2].split()[:4]
        except OSError:  # gone meanwhile
            continue
        if int(number) == leader and state != "Z":
            found.append(int(stat.parent.name))
    return found


def parent(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def make_terms(task, identities):
    plan = decor.calibrate(
        decor.ring(3),
        decor.Exposure(1.0, 5),
        decor.Adversary.eavesdropper(),
        decor.Budget(10.0, 1e-5),
    )
    return decor.Peers().terms(
        task, Setting(plan, 1.0, 0), Recipe(gossip_rounds=1), identities, 1e-5
    )


def make_files(folder):
    return [UserFiles(k, f"user-{k}", folder) for k in range(3)]
