"""Report data as JSON, as real runs leave it: true plans and guarantees, invented metrics."""

import copy
import json
from functools import cache

import numpy as np

import decor
from decor.privacy.plan_answer import PlanAnswer
from decor.results.build_sign_page import page_of_plan
from decor.results.report_data import GraphDrawing, Report
from decor.results.signing import Signing

EPSILONS = (1.0, 3.0, 10.0, 30.0)
SEEDS = [0, 1, 2, 3]
DELTA = 1e-5
STEPS = 200
METRICS = [
    {"name": "accuracy", "label": "test accuracy", "better": "higher", "percent": True},
    {"name": "loss", "label": "training loss", "better": "lower"},
]
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>&amp;\u2028{{script}}\"'"


def read(data):
    """The report of JSON, by way of a file's text."""
    return Report.from_json(json.loads(json.dumps(data)))


def _drawing(graph, name):
    return GraphDrawing.of_topology(graph, name).to_json()


def _curves(best, noise, rng, steps=STEPS):
    """Accuracy and loss of every seed every 10 steps: they approach a level that more noise makes
    worse.
    """
    at = np.arange(0, steps + 1, 10)
    level = best - 0.36 * noise / (1 + noise)
    accuracy, loss = [], []
    for _ in SEEDS:
        end = level + rng.normal(0, 0.006 + 0.02 * noise / (1 + noise))
        wander = rng.normal(0, 0.004 + 0.012 * min(noise, 1), len(at))
        values = np.clip(end - (end - 0.5) * np.exp(-at / 35) + wander * (at > 0), 0.3, 1)
        accuracy.append([round(float(v), 4) for v in values])
        loss.append(
            [round(float(-np.log(np.clip(2 * v - 1, 0.03, 1)) * 0.7 + 0.06), 5) for v in values]
        )
    return {"step": at.tolist(), "accuracy": accuracy, "loss": loss}


def _against(plan):
    named = [
        decor.Adversary.eavesdropper(),
        decor.Adversary.curious(),
        decor.Adversary.colluding(2),
        decor.Adversary.everyone(),
    ]
    rows = []
    for adversary in named:
        found = plan.guarantee(adversary=adversary)
        epsilon = "inf" if np.isinf(found.epsilon) else found.epsilon
        rows.append(
            {
                "adversary": str(adversary),
                "epsilon": epsilon,
                "exact": found.exact,
                "worst_user": found.worst_user,
            }
        )
    return rows


def _outcome(method, epsilon, noise, rng, plan=None, **more):
    curve = _curves(0.972, noise, rng)
    outcome = {
        "method": method,
        "epsilon": epsilon,
        "delta": None if epsilon is None else DELTA,
        "seeds": list(SEEDS),
        "learning_rate": 0.3,
        "clip": 1.0,
        "sigma_cdp": 0.0,
        "sigma_cor": 0.0,
        "steps": STEPS,
        "planned_steps": STEPS,
        "stopped": None,
        "final": {name: [row[-1] for row in curve[name]] for name in ("accuracy", "loss")},
        "curve": curve,
        "guarantee": "",
        "per_user_epsilon": None,
        "adversaries": [],
    }
    if plan is not None:
        guarantee = plan.guarantee()
        outcome |= {
            "sigma_cdp": plan.sigma_cdp,
            "sigma_cor": float(np.mean(plan.sigma_cor)),
            "guarantee": str(guarantee),
        }
        if not plan.adversary.average_only:
            users = [float(value) for value in guarantee.per_user]
            outcome |= {"per_user_epsilon": users, "adversaries": _against(plan)}
    return outcome | more


def _surroundings(title, subtitle):
    return {
        "format": "decor-report-1",
        "title": title,
        "subtitle": subtitle,
        "made": "2026-11-15T10:20:30+00:00",
        "metrics": copy.deepcopy(METRICS),
        "tuning": {
            "tuned": True,
            "criterion": "training loss",
            "grid": {"learning_rate": [0.03, 0.1, 0.3, 1.0], "clip": [1.0]},
            "warning": "Tuning on private data is not free: the epsilons here are those of one "
            "run with the chosen settings, "
            "not of the search for them.",
        },
        "repeat": {
            "command": "decor compare --task breast-cancer --users 16 --topology ring torus "
            "--epsilon 1 3 10 30 --seeds 4",
            "versions": {"decor": "0.1.0", "torch": "2.13.0", "numpy": "2.1.0", "python": "3.11.9"},
            "machine": "2 cores, x86_64",
            "seconds": 12.34,
            "files": {"metrics": "metrics.jsonl", "plan": "plans/ring-3.json"},
            "options": {
                "task": "breast-cancer",
                "users": 16,
                "unit": "user",
                "delta": DELTA,
                "engine": "vectorised",
            },
        },
        "notes": [
            "The unit of privacy is a user: all records of one hospital are protected together.",
            "What is not covered: the choice of features and of the model, and what the users do "
            "with the final model.",
        ],
    }


