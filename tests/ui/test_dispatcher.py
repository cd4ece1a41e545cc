"""One request at a time, and only the newest of each page."""

import json
import threading

import pytest

from decor import progress
from decor.ui import answer
from decor.ui.dispatcher import Dispatcher, Superseded

from .client import RING, json_headers, post, send


def test_parallel_requests_get_their_own_answers(planner):
    answers = {}

    def ask(k):
        answers[k] = post(planner, "plan", RING | {"epsilon": 1 + k}, page=f"page {k}")[1]

    threads = [threading.Thread(target=ask, args=(k,)) for k in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(round(answers[k]["epsilon"], 2) == 1 + k for k in range(12))


def test_a_request_is_left_when_its_page_sends_another(monkeypatch):
    dispatcher, begun, outcomes = Dispatcher(), threading.Event(), []

    def describe_plan(question):
        if question.exposure.steps != 7:
            return {"done": True}
        begun.set()
        while True:
            progress.report("searching")

    def send_plan(number, question=RING):
        request = {"page": "a", "number": number, "question": question}
        return dispatcher.answer("plan", request)

    def first():
        try:
            outcomes.append(send_plan(1, RING | {"steps": 7}))
        except Superseded:
            outcomes.append("left")

    monkeypatch.setattr(answer, "describe_plan", describe_plan)
    thread = threading.Thread(target=first)
    thread.start()
    assert begun.wait(60)
    assert send_plan(2) == {"done": True}
    thread.join(60)
    assert outcomes == ["left"]
    with pytest.raises(Superseded):
        send_plan(1)


def test_a_drawing_does_not_supersede_a_plan():
    dispatcher = Dispatcher()
    graph = {"page": "a", "number": 9, "question": {"topology": "ring", "users": 8}}
    assert dispatcher.answer("graph", graph)["labels"]
    assert dispatcher.answer("plan", {"page": "a", "number": 1, "question": RING})["epsilon"]


@pytest.mark.parametrize(
    "body",
    [b"[]", b"3", b'"x"', b"null", b"{}", b'{"question": []}', b'{"question": {}, "number": "x"}'],
)
def test_json_of_another_shape_is_answered_with_a_sentence(planner, body):
    headers = json_headers(planner)
    status, _, reply = send(planner, "POST", "/api/plan", body, **headers)
    assert status == 200 and json.loads(reply)["error"]
