"""Beside others, in one process and on the same numbers: private steps beside Opacus, epsilons
beside dp-accounting.

    python benchmarks/beside.py                # all rows, one JSON object a line python
    benchmarks/beside.py clipping       # rows of one kind: clipping, epsilon python
    benchmarks/beside.py --table benchmarks/beside.jsonl      # the tables of docs/benchmarks.md

A row whose package is missing says so and stays empty: pip install opacus dp-accounting. CPU time,
one thread, best of several; each kind in a process of its own, its rows in turn so that the
machine's mood meets all of them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import warnings
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

USERS, BATCH, RECORDS, CLIP, SIZES = 16, 64, 256, 1.0, (784, 128, 10)


def row(what: str, **values) -> None:
    print(
        json.dumps(
            {"benchmark": "beside", "what": what} | values | {"load": round(os.getloadavg()[0], 2)}
        ),
        flush=True,
    )


def installed(package: str) -> str | None:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return None


def cpu(work) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def clipping() -> None:
    """A private step of 16 users, each with a model and 64 records of its own: clipped one by one,
    summed, noised, taken.
    """
    ways = {"decor.train, with gossip": ours()}
    theirs = installed("opacus")
    for mode in ("hooks", "ghost"):
        name = f"Opacus, {'GradSampleModule' if mode == 'hooks' else 'ghost clipping'}"
        if theirs is None:
            row(name, kind="clipping", skipped="opacus is not installed")
        else:
            ways[name] = opacus(mode)
    best = dict.fromkeys(ways, float("inf"))
    shortest, longest = dict(best), dict(best)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Opacus' hooks
        for _ in range(5):
            for name, steps in ways.items():
                shortest[name] = min(shortest[name], cpu(lambda s=steps: s(4)))
                longest[name] = min(longest[name], cpu(lambda s=steps: s(24)))
    best = {name: (longest[name] - shortest[name]) / 20 for name in ways}
    for name, seconds in best.items():
        by = f"decor {version('decor-dp')}" if name.startswith("decor") else theirs
        row(
            name,
            kind="clipping",
            by=by,
            ms=round(1e3 * seconds, 2),
            times_ours=round(seconds / best["decor.train, with gossip"], 1),
        )


def data():
    import torch

    generator = torch.Generator().manual_seed(0)
    return [
        (
            torch.randn(RECORDS, SIZES[0], generator=generator),
            torch.randint(0, SIZES[-1], (RECORDS,), generator=generator),
        )
        for _ in range(USERS)
    ]


def ours():
    """What a person calls: `decor.train` at example level, Poisson batches of 64, one round of
    gossip on a ring.
    """
    import decor

    task = decor.Task(decor.models.mlp(*SIZES), decor.losses.cross_entropy, data(), test=data()[0])

    def steps(many: int) -> None:
        exposure = decor.Exposure(
            clip=CLIP, steps=many, unit="example", batch_size=BATCH, records=RECORDS
        )
        plan = decor.NoisePlan(
            decor.ring(USERS), exposure, decor.Adversary.eavesdropper(), 0.05, 0.3
        )
        decor.train(
            task, plan, learning_rate=0.1, engine=decor.Vectorised(threads=1), evaluate_every=10**6
        )

    return steps


def opacus(mode: str):
    """What a person calls: `PrivacyEngine.make_private`, once for every user, then the optimiser's
    steps.
    """
    import torch
    from opacus import PrivacyEngine
    from torch.utils.data import DataLoader, TensorDataset

    import decor

    torch.set_num_threads(1)
    users = []
    for X, y in data():
        module = decor.models.mlp(*SIZES)
        options = {"criterion": torch.nn.CrossEntropyLoss()} if mode == "ghost" else {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = PrivacyEngine().make_private(
                module=module,
                optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
                data_loader=DataLoader(TensorDataset(X, y), batch_size=BATCH),
                noise_multiplier=1.0,
                max_grad_norm=CLIP,
                poisson_sampling=False,
                grad_sample_mode=mode,
                **options,
            )
        loss = made[2] if mode == "ghost" else torch.nn.CrossEntropyLoss()
        users.append((made[0], made[1], loss, X, y))

    def steps(many: int) -> None:
        for t in range(many):
            at = BATCH * (t % (RECORDS // BATCH))
            for module, optimiser, loss, X, y in users:
                optimiser.zero_grad()
                loss(module(X[at : at + BATCH]), y[at : at + BATCH]).backward()
                optimiser.step()

    return steps


SETTINGS = (
    # name, unit, noise multiplier, steps, delta, sampling
    ("one user, 1,000 steps", "user", 30.0, 1000, 1e-5, None),
    ("one user, 10,000 steps, delta 1e-12", "user", 100.0, 10_000, 1e-12, None),
    (
        "one record of 3,750, batches of 64 (Poisson), 1,000 steps",
        "example",
        1.05,
        1000,
        1e-5,
        "poisson",
    ),
    (
        "one record of 3,750, batches of 64 (Poisson), 10,000 steps",
        "example",
        2.0,
        10_000,
        1e-5,
        "poisson",
    ),
    (
        "one record of 60,000, batches of 256 (Poisson), 10,000 steps, delta 1e-7",
        "large",
        0.8,
        10_000,
        1e-7,
        "poisson",
    ),
    (
        "one record of 3,750, batches of 64 (fixed size), 1,000 steps",
        "example",
        2.32,
        1000,
        1e-5,
        "fixed",
    ),
)


def epsilon() -> None:
    """The same noise accounted by three.

    dp-accounting knows no graph: it is told what noise is left of the graph's, by us.
    """
    import decor

    theirs = installed("dp-accounting")
    for name, unit, z, steps, delta, sampling in SETTINGS:
        batch, records = (256, 60_000) if unit == "large" else (64, 3750)
        how = (
            {"unit": "example", "batch_size": batch, "records": records, "sampling": sampling}
            if sampling
            else {}
        )
        exposure = decor.Exposure(clip=1.0, steps=steps, **how)
        deviation = sigma(z, batch if sampling else None)
        other, plan = (
            decor.NoisePlan(
                decor.complete(2), exposure, decor.Adversary.everyone(), deviation * factor, 0.0
            )
            for factor in (1.01, 1.0)
        )
        other.guarantee(delta)  # imports and tables; nothing of this answer serves the next
        found = {}
        seconds = cpu(lambda p=plan, d=delta, f=found: f.update(ours=p.guarantee(d).epsilon))
        values = {
            "kind": "epsilon",
            "ours": found["ours"],
            "ours_s": round(seconds, 4),
            "by": theirs,
        }
        if theirs is None:
            values["skipped"] = "dp-accounting is not installed"
        else:
            values |= accounted(
                z, steps, delta, None if sampling is None else (sampling, batch, records)
            )
        row(name, **values)


def sigma(z: float, batch: int | None) -> float:
    """Of a user's own noise, with a noise multiplier of z: of 2 clip for a user, of clip / batch
    for a record.
    """
    return 2 * z if batch is None else z / batch


def accounted(z: float, steps: int, delta: float, sampled: tuple[str, int, int] | None) -> dict:
    import dp_accounting
    from dp_accounting import pld, rdp

    step = dp_accounting.GaussianDpEvent(z)
    relation = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    if sampled is not None and sampled[0] == "poisson":
        step = dp_accounting.PoissonSampledDpEvent(sampled[1] / sampled[2], step)
    elif sampled is not None:
        # a record replaced moves a sum by twice the clip
        step = dp_accounting.SampledWithoutReplacementDpEvent(
            sampled[2], sampled[1], dp_accounting.GaussianDpEvent(z / 2)
        )
        relation = dp_accounting.NeighboringRelation.REPLACE_ONE
    event, found = dp_accounting.SelfComposedDpEvent(step, steps), {}
    for name, accountant in (("pld", pld.PLDAccountant), ("rdp", rdp.RdpAccountant)):
        try:
            seconds = cpu(
                lambda n=name, a=accountant: found.update(
                    {n: a(neighboring_relation=relation).compose(event).get_epsilon(delta)}
                )
            )
            found[f"{name}_s"] = round(seconds, 4)
        except (dp_accounting.UnsupportedEventError, NotImplementedError, ValueError) as problem:
            found[f"{name}_refused"] = str(problem).splitlines()[0][:100]
    return found


def tables(rows: list[dict]) -> str:
    lines = [
        "| a private step, 16 users x 64 records, 784-128-10 | with | CPU ms | times ours |",
        "|---|---|---|---|",
    ]
    for one in (r for r in rows if r["kind"] == "clipping"):
        told = (
            (one["skipped"], "", "")
            if "skipped" in one
            else (one["by"], one["ms"], one["times_ours"])
        )
        lines.append("| " + " | ".join(map(str, (one["what"], *told))) + " |")
    lines += [
        "",
        "| epsilon of the same noise | ours | dp-accounting, PLD | dp-accounting, RDP | CPU ms: "
        "ours, PLD, RDP |",
        "|---|---|---|---|---|",
    ]
    for one in (r for r in rows if r["kind"] == "epsilon"):
        figures = [f"{one['ours']:.4f}"]
        figures += [
            f"{one[k]:.4f}" if k in one else "not offered" if f"{k}_refused" in one else ""
            for k in ("pld", "rdp")
        ]
        seconds = ", ".join(
            f"{1e3 * one[f'{k}_s']:.3g}" if f"{k}_s" in one else "-" for k in ("ours", "pld", "rdp")
        )
        lines.append(f"| {one['what']} | {' | '.join(figures)} | {seconds} |")
    return "\n".join(lines)


KINDS = {"clipping": clipping, "epsilon": epsilon}

if __name__ == "__main__":
    words = sys.argv[1:]
    if words[:1] == ["--table"]:
        print(tables([json.loads(line) for line in Path(words[1]).read_text().splitlines()]))
    elif words[:1] == ["--one"]:
        KINDS[words[1]]()
    else:
        for kind in KINDS:
            if not words or any(word in kind for word in words):
                subprocess.run([sys.executable, __file__, "--one", kind], check=True)
