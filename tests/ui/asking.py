"""A planner that runs in this process, and questions to it."""

import http.client
import json
import threading
from contextlib import contextmanager

from decor.ui.desk import Desk
from decor.ui.server import Server


@contextmanager
def running(watch=None):
    """A planner in this process; `decor ui` itself is started in test_command.py."""
    with Server(Desk(watch)) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def sent(server, method, path, body=b"", **headers):
    """One request as it is: status, headers and body."""
    line = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    try:
        line.request(
            method, path, body, {name.replace("_", "-"): value for name, value in headers.items()}
        )
        reply = line.getresponse()
        return reply.status, reply.headers, reply.read()
    finally:
        line.close()


def asked(server, kind, question, number=1, page="test", **headers):
    """A question as the page asks it, and its answer."""
    body = json.dumps({"page": page, "number": number, "question": question}).encode()
    headers = {
        "Authorization": f"Bearer {server.token}",
        "Content_Type": "application/json",
    } | headers
    status, _, said = sent(server, "POST", f"/api/{kind}", body, **headers)
    return status, json.loads(said)
