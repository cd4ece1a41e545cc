"""deploy/Containerfile and deploy/compose.yaml without a container runtime.

The Containerfile's instructions are run one by one in bare folders, which have this machine's /usr
and Python in place of the base image. A service of compose.yaml is a process with such a folder as
its root, the image's user, no capabilities, and cables in place of networks. Needs root, and
namespaces of Linux.

As a program it is `docker`, as far as the documentation uses it:

    python containers.py FOLDER compose run --rm -T --no-deps bonn keygen bonn
"""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import yaml

ROOT = Path(__file__).parent.parent.parent
CONTAINERFILE, COMPOSE = (ROOT / "deploy" / name for name in ("Containerfile", "compose.yaml"))
PAGE = ROOT / "docs" / "deploy.md"
NAMES = ("bonn", "ulm", "kiel")
UNDERSTOOD = {
    *("image", "build", "read_only", "tmpfs", "cap_drop", "security_opt", "ulimits"),
    *("mem_limit", "memswap_limit", "depends_on", "restart", "command", "networks", "volumes"),
}
"""Keys of a service that `Runtime` does, or that need no doing here."""


def instructions(file=CONTAINERFILE):
    """(instruction, its arguments) of a Containerfile, stages one after the other."""
    text = re.sub(r"^\s*#.*\n", "", file.read_text(), flags=re.M)
    lines = text.replace("\\\n", " ").splitlines()
    return [tuple(line.split(maxsplit=1)) for line in lines if line.strip()]


def read_compose(file=COMPOSE):
    return yaml.safe_load(file.read_text())


@dataclass
class Image:
    """What an image says beside its files."""

    environment: dict = field(default_factory=dict)
    user: str = "0:0"
    folder: str = "/"
    volumes: list = field(default_factory=list)
    health: list = field(default_factory=list)
    entrypoint: list = field(default_factory=list)


