"""How large the container image is, and how fast a node starts in it. One JSON row each.

    python benchmarks/container.py FOLDER [--bind PATH ...] [--env NAME=VALUE ...] [--real-time]

Needs root. Where FOLDER has no image yet, the Containerfile's steps are run there with everything
installed in full (tests/deploy/containers.py, which needs no container runtime). PATHs are what
this machine needs for pip, such as /etc/resolv.conf and /etc/ssl; they are in no image. The size
does not include the base image, whose Python and libraries are this machine's.

A node has started when the image's health check succeeds, and has taken a step when its log says
so. It starts in a container: read-only, as an unprivileged user. `empty`: its volume was empty, as
a folder of the host is; else it was a new volume, which begins with what the image has compiled.
`cold`: no file of the image was in memory. On a machine that is busy with other things,
`--real-time` has bonn's start go before them, as if it were idle.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "deploy"))

from containers import NAMES, Runtime, run_page  # noqa: E402

TRIES = 3
BASE_MB = 130
"""Of python:3.11-slim, as others report it: here it is not measured."""


def build(runtime: Runtime, environment: dict[str, str]) -> dict[str, object]:
    began = time.perf_counter()
    path = f"{sys.base_prefix}/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
    runtime.build({"PATH": path, **environment})
    load, seconds = round(os.getloadavg()[0], 1), round(time.perf_counter() - began, 1)
    return {"what": "build", "s": seconds, "load": load, "cores": os.cpu_count()}


def disk_bytes(folder: Path) -> int:
    done = subprocess.run(["du", "-s", "-B1", folder], capture_output=True, text=True, check=True)
    return int(done.stdout.split()[0])


def size(runtime: Runtime) -> dict[str, object]:
    installed = runtime.root / "opt/decor"
    libraries = next(installed.glob("lib/python*/site-packages"))
    largest = sorted(libraries.iterdir(), key=disk_bytes, reverse=True)[:5]
    own = round(disk_bytes(installed) / 1e6)
    return {
        "what": "size",
        "mb": own,
        "image_mb_estimated": own + BASE_MB,
        "largest_mb": {each.name: round(disk_bytes(each) / 1e6) for each in largest},
    }


def drop_from_memory(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Trial:
    """bonn, ulm, kiel and a relay that runs, with keys, ledgers and a federation file."""

    def __init__(self, runtime: Runtime, is_real_time: bool) -> None:
        for name in ("volumes", "federation", "data", "deploy", "fresh"):
            path = runtime.folder / name
            path.unlink() if path.is_symlink() else shutil.rmtree(path, ignore_errors=True)
        run_page(runtime)
        self.runtime, self.is_real_time = runtime, is_real_time
        self.fresh = runtime.folder / "fresh"
        runtime.volume("bonn").parent.rename(self.fresh)
        runtime.up("relay")
        runtime.wait_healthy("relay")

    def renew(self, is_empty: bool) -> None:
        """Volumes as before the first start."""
        for name in NAMES:
            volume = self.runtime.volume(name)
            shutil.rmtree(volume, ignore_errors=True)
            subprocess.run(["cp", "--archive", self.fresh / name, volume], check=True)
            if is_empty:
                shutil.rmtree(volume / "cache")

    def start(self) -> tuple[float, float]:
        """Seconds until bonn is healthy, and the CPU seconds that it has used."""
        if self.is_real_time:
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
        began = time.perf_counter()
        self.runtime.up("bonn")
        self.runtime.wait_healthy("bonn")
        seconds = time.perf_counter() - began
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        return seconds, cpu_seconds(self.runtime.process("bonn"))

    def first_step(self) -> float:
        """Seconds from bonn's last connection to the end of its first step."""
        log = self.runtime.log("bonn")
        self.runtime.up("ulm", "kiel")
        while log.read_text().count('"event": "connected"') < 2:
            time.sleep(0.01)
        connected = time.perf_counter()
        while '"event": "at work"' not in log.read_text():
            time.sleep(0.01)
        seconds = time.perf_counter() - connected
        if codes := [code for name in NAMES if (code := self.runtime.started[name].wait())]:
            raise RuntimeError(f"nodes ended with {codes}")
        return seconds


def measure(trial: Trial, is_cold: bool, is_empty: bool) -> dict[str, object]:
    tries = []
    for number in range(TRIES):
        trial.renew(is_empty)
        if is_cold:
            drop_from_memory(trial.runtime.root)
        tries.append(trial.start())
        if number < TRIES - 1:
            trial.runtime.kill("bonn")
    return {
        "what": "start",
        "cold": is_cold,
        "empty": is_empty,
        "healthy_s": [round(seconds, 2) for seconds, _ in tries],
        "cpu_s": [round(cpu, 2) for _, cpu in tries],
        "first_step_s": round(trial.first_step(), 2),
        "real_time": trial.is_real_time,
        "load": round(os.getloadavg()[0], 1),
        "cores": os.cpu_count(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--bind", action="append", default=[])
    parser.add_argument("--env", action="append", default=[])
    parser.add_argument("--real-time", action="store_true")
    options = parser.parse_args()
    binds = {path: path for path in (sys.base_prefix, *options.bind)}
    runtime = Runtime(options.folder.resolve(), binds)
    if not runtime.state.exists():
        options.folder.mkdir(parents=True, exist_ok=True)
        show(build(runtime, dict(each.split("=", 1) for each in options.env)))
    show(size(runtime))
    with runtime:
        trial = Trial(runtime, options.real_time)
        for is_cold, is_empty in ((False, False), (True, False), (False, True)):
            show(measure(trial, is_cold, is_empty))


def show(row: dict[str, object]) -> None:
    print(json.dumps({"benchmark": "container", **row}), flush=True)


if __name__ == "__main__":
    main()
