"""One run on several processes with a GPU: the results of one CPU."""

import subprocess
import sys

import group_cases
import pytest
import torch

import decor

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")


def difference(one, other):
    """The largest difference of two runs' models, relative to the largest parameter."""
    both = [(one.models[name].double(), other.models[name].double()) for name in one.models]
    largest = max(float(a.abs().max()) for a, _ in both)
    return max(float((a - b).abs().max()) for a, b in both) / largest


@pytest.mark.parametrize("size", [1, 2])
def test_processes_on_gpus_train_what_one_cpu_trains(tmp_path, size):
    """With one GPU two processes share it, and models travel through CPU memory (gloo)."""
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(size),
    ]
    subprocess.run([*torchrun, group_cases.__file__, tmp_path, "cuda"], check=True, timeout=300)
    engine = decor.Vectorised(dtype="float64", seed=3, noise="edges")
    for name, case in group_cases.cases().items():
        assert (
            difference(
                group_cases.trained(engine, *case),
                decor.Run.load(tmp_path / name.replace(" ", "-")),
            )
            < 2e-6
        ), name
