"""Sends a state to pages that ask for it all the time: only when it has changed."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable
from typing import Any

_MAX_AGE = 0.3
"""Seconds for which a state is reused, so that several pages do not query nodes several times."""


class Changes:
    """A state that is read again when a page asks for it.

    Args:
        read_state: Gives the state, as JSON.
    """

    def __init__(self, read_state: Callable[[], dict[str, Any]]) -> None:
        self._read_state = read_state
        self._lock = threading.Lock()
        self._read_at, self._digest = 0.0, ""
        self._state: dict[str, Any] = {}

    def since(self, seen: object) -> dict[str, Any]:
        """The state, or only "unchanged" if its digest is still `seen`.

        Args:
            seen: The digest that a page got with the state it shows.
        """
        with self._lock:
            if time.monotonic() - self._read_at > _MAX_AGE or not self._digest:
                self._state = self._read_state()
                text = json.dumps(self._state, sort_keys=True, default=str)
                self._digest = hashlib.sha256(text.encode()).hexdigest()[:16]
                self._read_at = time.monotonic()
            state, digest = self._state, self._digest
        return {"seen": digest} | ({"unchanged": True} if seen == digest else state)
