"""A state is read once for all pages, and sent to those that have not seen it."""

from types import SimpleNamespace

from decor.ui import changes as module
from decor.ui.changes import Changes


def test_only_changes_are_sent_and_several_pages_share_a_state(monkeypatch):
    reads, value, now = [], {"step": 1}, [100.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def read():
        reads.append(1)
        return dict(value)

    changes = Changes(read)
    first = changes.since(None)
    assert first["step"] == 1 and changes.since("of another state")["step"] == 1
    assert changes.since(first["seen"]) == {"seen": first["seen"], "unchanged": True}
    assert len(reads) == 1
    value["step"] = 2
    assert changes.since(first["seen"])["unchanged"]
    now[0] += 0.35
    second = changes.since(first["seen"])
    assert second["step"] == 2 and second["seen"] != first["seen"] and len(reads) == 2
