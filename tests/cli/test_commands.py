"""The command as people meet it: real processes, exit codes, what is printed where."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import networkx as nx
import pytest

import decor
from decor import Adversary, Budget, Exposure

COMMAND = [str(Path(sys.executable).parent / "decor")]


def run(*arguments, check=0, command=COMMAND, **kwargs):
    done = subprocess.run(
        [*command, *map(str, arguments)], capture_output=True, text=True, timeout=120, **kwargs
    )
    assert done.returncode == check, done.stderr
    assert "Traceback" not in done.stderr
    return done


def test_plan_answers_as_the_library_does():
    answer = json.loads(
        run(
            "plan",
            "--topology",
            "torus",
            "--users",
            16,
            "--epsilon",
            3,
            "--adversary",
            "curious",
            "--json",
        ).stdout
    )
    plan = decor.calibrate(
        decor.torus(4, 4), Exposure(1.0, 1000), Adversary.curious(), Budget(3.0, 1e-5)
    )
    guarantee = plan.guarantee()
    assert answer["sigma_cdp"] == plan.sigma_cdp and answer["sigma_cor"] == plan.sigma_cor
    assert (
        answer["epsilon"] == guarantee.epsilon
        and answer["per_user_epsilon"] == guarantee.per_user.tolist()
    )
    assert answer["delta"] == 1e-5 and answer["adversary"] == "curious" and answer["exact"] is True
    assert answer["worst_user"] == guarantee.worst_user and answer["worst_coalition"] == list(
        guarantee.worst_coalition
    )


def test_account_gives_back_what_plan_was_asked_for():
    plan = json.loads(
        run(
            "plan", "--topology", "ring", "--users", 16, "--epsilon", 2.5, "--steps", 300, "--json"
        ).stdout
    )
    noise = ["--sigma-cdp", plan["sigma_cdp"], "--sigma-cor", plan["sigma_cor"]]
    account = json.loads(
        run("account", "--users", 16, "--steps", 300, *noise, "--delta", "1e-5", "--json").stdout
    )
    assert account["epsilon"] == plan["epsilon"] and account["sigma_cdp"] == plan["sigma_cdp"]
    assert set(plan) == set(account)


def test_tables_are_for_people(here):
    out = here("plan", "--epsilon", 3).stdout
    for words in (
        "sigma_cdp",
        "sigma_cor",
        "(3, 1e-05)-SecLDP over 1,000 steps",
        "eavesdropper",
        "curious",
        "everyone",
        "central DP",
        "local DP",
    ):
        assert words in out
    assert max(map(len, out.splitlines())) < 200


def test_gossip_moves_the_default_couple_and_the_predicted_errors_but_no_epsilon(here):
    answer = json.loads(
        here("plan", "--epsilon", 3, "--gossip-rounds", 8, "--accelerate", "--json").stdout
    )
    plain = Exposure(1.0, 1000), Adversary.curious(), Budget(3.0, 1e-5)
    plan = decor.calibrate(decor.ring(16), *plain, gossip_rounds=8, accelerate=True)
    assert (answer["sigma_cdp"], answer["sigma_cor"]) == (plan.sigma_cdp, plan.sigma_cor)
    one, eight = (
        here("plan", "--epsilon", 3, "--ratio", 200, "--gossip-rounds", k).stdout for k in (1, 8)
    )
    assert one.split("The same budget")[0] == eight.split("The same budget")[0], (
        "a fixed couple and its epsilons"
    )
    assert one != eight and "ratio 1000" in eight, "the table of predicted errors"


def test_a_saved_plan_can_be_accounted(here, tmp_path):
    file = tmp_path / "plan.json"
    planned = json.loads(
        here(
            "plan",
            "--epsilon",
            1,
            "--edges",
            "optimal",
            "--topology",
            "grid",
            "--save",
            file,
            "--json",
        ).stdout
    )
    assert len(planned["sigma_cor"]) == len(planned["edges"])
    again = json.loads(here("account", "--plan", file, "--json").stdout)
    assert again["epsilon"] == planned["epsilon"]
    assert "drop --sigma-cdp" in here("account", "--plan", file, "--sigma-cdp", 3, check=2).stderr
    for other in ("--steps", "--users", "--clip", "--graph", "--unit", "--records"):
        assert f"drop {other}" in here("account", "--plan", file, other, 9, check=2).stderr


def test_a_saved_plan_is_accounted_at_its_own_delta_against_whom_one_likes(here, tmp_path):
    file = tmp_path / "plan.json"
    here("plan", "--epsilon", 1, "--delta", "1e-9", "--save", file)
    own = json.loads(here("account", "--plan", file, "--json").stdout)
    assert own["delta"] == 1e-9 and 0.999 < own["epsilon"] <= 1.0 and own["adversary"] == "curious"
    other = json.loads(
        here(
            "account", "--plan", file, "--adversary", "everyone", "--delta", "1e-5", "--json"
        ).stdout
    )
    assert other["delta"] == 1e-5 and other["adversary"] == "everyone"
    assert (
        other["epsilon"]
        == decor.NoisePlan.load(file).guarantee(1e-5, Adversary.everyone()).epsilon
        > 1.5
    )


BRANCHES = """koeln ulm
ulm bonn
bonn koeln
bonn jena
jena ulm
"""
RECORDS = {"bonn": 1520, "jena": 300, "koeln": 90, "ulm": 800}
EXAMPLES = ["--unit", "example", "--batch-size", 16, "--steps", 100, "--epsilon", 3]


@pytest.fixture
def branches(tmp_path):
    (tmp_path / "branches.txt").write_text(BRANCHES)
    return ["--graph", tmp_path / "branches.txt", *EXAMPLES]


@pytest.mark.parametrize("form", ["words", "csv", "headed", "semicolons", "json"])
def test_records_of_named_users_go_by_name_in_every_form(here, branches, tmp_path, form):
    pairs = list(RECORDS.items())
    if form == "words":
        given = ",".join(f"{name}={count}" for name, count in pairs)
    elif form == "json":
        given = tmp_path / "records.json"
        given.write_text(json.dumps(dict(reversed(pairs))))
    else:
        mark = ";" if form == "semicolons" else ","
        lines = [f"user{mark}records"] * (form == "headed") + [
            f"{name}{mark} {count}" for name, count in pairs
        ]
        given = tmp_path / "records.csv"
        given.write_text("\ufeff" + "\n".join(lines) + "\n\n")
    answer = json.loads(here("plan", *branches, "--records", given, "--json").stdout)
    assert {each["user"]: each["records"] for each in answer["per_user"]} == RECORDS
    topology = decor.read(branches[1])
    plan = decor.calibrate(
        topology, Exposure(1.0, 100, "example", 16, RECORDS), Adversary.curious(), Budget(3.0, 1e-5)
    )
    epsilons = dict(zip(topology.labels, plan.guarantee().per_user.tolist(), strict=True))
    assert {each["user"]: each["epsilon"] for each in answer["per_user"]} == epsilons and answer[
        "sigma_cdp"
    ] == plan.sigma_cdp
    assert answer["expected_failures"] == pytest.approx(2710 * 1e-5)


def test_a_plan_for_named_users_shows_who_has_how_many_records_and_what_epsilon(here, branches):
    words = ",".join(f"{name}={count}" for name, count in RECORDS.items())
    out = here("plan", *branches, "--records", words).stdout
    table = out.split("Every user, against curious:\n")[1].split("\n\n")[0].splitlines()
    assert table[0].split() == ["user", "records", "epsilon"]
    rows = {line.split()[0]: line.split()[1:] for line in table[2:]}
    assert {name: int(row[0].replace(",", "")) for name, row in rows.items()} == RECORDS
    assert [float(line.split()[2]) for line in table[2:]] == sorted(
        (float(row[1]) for row in rows.values()), reverse=True
    )
    assert next(iter(rows)) == "koeln", "the most exposed first"
    assert (
        "delta x 2,710 records = 0.027: the expected number of records for whom the promise "
        "may fail."
    ) in out
    named = here("plan", "--graph", branches[1], "--epsilon", 3).stdout
    assert "user   epsilon" in named and "delta x 4 users = 4e-05" in named
    assert "Every user" not in here("plan", "--epsilon", 3).stdout, (
        "users without names, and all alike"
    )
    uneven = ["--records", ",".join(["90", *["900"] * 29])]
    several = here(
        "account", "--users", 30, "--sigma-cdp", 1, "--sigma-cor", 1, *EXAMPLES[:-2], *uneven
    ).stdout
    assert (
        "and 10 less exposed (--json lists everybody)" in several and several.count(" 900 ") == 19
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            "90,800,1520,300",
            "records is a list, but the users of this graph have names (koeln, ulm, bonn, jena)",
        ),
        ("bonn=1520,jena=300,koeln=90", "records has nothing for ulm"),
        (
            "bonn=1520,jena=300,koeln=90,ulm=800,celle=70",
            "records names celle, whom the graph does not have",
        ),
        ("bonn=1520,bonn=300,koeln=90,ulm=800", "has the user 'bonn' twice"),
        ("bonn=many", "must be a whole number, not 'many'"),
        ("=5", "give a whole number for each name"),
        ("nowhere.csv", "the file of records 'nowhere.csv' cannot be read: No such file"),
        ({"r.csv": "bonn,1520\nulm\n"}, "line 2 of the file of records"),
        ({"r.csv": "bonn,1520\nbonn,3\n"}, "has the user 'bonn' twice"),
        ({"r.csv": "user,records\n"}, "holds no user"),
        ({"r.csv": b"\xff\xfe"}, "is not a text file"),
        ({"r.json": '{"bonn": 1, "bonn": 2}'}, "has the user 'bonn' twice"),
        ({"r.json": '{"bonn": "many"}'}, "has 'many' records for the user 'bonn'"),
        ({"r.json": '{"bonn": [1]}'}, "records for the user 'bonn'"),
        ({"r.json": '{"bonn": '}, "is no JSON object"),
    ],
    ids=str,
)
def test_records_that_cannot_be_paired_are_refused(here, branches, tmp_path, given, said):
    if isinstance(given, dict):
        ((name, content),) = given.items()
        given = tmp_path / name
        given.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert said in here("plan", *branches, "--records", given, check=2).stderr


def test_a_delta_is_a_number_or_a_fraction_and_not_too_large(here):
    answer = json.loads(here("plan", "--epsilon", 3, "--delta", "1/100000", "--json").stdout)
    assert answer["delta"] == 1e-5 and answer["expected_failures"] == pytest.approx(16e-5)
    train = ["train", "--task", "digits", "--learning-rate", 1, "--output", "x"]
    for words in (["plan"], ["compare", "--output", "y"], ["audit"], train):
        wrong = here(*words, "--epsilon", 3, "--delta", "1/40", check=2).stderr
        assert "delta 0.025 is too large for 16 users: at most 0.001" in wrong
        assert "Take 1e-05" in wrong and "--any-delta" in wrong
    assert not Path("x").exists() and not Path("y").exists(), "refused before anything is made"
    large = json.loads(here("plan", "--epsilon", 3, "--delta", 0.5, "--any-delta", "--json").stdout)
    assert large["delta"] == 0.5 and large["expected_failures"] == 8
    assert (
        json.loads(
            here("account", "--sigma-cdp", 9, "--sigma-cor", 9, "--delta", 0.5, "--json").stdout
        )["delta"]
        == 0.5
    )
    for nonsense in ("1/0", "1/", "a/b", "/"):
        assert (
            "must be a number" in here("plan", "--epsilon", 3, "--delta", nonsense, check=2).stderr
        )


def test_whoever_says_no_adversary_is_protected_from_curious_users(here):
    for command, *words in (
        ("plan", "--epsilon", 3),
        ("account", "--sigma-cdp", 9, "--sigma-cor", 9),
    ):
        assert json.loads(here(command, *words, "--json").stdout)["adversary"] == "curious"
    alone = here("plan", "--epsilon", 3, "--topology", "path", "--users", 1, check=2).stderr
    assert (
        "one user alone has nobody beside it who could be curious; choose eavesdropper or everyone"
    ) in alone


def test_noise_by_edge_comes_with_its_edges(here, tmp_path):
    path = tmp_path / "ba.gml"
    nx.write_gml(nx.barabasi_albert_graph(12, 2, seed=1), path)
    answer = json.loads(
        here("plan", "--graph", path, "--epsilon", 3, "--edges", "optimal", "--json").stdout
    )
    assert len(answer["sigma_cor"]) == len(answer["edges"]) == 20 and answer["epsilon"] <= 3.0


def test_infinity_is_a_json_string(here):
    answer = json.loads(here("account", "--sigma-cdp", 0, "--sigma-cor", 5, "--json").stdout)
    assert answer["epsilon"] == "inf" and answer["per_user_epsilon"] == ["inf"] * 16


def test_graph_tells_what_a_graph_is_worth(here):
    facts = json.loads(here("graph", "--topology", "torus", "--users", 64, "--json").stdout)
    assert facts["users"] == 64 and facts["edges"] == 128 and facts["vertex_connectivity"] == 4
    assert facts["algebraic_connectivity"] == pytest.approx(2 - 2 * math.cos(math.pi / 4))
    assert facts["heterogeneity"] == pytest.approx(0.12)
    out = here("graph", "--topology", "star", "--users", 9).stdout
    assert "H_G(W)" in out and "isolate" in out


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_pictures_are_drawn(here, tmp_path, ending):
    begins = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[ending]
    for k, arguments in enumerate(
        [
            ("plan", "--epsilon", 3, "--adversary", "curious", "--topology", "grid"),
            ("account", "--sigma-cdp", 5, "--sigma-cor", 20, "--topology", "star"),
            ("account", "--sigma-cdp", 0, "--sigma-cor", 20),
            ("graph", "--topology", "erdos-renyi", "--users", 30, "--probability", 0.05),
            ("graph", "--topology", "ring", "--users", 3000),
        ]
    ):
        file = tmp_path / f"{k}.{ending}"
        here(*arguments, "--plot", file)
        assert file.read_bytes().startswith(begins) and file.stat().st_size > 5000


def test_a_disconnected_graph_is_answered_in_words(here, tmp_path):
    path = tmp_path / "two.txt"
    path.write_text("a b\nb c\na c\nd e\ne f\nd f\n")
    for arguments in (
        ("plan", "--epsilon", 3),
        ("account", "--sigma-cdp", 5, "--sigma-cor", 9),
        ("graph",),
    ):
        assert "2 parts that never hear of each other" in here(*arguments, "--graph", path).stdout
    assert "user a" in here("plan", "--epsilon", 3, "--graph", path).stdout, (
        "people are called by their names"
    )


def test_a_fragile_graph_is_answered_with_a_warning_in_words(here):
    out = here("plan", "--epsilon", 3, "--adversary", "colluding:2").stdout
    assert (
        "Warning: ring(16)" in out
        and "can isolate user 0" in out
        and "random_regular(16, degree=4)" in out
    )
    answer = json.loads(here("plan", "--epsilon", 3, "--adversary", "colluding:2", "--json").stdout)
    assert len(answer["warnings"]) == 1 and answer["sigma_cor"] == 0


BAD = [
    ("plan --epsilon 0", "epsilon must be a positive finite number, not 0.0"),
    ("plan --epsilon -1", "epsilon must be a positive"),
    ("plan --epsilon nan", "epsilon must be a positive"),
    ("plan --epsilon inf", "epsilon must be a positive"),
    ("plan --epsilon three", "--epsilon: must be a number, not 'three'"),
    ("plan", "--epsilon"),
    ("plan --epsilon 1 --delta 0", "delta must lie strictly between 0 and 1"),
    ("plan --epsilon 1 --delta 1", "delta must lie"),
    ("plan --epsilon 1 --delta nan", "delta must lie"),
    ("plan --epsilon 1 --steps 0", "steps must be a positive whole number"),
    ("plan --epsilon 1 --steps 2.5", "--steps: must be a whole number, not '2.5'"),
    ("plan --epsilon 1 --steps inf", "must be a whole number"),
    ("plan --epsilon 1 --clip 0", "clip must be a positive"),
    ("plan --epsilon 1 --clip -2", "clip must be a positive"),
    ("plan --epsilon 1 --adversary eve", "unknown adversary 'eve'"),
    ("plan --epsilon 1 --adversary colluding:16", "16 colluding users of 16 leave nobody"),
    ("plan --epsilon 1 --adversary colluding:-1", "unknown adversary"),
    ("plan --epsilon 1 --topology moebius", "unknown topology 'moebius'"),
    ("plan --epsilon 1 --users 0", "ring takes a whole number from 3"),
    ("plan --epsilon 1 --users -4 --topology torus", "a torus needs 4 to"),
    ("plan --epsilon 1 --users 13 --topology torus", "do not fill a torus"),
    ("plan --epsilon 1 --users 12 --topology hypercube", "power of two of users, not 12; take 16"),
    ("plan --epsilon 1 --topology random-regular --degree 16", "at most 15 neighbours"),
    ("plan --epsilon 1 --topology random-regular --users 5 --degree 3", "must be even"),
    ("plan --epsilon 1 --topology erdos-renyi --probability 2", "between 0 and 1"),
    ("plan --epsilon 1 --unit example", "needs batch_size and records"),
    (
        "plan --epsilon 1 --unit example --batch-size 10 --records 5",
        "larger than the smallest shard",
    ),
    ("plan --epsilon 1e300", "between 1e-100 and 1e+09"),
    ("plan --epsilon 1 --clip 1e300", "between 1e-100 and 1e+100"),
    ("plan --epsilon 1 --steps 1" + 30 * "0", "at most 10^15"),
    ("plan --epsilon 1 --sigma-cor 1e300", "at most 1e100"),
    ("account --sigma-cdp 1e-320 --sigma-cor 0", "between 1e-100 and 1e100"),
    ("plan --epsilon 1 --unit galaxy", "unit must be"),
    ("plan --epsilon 1 --ratio -1", "ratio must be a finite number"),
    ("plan --epsilon 1 --edges golden", '"uniform" or "optimal"'),
    ("plan --epsilon 1 --method guess", '"exact" or "paper"'),
    ("plan --epsilon 1 --graph nowhere.txt", "there is no graph file"),
    ("plan --epsilon 1 --plot nowhere/at/all.png", "make the folder 'nowhere/at' first"),
    ("plan --epsilon 1 --plot picture.docx", "its name must end in one of "),
    (
        "account --sigma-cdp 1 --sigma-cor 1 --plot picture",
        "the picture 'picture' cannot be written",
    ),
    ("graph --plot picture.docx", ".pdf, "),
    ("audit --plot picture.docx", ".png, "),
    ("plan --epsilon 1 --save nowhere/at/all.json", "cannot be written"),
    ("graph --save nowhere/at/all.txt", "cannot be written"),
    ("graph --save nowhere/at/all.gml", "cannot be written"),
    ("account --sigma-cdp 1", "give --sigma-cdp and --sigma-cor"),
    ("account --sigma-cdp -1 --sigma-cor 1", "sigma_cdp must be a finite number"),
    ("account --sigma-cdp 1 --sigma-cor nan", "sigma_cor must be a finite number"),
    ("plan --epsilon 1 --adversary colluding:" + 5000 * "9", "unknown adversary"),
    ("graph --topology torus --users 1000000000000000003", "to 100,000,000 users"),
    ("plan --epsilon 1 --degree 4", "--degree does not apply to ring"),
    ("graph --topology torus --probability 0.5", "--probability does not apply to torus"),
    ("graph --graph g.txt --topology ring", "--topology does not apply to --graph"),
    ("graph --graph-seed 3", "--graph-seed does not apply to ring"),
    ("plan --epsilon 1 --adversary average-only", "no adversary of DECOR"),
    ("plan --epsilon 1 --gossip-rounds -1", "gossip rounds must be a whole number from 0"),
    ("plan --epsilon 1 --gossip-rounds 1.5", "--gossip-rounds: must be a whole number"),
    ("plan --epsilon 1 --accelerate", "--accelerate changes nothing about --gossip-rounds 1"),
    ("account --plan nowhere.json", "cannot be read"),
    ("graph --ratio nan", "--ratio must be a finite number"),
    ("", "COMMAND"),
    ("dance", "invalid choice"),
    ("plan --epsilon 1 --verbosely", "unrecognized arguments"),
]


@pytest.mark.parametrize(("line", "said"), BAD, ids=[line or "nothing" for line, _ in BAD])
def test_bad_input_gets_exit_code_2_and_one_sentence(line, said, here):
    assert said in here(*line.split(), check=2).stderr


@pytest.mark.parametrize(
    "content",
    [b"", b"\x00\x01\x02", b"\xff\xfe", b"0 0\n", b"0 1\n0 1\n", b"a b c d e\n", b"# empty\n"],
)
def test_broken_graph_files_get_exit_code_2_and_one_sentence(here, tmp_path, content):
    path = tmp_path / "graph.txt"
    path.write_bytes(content)
    assert "graph.txt" in here("plan", "--epsilon", 1, "--graph", path, check=2).stderr


def test_json_is_alone_on_standard_output_and_errors_are_not():
    assert json.loads(run("graph", "--json").stdout)
    assert run("graph", "--topology", "x", "--json", check=2).stdout == ""


@pytest.mark.parametrize("command", ["", "plan", "account", "graph"])
def test_help_has_an_example(here, command):
    out = here(*command.split(), "--help").stdout
    assert "usage: decor" in out and (not command or "example:" in out)


@pytest.mark.parametrize("line", ["plan", "account", "graph"])
def test_the_example_in_the_help_works(here, line):
    out = here(line, "--help").stdout
    example = out.split("example:")[1].strip().split()
    assert example[0] == "decor"
    here(*[word for word in example[1:] if word not in ("--plot", "torus.png")])


def test_python_dash_m_is_the_same_command():
    module = run("graph", "--json", command=[sys.executable, "-m", "decor"])
    assert module.stdout == run("graph", "--json").stdout
    assert run("--version").stdout.strip() == f"decor {decor.__version__}"


def test_a_reader_who_leaves_is_no_error():
    done = subprocess.run(
        f"{COMMAND[0]} plan --epsilon 3 | head -1", shell=True, capture_output=True, text=True
    )
    assert done.returncode == 0 and done.stderr == ""


def test_progress_goes_to_a_terminal_on_standard_error_only(monkeypatch):
    """In a real pseudo-terminal: a line that is drawn over, and cleared at the end."""
    pty = pytest.importorskip("pty")
    code = (
        "import time\nfrom decor import progress\nfrom decor.cli.terminal import shown_progress\n"
        "with shown_progress():\n"
        " for k in range(14): progress.report('searching coalitions', k, 14); time.sleep(0.1)\n"
        "print('done')"
    )
    main, worker = pty.openpty()
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=worker, text=True
    )
    os.close(worker)
    drawn = os.read(main, 10_000).decode()
    assert (
        done.stdout == "done\n"
        and "searching coalitions" in drawn
        and "%" in drawn
        and drawn.endswith("\x1b[K")
    )
    quiet = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert quiet.stderr == ""
