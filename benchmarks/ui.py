"""How long the planner takes to answer a slider: `decor ui` itself, asked over HTTP as its page
asks, 64 users.

    python benchmarks/ui.py                 # all rows, one JSON object a line
    python benchmarks/ui.py torus           # rows whose name contains "torus"

Wall milliseconds from the question to the last byte of the answer, over one connection that stays
open, as browsers keep it. Every question is one that was not asked before. A move of epsilon leaves
the ratio of the noises as it is, and so the search for coalitions; a move of steps changes it.
`against_ms` is the whole table of adversaries, which the page asks for afterwards. Rows "in
Chromium" are the page itself, from a slider's event to the changed text; they need chromium and
chromedriver.
"""

from __future__ import annotations

import http.client
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FAMILIES = (
    "ring",
    "torus",
    "grid",
    "complete",
    "star",
    "path",
    "hypercube",
    "random-regular",
    "erdos-renyi",
)
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
        self.url = said["url"]
        self.line = http.client.HTTPConnection("127.0.0.1", said["port"])
        self.token, self.number = said["url"].partition("#")[2], 0

    def ask(self, kind: str, question: dict) -> float:
        """Milliseconds."""
        self.number += 1
        body = json.dumps({"page": "benchmark", "number": self.number, "question": question})
        began = time.perf_counter()
        self.line.request(
            "POST",
            f"/api/{kind}",
            body,
            {"Content-Type": "application/json", "Authorization": f"Bearer {self.token}"},
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
        {
            name: question[name]
            for name in ("topology", "users", "degree", "probability", "graph_seed")
            if name in question
        },
    )
    first = page.ask("plan", question)
    took, table = [], []
    for k in range(1, MOVES + 1):
        # a slider's places: a few percent apart
        moved = question | (
            {"epsilon": round(3 * 1.05**k, 3)}
            if dial == "epsilon"
            else {"steps": round(1000 * 1.06**k)}
        )
        took.append(page.ask("plan", moved))
        table.append(page.ask("against", moved))
    found = {
        "benchmark": "ui",
        "what": f"{family}, {adversary}, {dial}{', one record' if more else ''}",
        "median_ms": statistics.median(took),
        "worst_ms": max(took),
    }
    found |= {
        "first_ms": first,
        "against_ms": statistics.median(table),
        "against_worst_ms": max(table),
    }
    return {
        name: round(value, 2) if isinstance(value, float) else value
        for name, value in found.items()
    } | {"reach_ms": REACH_MS}


MOVED = """const [id, moves, done] = arguments;
const slider = document.getElementById(id); const took = [];
const busy = () => document.getElementById('answer').getAttribute('aria-busy') === 'true';
const move = () => {
  if (took.length === moves) { done(took); return; }
  const began = performance.now();
  slider.value = Number(slider.value) + 1 + took.length % 3;
  slider.dispatchEvent(new Event('input', { bubbles: true }));
  const look = () => {
    if (busy()) { setTimeout(look, 0); return; }
    took.push(performance.now() - began);
    setTimeout(move, 60);
  };
  look();
};
move();"""


def in_chromium(page: Page, wanted: str) -> None:
    """Rows of the page as a person has it."""
    sys.path[:0] = [str(Path(__file__).parent.parent / "tests" / name) for name in (".", "ui")]
    import browser
    from hands import find, settled, typed, until
    from selenium.webdriver.support.ui import Select

    with tempfile.TemporaryDirectory() as profile, browser.started(profile) as driver:
        driver.get(page.url)
        settled(driver)
        for family, colluders in (("torus", 1), ("random-regular", 2)):
            Select(find(driver, "#topology")).select_by_value(family)
            typed(driver, "#users", 64)
            typed(driver, "#colluders", colluders)
            until(driver, "!document.querySelector('#against .pending')", seconds=30)
            for dial in ("epsilon", "steps"):
                what = f"{family}, colluding:{colluders}, {dial}, in Chromium"
                if wanted in what:
                    took = driver.execute_async_script(MOVED, f"{dial}-slider", MOVES)
                    found = {
                        "median_ms": round(statistics.median(took), 2),
                        "worst_ms": round(max(took), 2),
                    }
                    print(
                        json.dumps(
                            {"benchmark": "ui", "what": what, **found, "reach_ms": REACH_MS}
                        ),
                        flush=True,
                    )


def main() -> None:
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    page = Page()
    try:
        if wanted in "start":
            first = page.ask("plan", {"topology": "ring", "epsilon": 3, "steps": 1000, "clip": 1})
            row_of_start = {
                "benchmark": "ui",
                "what": "start, to the printed address",
                "seconds": round(page.started, 3),
            }
            print(json.dumps(row_of_start | {"first_answer_ms": round(first, 1)}), flush=True)
        time.sleep(4)  # what is loaded beside
        for family in FAMILIES:
            for adversary in ADVERSARIES:
                for dial in ("epsilon", "steps"):
                    if wanted in f"{family}, {adversary}, {dial}":
                        print(json.dumps(row(page, family, adversary, dial)), flush=True)
        for dial in ("epsilon", "steps"):
            if wanted in f"torus, curious, {dial}, one record":
                print(
                    json.dumps(
                        row(
                            page,
                            "torus",
                            "curious",
                            dial,
                            unit="example",
                            batch_size=64,
                            records=3750,
                        )
                    ),
                    flush=True,
                )
        if "Chromium" in wanted or not wanted:
            in_chromium(page, wanted)
    finally:
        page.process.terminate()
        page.process.wait()


if __name__ == "__main__":
    main()
