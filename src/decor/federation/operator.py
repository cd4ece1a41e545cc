"""A node at work for its operator: what it logs, how it answers questions, and how it stops when it
is told to.
"""

from __future__ import annotations

import asyncio
import ctypes
import signal
import time
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from decor.errors import DecorError
from decor.net import status
from decor.results.run import Run

from .node import Node

_MMAP_THRESHOLD = -3
"""glibc's name for it."""


@dataclass(frozen=True)
class Logbook:
    """One line an event: when, who, what, and its facts as name=value.

    Nothing secret ever reaches it.
    """

    user: str
    to: TextIO

    def __call__(self, event: str, **facts: object) -> None:
        now = time.time()
        when = (
            time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now * 1000) % 1000:03d}Z"
        )
        words = [f"{name}={_word(value)}" for name, value in facts.items()]
        # a log that cannot be written is no reason to stop: the ledger is what counts
        with suppress(OSError):
            print(
                when,
                f"user={_word(self.user)}",
                f"event={_word(event)}",
                *words,
                file=self.to,
                flush=True,
            )


def _word(value: object) -> str:
    text = "".join(c if c.isprintable() else "?" for c in str(value))
    return text if text and not set(text) & set(' "=') else '"' + text.replace('"', "'") + '"'


def told(problem: Exception) -> str:
    """Our own sentence; of other people's exceptions the name alone, as what they say might repeat
    data.
    """
    return str(problem) if isinstance(problem, DecorError) else type(problem).__name__


def give_memory_back() -> None:
    """Large blocks go back to the system when they are freed: by default glibc keeps several
    models' worth of them.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, 1 << 20)


async def attended(node: Node, socket: Path | None, metrics: int | None) -> Run:
    """The node's run, until it ends or the operator ends it (SIGINT, SIGTERM): then as far as it
    came.
    """
    give_memory_back()
    loop = asyncio.get_running_loop()
    async with AsyncExitStack() as stack:
        if socket is not None:
            await stack.enter_async_context(status.answering(socket, node.described))
        if metrics is not None:
            await stack.enter_async_context(status.measured(metrics, node.described))
        work = asyncio.create_task(node.trained())
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, work.cancel)
        try:
            return await work
        except asyncio.CancelledError:
            node.log("stopped", step=node.step, why="by its operator; start it again to go on")
            stopped = node.outcome()
            node.keep(stopped)
            return stopped
        except Exception as problem:
            node.log("failed", step=node.step, why=told(problem))
            raise
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)