class Runtime:
    """One image, and the containers of one compose file; all state is in a folder.

    Args:
        folder: For roots, volumes and logs.
        binds: Place in roots -> file or folder of this machine, read-only, besides /usr.
    """

    def __init__(self, folder, binds):
        self.folder, self.binds = Path(folder), {"/usr": "/usr", **binds}
        self.root, self.state = self.folder / "root", self.folder / "image.json"
        self.started = {}

    # the image

    def build(self, environment, context=ROOT):
        """Runs the Containerfile; RUN gets `environment` as well, such as PATH and PIP_INDEX_URL."""
        stages, image, arguments = {}, Image(), {}
        for word, rest in instructions():
            if word == "FROM":
                name = rest.partition(" AS ")[2]
                root = self.folder / "stages" / name if name else self.root
                stages[name], image, arguments = root, Image(), {}
                self._make_bare(root)
            elif word == "ARG":
                name, _, default = rest.partition("=")
                arguments[name] = environment.get(name, default)
            elif word == "COPY":
                self._copy(shlex.split(rest), stages, root, context)
            elif word == "RUN":
                # Debian's packages: this machine has strip, or does without
                if not rest.startswith("apt-get"):
                    everything = {**image.environment, **arguments, **environment}
                    script = self._script(root, everything, ["sh", "-c", rest])
                    subprocess.run(["unshare", "--mount", "sh", "-c", script], check=True)
            elif word == "ENV":
                image.environment |= dict(each.split("=", 1) for each in shlex.split(rest))
            elif word in ("USER", "WORKDIR"):
                setattr(image, "user" if word == "USER" else "folder", rest)
            elif word == "VOLUME":
                image.volumes.append(rest)
            elif word == "HEALTHCHECK":
                image.health = json.loads(rest.partition(" CMD ")[2])
            elif word == "ENTRYPOINT":
                image.entrypoint = json.loads(rest)
            else:
                raise AssertionError(f"{word} is not understood here")
        self.state.write_text(json.dumps(asdict(image)))

    @property
    def image(self):
        return Image(**json.loads(self.state.read_text()))

    def _make_bare(self, root):
        for name in ("etc", "proc", "dev", "tmp", "root", "opt", "var/lib"):
            (root / name).mkdir(parents=True)
        (root / "tmp").chmod(0o1777)
        for name in ("bin", "sbin", "lib", "lib64"):
            (root / name).symlink_to(f"usr/{name}")
        (root / "etc" / "passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
        (root / "etc" / "group").write_text("root:x:0:\n")
        for place, source in self.binds.items():
            end = root / place.lstrip("/")
            end.parent.mkdir(parents=True, exist_ok=True)
            end.mkdir(exist_ok=True) if Path(source).is_dir() else end.touch()

    @staticmethod
    def _copy(words, stages, root, context):
        options = dict(word[2:].split("=", 1) for word in words if word.startswith("--"))
        *sources, target = [word for word in words if not word.startswith("--")]
        base = stages[options["from"]] if "from" in options else context
        place = root / target.lstrip("/")
        into_folder = target.endswith("/")
        (place if into_folder else place.parent).mkdir(parents=True, exist_ok=True)
        for source in sources:
            own = base / source.lstrip("/")
            end = place / own.name if into_folder else place
            # as COPY: into a folder that is there already
            inside = [f"{own}/."] if own.is_dir() else [str(own)]
            if own.is_dir():
                end.mkdir(exist_ok=True)
            subprocess.run(["cp", "--archive", *inside, str(end)], check=True)
            if "chown" in options:
                subprocess.run(["chown", "--recursive", options["chown"], str(end)], check=True)

    # containers

    def _script(self, root, environment, command, user=None, folder="/", mounts=(), hosts=None):
        """A shell script that runs a command in a root; within a mount namespace of its own.

        Args:
            root: The folder.
            environment: Of the command.
            command: Its words.
            user: UID:GID, without capabilities and in a root that is read-only; None: root.
            folder: Working directory.
            mounts: (source or "tmpfs", place in the root, whether read-only).
            hosts: A file for /etc/hosts.
        """
        lines = ["set -eu", "mount --make-rprivate /", f"mount --bind {root} {root}"]
        mounts = [*((source, place, True) for place, source in self.binds.items()), *mounts]
        if hosts is not None:
            mounts.append((hosts, "/etc/hosts", True))
        mounts.append(("/dev", "/dev", False))
        # "tmpfs" first: an environment of Python may lie in /tmp
        for source, place, read_only in sorted(mounts, key=lambda each: each[0] != "tmpfs"):
            end = shlex.quote(f"{root}{place}")
            if not Path(source).is_file():
                lines.append(f"mkdir -p {end}")
            if source == "tmpfs":
                lines.append(f"mount -t tmpfs tmpfs {end}")
            else:
                lines.append(f"mount --rbind {shlex.quote(str(source))} {end}")
                if read_only:
                    lines.append(f"mount -o remount,bind,ro {end}")
        lines.append(f"mount -t proc proc {root}/proc")
        words = ["/usr/bin/env", "-i", "-C", folder, *(f"{k}={v}" for k, v in environment.items())]
        if user is not None:
            lines.append(f"mount -o remount,bind,ro {root}")
            uid, gid = user.split(":")
            words += ["/usr/bin/setpriv", "--reuid", uid, "--regid", gid, "--clear-groups"]
            words += ["--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"]
        lines.append(f"exec chroot {root} {shlex.join([*words, *command])}")
        return "\n".join(lines)

    def _mounts(self, service):
        """The mounts of a service; a volume is made from what the image has in its place."""
        mounts = []
        # one without a name, too, unless another takes its place
        unnamed = [f"{os.urandom(4).hex()}:{place}" for place in self.image.volumes]
        named = [text.split(":")[1] for text in service["volumes"]]
        unnamed = [text for text in unnamed if text.split(":")[1] not in named]
        for text in [*service["volumes"], *unnamed]:
            source, place, *mode = text.split(":")
            if source.startswith("."):
                path = self.folder / source
            else:
                path = self.volume(source)
                if not path.exists():
                    subprocess.run(["cp", "--archive", f"{self.root}{place}", path], check=True)
            mounts.append((path, place, mode == ["ro"]))
        return [*mounts, *(("tmpfs", place, False) for place in service["tmpfs"])]

    def volume(self, name):
        folder = self.folder / "volumes"
        folder.mkdir(exist_ok=True)
        return folder / name

    def command(self, service, words, entrypoint=None):
        """The command line that is a container of a service of the compose file."""
        image, described = self.image, read_compose()["services"][service]
        assert described.keys() <= UNDERSTOOD, described.keys() - UNDERSTOOD
        assert described["read_only"] and described["cap_drop"] == ["ALL"]
        assert described["security_opt"] == ["no-new-privileges:true"]
        script = self._script(
            self.root,
            image.environment,
            [*([entrypoint] if entrypoint else image.entrypoint), *words],
            image.user,
            image.folder,
            self._mounts(described),
            self._hosts(service),
        )
        inside = ["unshare", "--mount", "--pid", "--fork", "sh", "-c", script]
        return ["ip", "netns", "exec", self._namespace(service), *inside]

    def run(self, service, words, entrypoint=None, **options):
        return subprocess.run(self.command(service, words, entrypoint), **options)

    def up(self, *services, changed=lambda command: command):
        """Starts services, each when those it depends on are healthy.

        Args:
            services: Their names.
            changed: What an operator makes of a service's command in the compose file.
        """
        described = read_compose()["services"]
        for name in services:
            for other, how in described[name].get("depends_on", {}).items():
                assert how == {"condition": "service_healthy"}
                self.wait_healthy(other)
            words = self.command(name, shlex.split(changed(described[name]["command"])))
            with self.log(name).open("w") as log:
                self.started[name] = subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT)

    def kill(self, service):
        process = self.started.pop(service)
        # the first process of a namespace: all others end with it, and unshare too
        for child in children(process.pid):
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        process.kill()
        process.wait()

    def log(self, service):
        return self.folder / f"{service}.log"

    def process(self, service):
        """The number of a service's process outside its container; None while it begins."""
        with suppress(FileNotFoundError, ProcessLookupError):
            for child in children(self.started[service].pid):
                # not the shell that mounts
                if Path(f"/proc/{child}/cmdline").read_bytes().startswith(b"/opt/decor/bin/"):
                    return child
        return None

    def is_healthy(self, service):
        """What the image's health check answers in a service's container."""
        image, pid = self.image, self.process(service)
        if pid is None:
            return False
        uid, gid = image.user.split(":")
        words = ["nsenter", f"--target={pid}", "--mount", "--net", "--pid", "--root", "--wd"]
        words += ["env", "-i", *(f"{k}={v}" for k, v in image.environment.items())]
        words += ["setpriv", "--reuid", uid, "--regid", gid, "--clear-groups", *image.health]
        return subprocess.run(words, capture_output=True).returncode == 0

    def wait_healthy(self, service, seconds=180):
        end = time.monotonic() + seconds
        while not self.is_healthy(service):
            log, ended = self.log(service).read_text(), self.started[service].poll()
            assert ended is None and time.monotonic() < end, f"{service} is not healthy: {log}"
            time.sleep(0.05)

    # networks: one cable for each, as each has two services

    def __enter__(self):
        try:
            self._make_places()
            self._lay_cables()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for service in list(self.started):
            self.kill(service)
        for service in read_compose()["services"]:
            name = self._namespace(service)
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)

    def _namespace(self, service):
        # the folder is this test's own
        return f"decor-{self.folder.stat().st_ino}-{service}"

    def _make_places(self):
        (self.root / "etc" / "hosts").touch()
        for service in read_compose()["services"].values():
            for text in service["volumes"]:
                (self.root / text.split(":")[1].lstrip("/")).mkdir(parents=True, exist_ok=True)

    def _lay_cables(self):
        services, compose = read_compose()["services"], read_compose()
        for service in services:
            name = self._namespace(service)
            run_ip("netns", "add", name)
            run_ip("-n", name, "link", "set", "lo", "up")
        hosts = {service: ["127.0.0.1 localhost"] for service in services}
        for k, network in enumerate(compose["networks"]):
            a, b = [each for each in services if network in services[each]["networks"]]
            ends = {a: f"10.77.{k}.1", b: f"10.77.{k}.2"}
            peer = ["peer", "name", network, "netns", self._namespace(b)]
            run_ip("link", "add", network, "netns", self._namespace(a), "type", "veth", *peer)
            for service, other in ((a, b), (b, a)):
                name = self._namespace(service)
                run_ip("-n", name, "address", "add", f"{ends[service]}/24", "dev", network)
                run_ip("-n", name, "link", "set", network, "up")
                hosts[service].append(f"{ends[other]} {other}")
        for service, lines in hosts.items():
            self._hosts(service).write_text("\n".join(lines) + "\n")

    def _hosts(self, service):
        return self.folder / f"{service}.hosts"


