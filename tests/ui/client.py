"""A planner in this process, requests to it, and the data of questions."""

import http.client
import json
import threading
from contextlib import contextmanager

from decor.ui.dispatcher import Dispatcher
from decor.ui.server import Server

RING = {"topology": "ring", "users": 8, "epsilon": 3, "steps": 100, "clip": 1}
USUAL = {"epsilon": 3, "delta": 1e-5, "steps": 1000, "clip": 1}
KITE = {"names": ["0", "1", "2", "3", "4"], "edges": [[0, 1], [1, 2], [2, 0], [2, 3], [3, 4]]}
TOWNS = {
    "names": ["ulm", "bonn", "7", "kiel", "jena", "celle"],
    "edges": [[3, 0], [3, 1], [0, 1], [2, 3], [1, 2], [4, 0], [4, 2]],
}
WHEEL = {
    "names": [*"hubcdef"],
    "edges": [*([0, k] for k in range(1, 7)), *([k, k % 6 + 1] for k in range(1, 7))],
}
HELD = {"kiel": 81, "bonn": 90, "7": 100, "ulm": 80, "jena": 92, "celle": 101}


@contextmanager
def running(watch=None):
    """A planner in this process; `decor ui` itself is started in tests/cli/test_ui.py."""
    with Server(Dispatcher(watch)) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def send(server, method, path, body=b"", **headers):
    """One request: its status, headers and body."""
    line = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=120)
    try:
        line.request(
            method, path, body, {name.replace("_", "-"): value for name, value in headers.items()}
        )
        reply = line.getresponse()
        return reply.status, reply.headers, reply.read()
    finally:
        line.close()


def json_headers(server):
    return {"Authorization": f"Bearer {server.token}", "Content_Type": "application/json"}


def post(server, kind, question, number=1, page="test", **headers):
    """The status and the answer of a question as the page sends it."""
    body = json.dumps({"page": page, "number": number, "question": question}).encode()
    headers = json_headers(server) | headers
    status, _, reply = send(server, "POST", f"/api/{kind}", body, **headers)
    return status, json.loads(reply)
