"""The image, and three institutions and a relay that run from it: the Containerfile's own steps, the
commands of the documentation, and compose.yaml, as `containers.py` runs them.
"""

import json
import os
import re
import shlex
import signal
import sys
import tomllib
from importlib.metadata import distribution
from pathlib import Path

import pytest
from containers import (
    COMPOSE,
    NAMES,
    ROOT,
    Runtime,
    instructions,
    page_blocks,
    read_compose,
    renewal,
    run_docker,
    run_page,
    why_not,
)
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from decor.cli.main import parser
from decor.federation.federation import Federation
from decor.results.run import Run

DEPLOY = COMPOSE.parent
USER = 10001
BUILDER = ("hatchling", "packaging", "pathspec", "pluggy", "trove-classifiers")
"""What makes a wheel of a checkout."""


def pins():
    """Library -> its one version in the image."""
    lines = (DEPLOY / "requirements.txt").read_text().splitlines()
    found = [Requirement(line) for line in lines if not line.startswith("#")]
    assert all(re.fullmatch(r"==[\w.]+", str(each.specifier)) for each in found)
    return {canonicalize_name(each.name): str(each.specifier)[2:] for each in found}


def required():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    return [
        Requirement(each) for each in (*project["dependencies"], *extras["train"], *extras["peer"])
    ]


# what the files say


def test_the_image_has_what_a_node_requires_in_versions_that_the_project_allows():
    pinned = pins()
    missing = set()
    for each in required():
        name = canonicalize_name(each.name)
        if name in pinned:
            assert pinned[name] in each.specifier, each
        else:
            missing.add(name)
    assert missing == {"matplotlib", "scikit-learn"}
    assert f"torch=={pinned['torch']}" in (ROOT / "constraints.txt").read_text()


def test_the_image_is_made_by_install_sh_and_runs_as_a_user_without_a_name_in_the_host():
    steps = instructions()
    bases = [rest.split()[0] for word, rest in steps if word == "FROM"]
    assert set(bases) == {"docker.io/library/python:${PYTHON_VERSION}-slim"}
    (call,) = [rest for word, rest in steps if word == "RUN" and "install.sh" in rest]
    assert call.split()[1:] == ["/source/deploy/install.sh", "/opt/decor", "/source"]
    assert dict(steps)["USER"] == f"{USER}:{USER}"
    # what follows USER runs as that user: nothing may be installed there
    after = [word for word, _ in steps][[word for word, _ in steps].index("USER") :]
    assert not {"RUN", "COPY", "ADD"} & set(after)


@pytest.mark.parametrize("service", read_compose()["services"])
def test_every_command_of_the_compose_file_is_one_that_decor_has(service):
    described = read_compose()["services"][service]
    options = parser().parse_args(shlex.split(described["command"]))
    # where the image's health check asks
    health = dict(instructions())["HEALTHCHECK"]
    assert f"'127.0.0.1', {options.metrics}," in health and "'/healthz'" in health
    places = {text.split(":")[1] for text in described["volumes"]}
    files = [getattr(options, name, None) for name in ("file", "data")] + getattr(
        options, "files", []
    )
    assert all(f"/{name.split('/')[1]}" in places for name in files if name)
    if service in NAMES:
        assert (
            described["networks"] == [service]
            and f"{service}:/var/lib/decor" in described["volumes"]
        )
        assert options.identity == f"{service}.key" and options.ledger == f"{service}.ledger"
    # all logs are collected in the same way
    assert options.log_format == "json"


def test_no_network_joins_two_institutions_and_no_volume_has_two_owners():
    compose = read_compose()
    for network in compose["networks"]:
        members = {n for n, each in compose["services"].items() if network in each["networks"]}
        assert len(members) == 2 and "relay" in members
    owners = [each["volumes"] for each in compose["services"].values()]
    named = [text for volumes in owners for text in volumes if not text.startswith(".")]
    assert len(set(named)) == len(named) == len(compose["volumes"])


def test_every_decor_command_of_the_page_is_one_that_decor_has():
    lines = [*"".join(page_blocks()).replace("\\\n", " ").splitlines(), *renewal()]
    found = 0
    for line in lines:
        words = shlex.split(line.partition(" > ")[0])
        if words[:3] == ["docker", "compose", "run"] and "--entrypoint" not in words:
            parser().parse_args(words[words.index("--no-deps") + 2 :])
            found += 1
    assert found == 10


# what runs


@pytest.fixture(scope="module")
def runtime(tmp_path_factory):
    if reason := why_not():
        pytest.skip(f"containers cannot be imitated here: {reason}")
    folder = tmp_path_factory.mktemp("containers")
    # not all that this environment has: only what the image has, and what makes a wheel
    libraries = folder / "libraries"
    libraries.mkdir()
    for name in (*pins(), *BUILDER):
        for file in distribution(name).files:
            first, place = file.parts[0], libraries / file.parts[0]
            if first not in ("..", "__pycache__") and not place.exists():
                place.symlink_to(file.locate().parents[len(file.parts) - 1] / first)
    prefixes = {each: each for each in (sys.base_prefix, sys.prefix)}
    made = Runtime(folder, {**prefixes, "/libraries": str(libraries)})
    path = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
    made.build({"PATH": path, "PYTHON": sys.executable, "LIBRARIES": "/libraries"})
    with made:
        yield made


