"""How long the planner takes to answer a slider: `decor ui` itself, asked over HTTP as its page asks, 64 users.

    python benchmarks/ui.py                 # all rows, one JSON object a line
    python benchmarks/ui.py torus           # rows whose name contains "torus"

Wall milliseconds from the question to the last byte of the answer, over one connection that stays open, as browsers keep it.
Every question is one that was not asked before. A move of epsilon leaves the ratio of the noises as it is, and so the search for
coalitions; a move of steps changes it. `against_ms` is the whole table of adversaries, which the page asks for afterwards.
"""

from __future__ import annotations

import http.client
import json
import statistics
import subprocess
import sys
import time

FAMILIES = ("ring", "torus", "grid", "complete", "star", "path", "hypercube", "random-regular", "erdos-renyi")
ADVERSARIES = ("eavesdropper", "curious", "colluding:2", "colluding:3")
MOVES, REACH_MS = 15, 100
USUAL = {"users": 64, "epsilon": 3.0, "delta": 1e-5, "steps": 1000, "clip": 1.0}


class Page:
    """What the page does, without a browser."""

    def __init__(self) -> None:
        began = time.perf_counter()
        command = [sys.executable, "-m", "decor", "ui", "--json", "--no-browser"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        said = json.loads(self.process.stdout.readline())
        self.started = time.perf_counter() - began
        self.line = http.client.HTTPConnection("127.0.0.1", said["port"])
        self.token, self.number = said["url"].partition("#")[2], 0

    def ask(self, kind: str, question: dict) -> float:
        """Milliseconds."""
        self.number += 1
        body = json.dumps({"page": "benchmark", "number": self.number, "question": question})
        began = time.perf_counter()
        self.line.request(
            "POST", f"/api/{kind}", body, {"Content-Type": "application/json", "Authorization": f"Bearer {self.token}"}
        )
        answer = json.loads(self.line.getresponse().read())
        took = 1e3 * (time.perf_counter() - began)
        assert "error" not in answer and "superseded" not in answer, answer
        return took


def graph(family: str) -> dict:
    return {"topology": family} | {
        "random-regular": {"degree": 6, "graph_seed": 0},
        "erdos-renyi": {"probability": 0.13, "graph_seed": 0},
    }.get(family, {})


def row(page: Page, family: str, adversary: str, dial: str, **more: object) -> dict:
    question = USUAL | graph(family) | {"adversary": adversary} | more
    page.ask(
        "graph",
        {name: question[name] for name in ("topology", "users", "degree", "probability", "graph_seed") if name in question},
    )
    first = page.ask("plan", question)
    took, table = [], []
    for k in range(1, MOVES + 1):
        # a slider's places: a few percent apart
        moved = question | ({"epsilon": round(3 * 1.05**k, 3)} if dial == "epsilon" else {"steps": round(1000 * 1.06**k)})
        took.append(page.ask("plan", moved))
        table.append(page.ask("against", moved))
    found = {
        "benchmark": "ui",
        "what": f"{family}, {adversary}, {dial}{', one record' if more else ''}",
        "median_ms": statistics.median(took),
        "worst_ms": max(took),
    }
    found |= {"first_ms": first, "against_ms": statistics.median(table), "against_worst_ms": max(table)}
    return {name: round(value, 2) if isinstance(value, float) else value for name, value in found.items()} | {
        "reach_ms": REACH_MS
    }


def main() -> None:
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    page = Page()
    try:
        if wanted in "start":
            first = page.ask("plan", {"topology": "ring", "epsilon": 3, "steps": 1000, "clip": 1})
            row_of_start = {"benchmark": "ui", "what": "start, to the printed address", "seconds": round(page.started, 3)}
            print(json.dumps(row_of_start | {"first_answer_ms": round(first, 1)}), flush=True)
        time.sleep(4)  # what is loaded beside
        for family in FAMILIES:
            for adversary in ADVERSARIES:
                for dial in ("epsilon", "steps"):
                    if wanted in f"{family}, {adversary}, {dial}":
                        print(json.dumps(row(page, family, adversary, dial)), flush=True)
        for dial in ("epsilon", "steps"):
            if wanted in f"torus, curious, {dial}, one record":
                print(json.dumps(row(page, "torus", "curious", dial, unit="example", batch_size=64, records=3750)), flush=True)
    finally:
        page.process.terminate()
        page.process.wait()


if __name__ == "__main__":
    main()
