"""Watches the nodes of a federation, which are asked whenever a page looks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .changes import Changes
from .federation_picture import describe_federation
from .node_poll import NodePoll, Query


class FederationWatch:
    """Nodes named on the command line; no page can name another.

    Args:
        source: Where the nodes are, for people.
        list_queries: Gives the name of each node, until it says its own, and how to ask it.
    """

    def __init__(self, source: str, list_queries: Callable[[], Mapping[str, Query]]) -> None:
        self._source, self._poll = source, NodePoll(list_queries)
        self._changes = Changes(self.read_state)

    def changes_since(self, seen: object) -> dict[str, Any]:
        """The state of all nodes, or only "unchanged".

        Args:
            seen: As of `Changes.since`.
        """
        return self._changes.since(seen)

    def read_state(self) -> dict[str, Any]:
        """Asks all nodes; what each has said last."""
        return {"source": self._source, **describe_federation(self._poll.observe())}
