"""The command `decor` in a process of its own, without the seconds that an interpreter takes to
load torch and the rest.

    subprocess.run([*decor_command(), "status", ledger])

`decor_command` starts a server, once for each process of tests, which has loaded everything. What
is run is a small client: it hands its arguments, folder, environment and standard streams to the
server, which forks a process for them. The client forwards signals, and ends as the command ends;
if the client is killed, so is the command.

With `warm_starter`, the process that starts the users of `Peers()`, `decor up` and audits is forked
there as well; tests/federation/test_process_starter.py and others start it as users do.
"""

import os
import signal
import socket
import sys
from contextlib import suppress

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
LARGEST = 1 << 17
"""Bytes of a request: arguments, folder and environment."""


def decor_command(as_module=False):
    """What to run in place of `decor`; starts the server at the first call.

    `as_module`: of `python -m decor`, for which modules of the current folder come first.
    """
    global _server
    if not hasattr(os, "pidfd_open"):  # not on Linux
        return [sys.executable, "-m", "decor"]
    if _server is None:
        _server = _Server()
    kind = "module" if as_module else "command"
    return [sys.executable, "-I", "-S", __file__, _server.path, kind]


def warm_starter(descriptor):
    """In place of `process_starter._start_interpreter`."""
    import json
    import subprocess

    path = json.dumps([str(each) for each in sys.path])
    command = [*decor_command()[:-1], "starter", path, str(descriptor)]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[descriptor])


_server = None


class _Server:
    def __init__(self):
        import atexit
        import subprocess
        import tempfile

        folder = tempfile.TemporaryDirectory(prefix="decor-")
        self.path = os.path.join(folder.name, "socket")
        self._folder = folder  # removed with this object
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--serve", self.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout.readline() == b"ready\n"
        atexit.register(self._close)

    def _close(self):
        self._process.stdin.close()
        self._process.wait()
        self._folder.cleanup()


def call(path, arguments):
    """The client: runs one command on the server, and ends as it ends."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(path)
        pid = 0

        def forward(number, frame):
            if pid:
                os.kill(pid, number)

        for number in FORWARDED:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, forward)
        environment = [word for pair in os.environ.items() for word in pair]
        streams = [0, 1, 2, int(arguments.pop())] if arguments[0] == "starter" else [0, 1, 2]
        words = [os.getcwd(), str(len(arguments)), *arguments, *environment]
        request = b"\0".join(map(os.fsencode, words))
        assert len(request) < LARGEST
        socket.send_fds(connection, [request], streams)
        for stream in streams[3:]:
            os.close(stream)
        pid = int(connection.recv(64))
        code = int(connection.recv(64))
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.stdout.flush()
    os._exit(code)


def serve(path):
    """Forks a process for every request, until standard input is closed."""
    import gc
    import selectors
    from types import SimpleNamespace

    sys.path.remove(os.path.dirname(__file__))  # of tests, which commands must not see
    _load()
    import decor.federation.process_starter

    global _server
    # commands that are forked here start their users' processes here too
    _server = SimpleNamespace(path=path)
    decor.federation.process_starter._start_interpreter = warm_starter
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # whoever starts users' processes has Ctrl-C blocked meanwhile, and may be the first to call
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    gc.freeze()
    running = {}  # by the descriptor that tells of a process's end: (its id, its client)
    with (
        selectors.DefaultSelector() as selector,
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener,
    ):
        listener.bind(path)
        listener.listen(64)
        selector.register(listener, selectors.EVENT_READ)
        selector.register(0, selectors.EVENT_READ)
        print("ready", flush=True)
        while True:
            for key, _ in selector.select():
                if key.fileobj == 0:
                    for pid, _ in running.values():
                        os.kill(pid, signal.SIGKILL)
                    return
                if key.fileobj is listener:
                    client, _ = listener.accept()
                    request, streams, _, _ = socket.recv_fds(client, LARGEST, 4)
                    if not request:  # killed before it had asked
                        client.close()
                        continue
                    pid = os.fork()
                    if not pid:
                        _run(request, streams)
                    for stream in streams:
                        os.close(stream)
                    ended = os.pidfd_open(pid)
                    running[ended] = pid, client
                    selector.register(ended, selectors.EVENT_READ)
                    selector.register(client, selectors.EVENT_READ, pid)
                    tell(client, pid)
                elif key.data is None:  # a process has ended
                    pid, client = running.pop(key.fd)
                    selector.unregister(key.fd)
                    os.close(key.fd)
                    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                    if client.fileno() >= 0:
                        tell(client, code)
                        selector.unregister(client)
                        client.close()
                elif key.fileobj.fileno() >= 0:  # a client was killed, before its process ended
                    selector.unregister(key.fileobj)
                    key.fileobj.close()
                    os.kill(key.data, signal.SIGKILL)


def tell(client, number):
    with suppress(ConnectionError):  # killed meanwhile
        client.send(str(number).encode())


def _load():
    """Everything that commands load, and compiled functions that most of them call."""
    import importlib
    import pkgutil

    import numpy as np
    import torch  # noqa: F401

    import decor.cli

    for module in pkgutil.iter_modules(decor.cli.__path__, "decor.cli."):
        importlib.import_module(module.name)
    for name in (
        "learning.tasks",
        "learning.own_data",
        "federation.node",
        "federation.local_gradient",
        "federation.operator",
        "federation.member",
        "results.report",
        "training.train",
        "training.compare",
    ):
        importlib.import_module(f"decor.{name}")
    from decor.noise.grid import Grid

    graph = decor.ring(3)
    assert graph.is_connected
    grid = Grid.of(1.0, (1.0,) * 3, graph.edges, 3, 1.0, 8, 10)
    grid.add_noise(np.zeros(8), os.urandom(32), [(os.urandom(32), grid.multiples[0])])


def _run(request, streams):
    """The command, in the process that was forked for it."""
    import atexit
    import json
    import threading
    import traceback

    code = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        os.closerange(len(streams), 256)
        folder, count, *words = map(os.fsdecode, request.split(b"\0"))
        arguments, environment = words[: int(count)], words[int(count) :]
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(zip(environment[::2], environment[1::2], strict=True))
        if arguments[0] == "starter":
            code = _start_users(json.loads(arguments[1]), len(streams) - 1)
        else:
            sys.argv = ["decor", *arguments[1:]]
            paths = [*filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
            sys.path[:0] = [folder, *paths] if arguments[0] == "module" else paths
            from decor.cli.main import main

            code = main() or 0
    except SystemExit as ended:
        code = ended.code or 0
    except BaseException:
        traceback.print_exc()
    finally:
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _start_users(path, descriptor):
    sys.path[:] = path
    from decor.federation.user_processes import main

    main(descriptor)


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        serve(sys.argv[2])
    else:
        call(sys.argv[1], sys.argv[2:])
