"""Nodes that the command line names are watched, and no others."""

from decor.errors import InputError
from decor.ui.federation_watch import FederationWatch

from .client import post, running
from .statuses import status


def test_no_page_can_name_an_address():
    asked = []

    def query():
        asked.append(1)
        return status("bonn", "ulm")

    with running(FederationWatch("127.0.0.1:9464", lambda: {"127.0.0.1:9464": query})) as server:
        question = {"seen": None, "source": "127.0.0.1:1", "metrics": ["127.0.0.1:1"]}
        _, state = post(server, "watch", question)
        assert state["source"] == "127.0.0.1:9464" and state["kind"] == "federation"
        assert [node["name"] for node in state["nodes"]] == ["bonn", "ulm"] and len(asked) == 1
        _, again = post(server, "watch", {"seen": state["seen"]})
        assert again == {"seen": state["seen"], "unchanged": True}


def test_names_of_any_kind_travel_as_text():
    name = '<img src=x onerror="alert(1)">' + "ü" * 200

    def silent():
        raise InputError("</script><b>no</b>")

    watch = FederationWatch("here", lambda: {"a": lambda: status(name), "b": silent})
    with running(watch) as server:
        _, state = post(server, "watch", {"seen": None})
        assert [node["name"] for node in state["nodes"]] == [name, "b"]