def contents(folder):
    """Every file of a root but those of its mounts, with size, mode, owner and times."""
    return {
        str(path): (status.st_size, status.st_mode, status.st_uid, status.st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if (status := path.lstat())
    }


def compiled(cache):
    found = {str(path.relative_to(cache)): path.read_bytes() for path in cache.rglob("*.nb?")}
    assert len(found) > 10
    return found


def status_of(pid):
    text = Path(f"/proc/{pid}/status").read_text()
    return dict(re.findall(r"^(\w+):[ \t]*(.*?)[ \t]*$", text, flags=re.M))


def test_three_institutions_and_a_relay_train_as_the_page_says(runtime):
    before = contents(runtime.root)
    assert "heart: 3 users, ring, 3 edges; 40 steps" in run_page(runtime)
    federation = Federation.read(runtime.folder / "federation" / "heart.toml")
    assert {member.address for member in federation.members} == {"relay://relay:7500"}
    runtime.up("relay", "bonn")
    # alone it is alive, and waits: asking /readyz would have it killed
    runtime.wait_healthy("bonn")
    process = status_of(runtime.process("bonn"))
    assert process["Uid"].split() == [str(USER)] * 4 and process["Gid"].split() == [str(USER)] * 4
    assert process["Groups"] == "" and process["NoNewPrivs"] == "1"
    assert {int(process[each], 16) for each in ("CapInh", "CapPrm", "CapEff", "CapBnd")} == {0}
    assert runtime.started["bonn"].poll() is None, "it waits for the others"
    runtime.up("ulm", "kiel")
    for name in NAMES:
        assert runtime.started[name].wait(180) == 0, runtime.log(name).read_text()
    assert runtime.is_healthy("relay")
    assert '"event": "joined"' in runtime.log("relay").read_text()
    assert contents(runtime.root) == before
    for name in NAMES:
        volume = runtime.volume(name)
        made = {path.name for path in volume.iterdir()}
        expected = {f"{name}.key", f"{name}.ledger", f"{name}.ledger-lock", "run-heart", "cache"}
        assert made == expected | ({"heart.toml"} if name == "bonn" else set())
        assert volume.stat().st_mode & 0o777 == 0o700
        assert (volume / f"{name}.ledger").stat().st_mode & 0o077 == 0
        run = Run.load(volume / "run-heart")
        assert run.steps_taken == 40 and run.guarantee.epsilon <= 3
        assert all(each.lstat().st_uid == USER for each in volume.rglob("*"))
        # what was compiled when the image was made was enough, also where it is another folder
        assert compiled(volume / "cache") == compiled(runtime.root / "var/lib/decor/cache")


@pytest.mark.slow
def test_the_next_quarter_is_trained_as_the_page_says(runtime):
    """After the first: with its keys, ledgers and relay, which goes on."""
    run_docker(runtime, renewal())
    os.kill(runtime.process("relay"), signal.SIGHUP)
    runtime.up(*NAMES, changed=lambda command: command.replace("heart", "heart-2"))
    for name in NAMES:
        assert runtime.started[name].wait(180) == 0, runtime.log(name).read_text()
        first, second = (
            Run.load(runtime.volume(name) / f"run-{run}") for run in ("heart", "heart-2")
        )
        assert first.steps_taken == second.steps_taken == 40
        assert first.manifest["federation"] != second.manifest["federation"]
    log = [json.loads(line) for line in runtime.log("relay").read_text().splitlines()]
    admitted = [line["federations"] for line in log if line["event"] == "admits"]
    assert admitted == ["heart", "heart, heart-2"]


WRITE = """
import os
for folder, folders, _ in os.walk("/"):
    folders[:] = [each for each in folders if os.path.join(folder, each) not in ("/proc", "/dev", "/usr")]
    try:
        os.close(os.open(folder, os.O_TMPFILE | os.O_WRONLY))
        print(folder)
        folders.clear()
    except OSError:
        pass
"""


def test_a_container_can_write_to_its_volume_and_to_tmp_and_nowhere_else(runtime):
    done = runtime.run("ulm", ["-c", WRITE], "python", capture_output=True, text=True)
    assert done.stdout.splitlines() == ["/tmp", "/var/lib/decor"], done.stderr


def test_an_institution_reaches_the_relay_and_no_other_institution(runtime):
    script = "import socket; print(socket.gethostbyname('relay')); socket.gethostbyname('ulm')"
    done = runtime.run("bonn", ["-c", script], "python", capture_output=True, text=True)
    assert done.stdout and "gaierror" in done.stderr