def children(pid):
    with suppress(FileNotFoundError, ProcessLookupError):
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def page_blocks():
    """The shell of the section about containers."""
    section = PAGE.read_text().partition("## In containers\n")[2].partition("\n## ")[0]
    return re.findall(r"^```sh\n(.*?)^```", section, flags=re.M | re.S)


def renewal():
    """The commands of the page that make the next quarter's federation."""
    section = PAGE.read_text().partition("### The next quarter, in containers\n")[2]
    lines = section.partition("\n## ")[0].splitlines()
    return [line[2:] for line in lines if line.startswith("$ docker compose run ")]


def run_page(runtime):
    """Runs the page's own lines up to the first start; gives what they print."""
    write_data(runtime.folder)
    (runtime.folder / "deploy").symlink_to(".")
    return run_docker(runtime, page_blocks())


def run_docker(runtime, lines):
    """Runs lines of a shell, for which `docker` is this file; gives what they print."""
    program = shlex.join([sys.executable, __file__])
    docker = f'docker() {{ {program} {runtime.folder} "$@"; }}'
    done = subprocess.run(
        ["bash", "-c", "\n".join(["set -eu", docker, *lines])],
        cwd=runtime.folder,
        env=os.environ | {"BINDS": json.dumps(runtime.binds)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def write_data(folder):
    from decor.learning import tasks  # not for each command of the page

    task = tasks.breast_cancer(users=NAMES, seed=0)
    for name, (X, y) in zip(NAMES, task.shards, strict=True):
        rows = [
            ",".join(map(str, (*x, label))) for x, label in zip(X.tolist(), y.tolist(), strict=True)
        ]
        (folder / "data" / name).mkdir(parents=True)
        (folder / "data" / name / f"{name}.csv").write_text("\n".join(rows) + "\n")


def run_ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


def why_not():
    """Why containers cannot be imitated here; None: they can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "needs root on Linux"
    if missing := [
        each for each in ("unshare", "setpriv", "ip", "chroot") if not shutil.which(each)
    ]:
        return f"needs {', '.join(missing)}"
    probe = [
        "unshare",
        "--mount",
        "--pid",
        "--net",
        "--fork",
        "mount",
        "-t",
        "proc",
        "proc",
        "/proc",
    ]
    done = subprocess.run(probe, capture_output=True, text=True)
    return f"namespaces cannot be made here: {done.stderr.strip()}" if done.returncode else None


def main():
    folder, *words = sys.argv[1:]
    runtime = Runtime(folder, json.loads(os.environ["BINDS"]))
    if words[0] == "build":
        # by the test, before
        return 0 if runtime.state.exists() else 1
    assert words[:5] == ["compose", "run", "--rm", "-T", "--no-deps"], words
    *_, entrypoint = words[5:7] if words[5] == "--entrypoint" else [None]
    service, *command = words[7 if entrypoint else 5 :]
    return runtime.run(service, command, entrypoint).returncode


if __name__ == "__main__":
    sys.exit(main())
