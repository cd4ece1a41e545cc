"""What a step costs on one process and on several, and the bytes that travel. One JSON row each.

    python benchmarks/process_group.py [time] [bytes]

`time`: MNIST (DECOR_DATA), the network 784-128-10, 256 users on a ring, batches of 64, example
level: milliseconds a step of one process and of two, started by torchrun with one thread each, in
turn; a step is the difference between a long and a short run. Beside them the simulator in one
process, with as many threads as it likes. `bytes`: 32 users a process on a ring and on a torus, 1
to 8 processes: bytes that the busiest process sends in a step, counted where they are sent.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

FEW, MANY = 4, 24
QUIET = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def torchrun(processes: int, *words: str) -> list[str]:
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(processes),
        __file__,
        *words,
    ]
    done = subprocess.run(command, env=os.environ | QUIET, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return done.stdout.splitlines()


def train(engine: object, users: int, steps: int) -> float:
    """Seconds of a run on MNIST."""
    import decor

    task = decor.tasks.mnist(users=users, seed=0)
    exposure = decor.Exposure(
        clip=1.0, steps=steps, unit="example", batch_size=64, records=task.records
    )
    plan = decor.NoisePlan(decor.ring(users), exposure, decor.Adversary.eavesdropper(), 0.05, 0.3)
    began = time.perf_counter()
    decor.train(task, plan, learning_rate=0.1, engine=engine, evaluate_every=10**6)
    return time.perf_counter() - began


def worker(what: str) -> None:
    """In every process: milliseconds a step, three times; the first process prints them."""
    import decor
    from decor.distributed.world import World

    engine = (
        decor.ProcessGroup()
        if what == "team"
        else decor.Vectorised(threads=1 if what == "one thread" else None)
    )
    train(engine, 256, 2)
    found = []
    for _ in range(3):
        short = train(engine, 256, FEW)
        found.append(1e3 * (train(engine, 256, MANY) - short) / (MANY - FEW))
    if World.current().is_first:
        print(json.dumps(found))


def timed() -> dict[str, object]:
    tries: dict[str, list[float]] = {"one process": [], "two processes": []}
    for _ in range(2):
        for name, processes in (("one process", 1), ("two processes", 2)):
            tries[name] += json.loads(torchrun(processes, "worker", "team")[-1])
    for name in ("one thread", "as many threads as help"):
        alone = subprocess.run(
            [sys.executable, __file__, "worker", name], capture_output=True, text=True, check=True
        )
        tries[f"vectorised, {name}"] = json.loads(alone.stdout.splitlines()[-1])
    best = {name: min(values) for name, values in tries.items()}
    return {
        "what": "MNIST, 256 users on a ring, batch 64, example level: ms a step",
        **{name: [round(value, 1) for value in sorted(values)] for name, values in tries.items()},
        "times_faster": round(best["one process"] / best["two processes"], 3),
        "reach": 1.6,
    }


def count(name: str, users: int) -> None:
    """In every process: bytes sent in a step, by counting what goes into torch.distributed."""
    import torch

    import decor
    from decor.distributed import communicator
    from decor.distributed.world import World

    sent, real = [0], communicator.Communicator.start_exchange

    def counted(self: communicator.Communicator, out: list, come: list) -> list:
        sent[0] += sum(numbers.numel() * numbers.element_size() for _, numbers in out)
        return real(self, out, come)

    communicator.Communicator.start_exchange = counted  # type: ignore[method-assign]
    topology = decor.ring(users) if name == "ring" else decor.torus(8, users // 8)
    shards = [(torch.zeros(2, 784), torch.arange(2))] * users
    task = decor.Task(decor.models.mlp(784, 128, 10), decor.losses.cross_entropy, shards)
    plan = decor.NoisePlan(
        topology, decor.Exposure(clip=1.0, steps=4), decor.Adversary.eavesdropper(), 0.05, 0.3
    )
    decor.train(task, plan, learning_rate=0.1, engine=decor.ProcessGroup(), evaluate_every=10**6)
    most = torch.tensor(sent[0] / 4)
    torch.distributed.all_reduce(most, torch.distributed.ReduceOp.MAX)
    if World.current().is_first:
        print(json.dumps(float(most)))


def bytes_() -> dict[str, object]:
    model = 4 * (785 * 128 + 129 * 10)
    found: dict[str, dict[str, float]] = {}
    for name in ("ring", "torus"):
        for processes in (1, 2, 4, 8):
            most = json.loads(torchrun(processes, "count", name, str(32 * processes))[-1])
            found.setdefault(name, {})[str(processes)] = round(most / model, 2)
    return {
        "what": "models that the busiest process sends in a step, 32 users each",
        "model_bytes": model,
        **found,
    }


def main() -> None:
    words = sys.argv[1:]
    if words[:1] == ["worker"]:
        worker(words[1])
    elif words[:1] == ["count"]:
        count(words[1], int(words[2]))
    else:
        rows = {"time": timed, "bytes": bytes_}
        for name in words or rows:
            print(json.dumps({"benchmark": "process_group", **rows[name]()}), flush=True)


if __name__ == "__main__":
    main()