@cache
def _comparison():
    rng = np.random.default_rng(7)
    data = _surroundings(
        "breast-cancer: what privacy costs 16 users",
        "Sixteen hospitals train one logistic regression without showing each other their "
        "gradients: DECOR on a ring and on a "
        "torus, beside central DP, local DP and no privacy.",
    )
    graphs = {"ring": decor.ring(16), "torus": decor.torus(4, 4)}
    data["graphs"] = [_drawing(graph, name) for name, graph in graphs.items()]
    data["methods"] = [
        {
            "name": "DECOR ring",
            "kind": "decor",
            "graph": "ring",
            "sentence": "noise that cancels between neighbours on a ring",
        },
        {
            "name": "DECOR torus",
            "kind": "decor",
            "graph": "torus",
            "sentence": "the same with four neighbours each",
        },
        {
            "name": "Central DP",
            "kind": "central",
            "graph": None,
            "sentence": "a trusted party sees all and adds noise once",
        },
        {"name": "Local DP", "kind": "local", "graph": "ring", "sentence": "everybody hides alone"},
        {
            "name": "No privacy",
            "kind": "none",
            "graph": "ring",
            "sentence": "gradients are shared as they are",
        },
    ]
    exposure = decor.Exposure(clip=1.0, steps=STEPS)
    outcomes = []
    for epsilon in EPSILONS:
        budget = decor.Budget(epsilon, DELTA)
        for name, graph in graphs.items():
            plan = decor.calibrate(
                graph, exposure, decor.Adversary.eavesdropper(), budget, gossip_rounds=1
            )
            outcomes.append(
                _outcome(
                    f"DECOR {name}",
                    epsilon,
                    (0.35 if name == "ring" else 0.24) / epsilon,
                    rng,
                    plan,
                )
            )
        central = decor.baselines.central(graphs["ring"], exposure, budget)
        outcomes.append(_outcome("Central DP", epsilon, 0.17 / epsilon, rng, central))
        local = decor.baselines.local(graphs["ring"], exposure, budget)
        outcomes.append(_outcome("Local DP", epsilon, 4.5 / epsilon, rng, local))
    outcomes.append(_outcome("No privacy", None, 0.0, rng))
    return data | {"outcomes": outcomes}


def comparison():
    """16 users on a ring and a torus, four epsilons, four seeds, with all baselines."""
    return copy.deepcopy(_comparison())


@cache
def _star():
    rng = np.random.default_rng(3)
    data = _surroundings(
        "digits on a star: the centre is hidden best", "Everybody has another epsilon."
    )
    data["graphs"] = [_drawing(decor.star(16), "star")]
    data["methods"] = [
        {
            "name": "DECOR star",
            "kind": "decor",
            "graph": "star",
            "sentence": "one hospital in the middle",
        }
    ]
    exposure = decor.Exposure(clip=1.0, steps=STEPS)
    data["outcomes"] = []
    for epsilon in (1.0, 10.0):
        plan = decor.calibrate(
            decor.star(16),
            exposure,
            decor.Adversary.eavesdropper(),
            decor.Budget(epsilon, DELTA),
            gossip_rounds=1,
        )
        data["outcomes"].append(_outcome("DECOR star", epsilon, 0.4 / epsilon, rng, plan))
    return data


def star():
    """A star, where users differ in epsilon."""
    return copy.deepcopy(_star())


def diverged():
    """The comparison where local DP lost all seeds at epsilon 1 and one of four at epsilon 3."""
    data = comparison()
    for outcome in data["outcomes"]:
        if outcome["method"] == "Local DP" and outcome["epsilon"] in (1.0, 3.0):
            lost = range(4) if outcome["epsilon"] == 1.0 else (3,)
            for name in ("accuracy", "loss"):
                for seed in lost:
                    outcome["final"][name][seed] = None
                    outcome["curve"][name][seed][6:] = [None] * 15
            outcome["stopped"] = "The loss became infinite at step 60: try a smaller learning rate."
            outcome |= {"steps": 60, "spent": 0.61}
    return data


