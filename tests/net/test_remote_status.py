"""The status of a node over HTTP: what is taken for one, and what ends a question."""

import json
import socket
import threading
from contextlib import contextmanager

import pytest

from decor.errors import InputError
from decor.net import remote_status
from decor.net.addresses import free_ports
from decor.net.remote_status import query_remote

STATUS = {"federation": "heart", "user": "bonn", "step": 5, "epsilon": float("inf")}
OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n"


@contextmanager
def server(answer):
    """Gives each connection to `answer`; what was asked is in the list."""
    asked = []

    def serve():
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                asked.append(connection.recv(1 << 16))
                try:
                    answer(connection)
                except OSError:  # whoever asked has had enough
                    pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}", asked
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(60)


def bytes_of(content):
    return lambda connection: connection.sendall(content)


def test_a_status_is_read_and_nothing_but_it_is_asked():
    with server(bytes_of(OK + json.dumps(STATUS).encode() + b"\n")) as (address, asked):
        assert query_remote(address) == STATUS
    assert asked == [f"GET /status HTTP/1.0\r\nHost: {address}\r\n\r\n".encode()]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/1.1 404 Not Found\r\n\r\nsee /metrics\n",
        b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/status\r\n\r\n{}",
        OK + b"<html>",
        OK + b"[1, 2]",
        OK + b"[" * 100_000,
        OK + b"\xff\xfe{}",
        OK + b'{"step": ' + b"9" * 5000 + b"}",
        OK + b'{"user": "' + b"x" * (2 << 20) + b'"}',
    ],
)
def test_whatever_else_comes_is_an_error_in_a_sentence(content):
    with server(bytes_of(content)) as (address, asked):
        with pytest.raises(InputError) as error:
            query_remote(address)
        assert 5 < len(str(error.value)) < 120 and "\n" not in str(error.value)
        assert len(asked) == 1, "nobody else is asked, and nobody twice"


def test_an_endless_answer_is_not_read_to_its_end():
    sent = []

    def pour(connection):
        connection.sendall(OK)
        while True:
            sent.append(connection.send(b"x" * (1 << 16)))

    with server(pour) as (address, _), pytest.raises(InputError, match="longer than 1,048,576"):
        query_remote(address)
    # and the buffers of two sockets
    assert sum(sent) < 16 << 20


def test_a_byte_at_a_time_does_not_keep_a_question_open(monkeypatch):
    monkeypatch.setattr(remote_status, "_SECONDS", 0.5)
    ended = threading.Event()

    def drip(connection):
        while not ended.wait(0.05):
            connection.sendall(b" ")

    with server(drip) as (address, _):
        try:
            with pytest.raises(InputError, match="no answer in time"):
                query_remote(address)
        finally:
            ended.set()


def test_nobody_at_the_address_is_an_error():
    (port,) = free_ports(1)
    with pytest.raises(InputError, match="connection refused"):
        query_remote(f"127.0.0.1:{port}")
    with pytest.raises(InputError, match="not an address"):
        query_remote("127.0.0.1")