def single():
    """What one `decor train` leaves: one method, one outcome, one seed."""
    data = comparison()
    one = next(o for o in data["outcomes"] if o["method"] == "DECOR ring" and o["epsilon"] == 3.0)
    one["seeds"] = [0]
    one["final"] = {name: values[:1] for name, values in one["final"].items()}
    one["curve"] = {
        name: values if name == "step" else values[:1] for name, values in one["curve"].items()
    }
    data |= {
        "title": "breast-cancer with DECOR on a ring",
        "outcomes": [one],
        "methods": data["methods"][:1],
        "tuning": None,
    }
    return data | {"graphs": data["graphs"][:1]}


def large(users=3000):
    """A graph too large to draw, on which epsilons differ."""
    data = star()
    rng = np.random.default_rng(1)
    data["graphs"] = [
        {"name": "star", "description": f"random graph of {users} users", "users": users}
    ]
    for outcome in data["outcomes"]:
        values = outcome["epsilon"] * rng.uniform(0.6, 1, users)
        outcome["per_user_epsilon"] = [*map(float, values[1:]), "inf"]
        outcome["adversaries"] = outcome["adversaries"][:1]
    return data


def hostile():
    """Markup and code in every text that a person can choose."""
    data = star()
    data |= {"title": HOSTILE, "subtitle": HOSTILE, "notes": [HOSTILE], "made": HOSTILE}
    data["metrics"][0]["label"] = HOSTILE
    data["methods"][0] |= {"name": HOSTILE, "sentence": HOSTILE}
    data["graphs"][0] |= {"description": HOSTILE, "labels": [HOSTILE + str(k) for k in range(16)]}
    data["repeat"] |= {
        "command": HOSTILE,
        "machine": HOSTILE,
        "versions": {HOSTILE: HOSTILE},
        "options": {HOSTILE: [HOSTILE]},
    }
    data["tuning"] |= {"warning": HOSTILE, "criterion": HOSTILE, "grid": {HOSTILE: HOSTILE}}
    for outcome in data["outcomes"]:
        outcome |= {"method": HOSTILE, "guarantee": HOSTILE, "stopped": HOSTILE}
        for row in outcome["adversaries"]:
            row["adversary"] = HOSTILE
    return data


LONG_NAMES = [f"Zweigstelle {k:02d} Niederösterreich Sankt Pölten-Land" for k in range(40)]


@cache
def forty_branches():
    """40 users with long names, whom their neighbours expose differently."""
    edges = [(k, (k + 1) % 40) for k in range(40)] + [(k, (k + 7) % 40) for k in range(0, 40, 3)]
    return decor.from_edges(40, edges, LONG_NAMES)


@cache
def _forty():
    rng, graph = np.random.default_rng(5), forty_branches()
    data = _surroundings("Forty branches of a bank", graph.description)
    name = "DECOR among forty branches that have long names of their own"
    data["graphs"] = [_drawing(graph, "branches")]
    data["methods"] = [
        {"name": name, "kind": "decor", "graph": "branches", "sentence": "noise that cancels"},
        {"name": "Central DP", "kind": "central", "graph": None, "sentence": "a trusted party"},
    ]
    data["outcomes"] = []
    for epsilon in (1.0, 10.0):
        asked = graph, decor.Exposure(clip=1.0, steps=STEPS)
        budget = decor.Budget(epsilon, DELTA)
        plan = decor.calibrate(*asked, decor.Adversary.curious(), budget)
        data["outcomes"].append(_outcome(name, epsilon, 0.4 / epsilon, rng, plan))
        central = decor.baselines.central(*asked, budget)
        data["outcomes"].append(_outcome("Central DP", epsilon, 0.2 / epsilon, rng, central))
    data["signing"] = {
        "digests": [["plan", "ab" * 32], ["federation", "cd" * 32]],
        "check": "",
        "owner": "Dr Maximiliane Weber-Niederösterreich, data protection officer",
        "date": "2026-11-19",
    }
    return data


def forty():
    """Forty users, with names longer than a column, in a report that is signed."""
    return copy.deepcopy(_forty())


def forty_run():
    """One run of forty users."""
    data = forty()
    return data | {"methods": data["methods"][:1], "outcomes": data["outcomes"][:1]}


@cache
def sign_page():
    """The page of a plan with own noise for each of the forty users."""
    answer = PlanAnswer.calibrate(
        forty_branches(),
        decor.Exposure(1.0, 50),
        decor.Adversary.colluding(2),
        decor.Budget(3.0, DELTA),
        own="per-user",
    )
    signing = Signing(
        digests=(("plan (SHA-256)", "ab" * 32),),
        check="decor account --plan branches.json",
        owner="Dr Weber",
        date="2026-11-19",
    )
    return page_of_plan(answer, "branches.json", signing)


EVERY = [comparison, star, diverged, single, large, hostile, forty, forty_run]
