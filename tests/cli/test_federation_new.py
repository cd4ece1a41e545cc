"""`decor federation new` writes a federation file."""

import pytest

import decor
from decor.federation.federation import Federation


def test_a_federation_of_real_users_is_written_once_and_checked(here, tmp_path, users):
    file = tmp_path / "heart.toml"
    line = "federation new --name heart --epsilon 3 --steps 200 --learning-rate 0.5 --features 30"
    new = [*line.split(), "--output", file, *users()]
    out = here(*new).stdout
    federation = Federation.read(file)
    assert federation.name == "heart" and federation.training.steps == 200
    assert federation.privacy.adversary == "curious" and federation.network.topology == "ring"
    assert [member.key for member in federation.members] == list(users.lines.values())
    assert "sigma" not in file.read_text(), "noise is derived, never written"
    for words in ("sigma_cdp", "curious", "everyone", "bonn.example.org:7400", "stronger"):
        assert words in out
    assert out == f"wrote {file}\n{here('federation', 'check', file).stdout}"
    before = file.read_bytes()
    assert "--overwrite" in here(*new, check=2).stderr and file.read_bytes() == before


def test_graphs_are_written_by_name_or_by_their_edges(here, tmp_path, users):
    graph = tmp_path / "graph.txt"
    graph.write_text("bonn ulm\nulm kiel\nkiel jena\njena bonn\nbonn kiel\n")
    line = "federation new --name heart --epsilon 3 --features 30 --json --output"

    def new(name, *options, count=4):
        here(*line.split(), tmp_path / name, *users(count=count), *options)
        return Federation.read(tmp_path / name)

    torus = new("a", "--topology", "torus").network
    assert (torus.topology, torus.rows) == ("torus", 2)
    regular = new("b", "--topology", "random-regular", "--degree", 3)
    assert regular.network.edges is not None and regular.topology.edge_count == 6
    path = new("c", "--edges", "bonn:ulm,ulm:kiel,kiel:jena").topology
    assert path.edges.tolist() == [[0, 1], [1, 2], [2, 3]]
    assert new("d", "--graph", graph).topology.edge_count == 5
    assert new("e", count=2).network.topology == "path"


def test_every_option_reaches_its_field(here, tmp_path, users):
    words = (
        "--delta 1e-6 --adversary eavesdropper --unit example --batch-size 8 --sampling poisson "
        "--relation replace --ratio 30 --steps 20 --clip 2 --learning-rate 0.3 --schedule cosine "
        "--final 0.1 --momentum 0.5 --weight-decay 0.01 --gossip-rounds 3 --accelerate chebyshev "
        "--final-gossip-rounds 4 --dtype float64 --model mlp --features 6 --classes 3 --hidden 5,4 "
        "--activation tanh --seed 9 --timeout 5 --quorum 1 --patience 60"
    ).split()
    file = tmp_path / "all.toml"
    new = "federation new --name all --epsilon 3 --output".split()
    here(*new, file, *words, *users(",50"))
    held = Federation.read(file).fields()
    for option, text in zip(words[::2], words[1::2], strict=True):
        name = {"model": "kind"}.get(option[2:], option[2:].replace("-", "_"))
        (value,) = [held[field] for field in held if field.endswith(f".{name}")]
        if name == "hidden":
            assert list(value) == [5, 4]
        else:
            assert str(value) == text or float(value) == float(text)
    assert held["users.records"] == [50] * 4


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("--schedule inverse-time:50", "--schedule inverse-time --horizon 50"),
        ("--schedule cosine:0.1", "--schedule cosine --final 0.1"),
        ("--gossip-rounds 3 --accelerate", "--gossip-rounds 3 --accelerate chebyshev"),
        ("--gossip-rounds 3 --accelerate no", "--gossip-rounds 3"),
    ],
)
def test_options_of_train_are_spelled_the_same_and_give_the_same_file(
    here, tmp_path, users, one, other
):
    line = "federation new --name heart --epsilon 3 --steps 50 --features 30 --output".split()
    for name, options in (("one", one), ("other", other)):
        here(*line, tmp_path / name, *users(), *options.split())
    assert (tmp_path / "one").read_text() == (tmp_path / "other").read_text()


BAD = [
    ("--epsilon 3", "give either --user NAME,ADDRESS,KEY"),
    ("--epsilon 3 --task breast-cancer --user a,b,c", "give either --user"),
    ("--task breast-cancer", "required: --epsilon"),
    ("--epsilon 3 --task iris", "breast-cancer, digits, a9a, mnist"),
    ("--epsilon 3 --task least-squares", "no trial of task"),
    ("--epsilon 3 --user a,b,c", "give --name"),
    ("--epsilon 3 --name x --user a,b", "must be NAME,ADDRESS,KEY"),
    ("--epsilon 3 --name x --user a,b:1,key,many", "a whole number, not 'many'"),
    ("--epsilon 3 --name x --features 3 --user a,b:1,key", "users.key of user 0 (a)"),
    ("--epsilon 3 --name x --users 3 --user a,b:1,key", "--users is for --task"),
    ("--epsilon 3 --task breast-cancer --topology ring --users 2", "from 3"),
    ("--epsilon 3 --task breast-cancer --adversary average-only", "privacy.adversary must be"),
    ("--epsilon 3 --task breast-cancer --edges bonn:rome", "'rome'"),
    ("--epsilon 3 --task breast-cancer --edges bonn:ulm --topology ring", "drop --topology"),
    ("--epsilon 3 --task breast-cancer --unit example", "training.batch_size is missing"),
    *(
        (f"--epsilon 3 --task breast-cancer {options}", said)
        for options, said in (
            ("--schedule inverse-time", "--schedule inverse-time needs the steps after which"),
            ("--schedule inverse-time:x", "takes a number, such as inverse-time:5000, not 'x'"),
            ("--schedule inverse-time:5 --horizon 6", "drop --horizon"),
            ("--schedule pl:1:2", "--schedule pl:1:2 is unknown; choose constant"),
            ("--accelerate quick", "must be no, chebyshev or designed, not 'quick'"),
        )
    ),
    ("--epsilon 0 --task breast-cancer", "privacy.epsilon must be a positive number"),
]


@pytest.mark.parametrize(("line", "words"), BAD, ids=[words[:40] for _, words in BAD])
def test_bad_input_is_one_sentence_and_leaves_nothing(here, tmp_path, line, words):
    done = here("federation", "new", "--output", tmp_path / "out", *line.split(), check=2)
    assert words in done.stderr and not (tmp_path / "out").exists()


@pytest.mark.parametrize("said", ["", " --gossip-rounds auto"])
def test_by_default_rounds_are_chosen_and_become_a_number_of_the_file(here, tmp_path, users, said):
    file = tmp_path / "heart.toml"
    line = f"federation new --name heart --epsilon 3 --steps 50 --features 30{said}"
    here(*line.split(), "--output", file, *users())
    federation = Federation.read(file)
    exact = (federation.training.gossip_rounds, federation.training.accelerate)
    assert exact == (2, "designed"), "a ring of four has two eigenvalues beside 1"
    plan = federation.plan
    # the ratio at which one absence is cheap
    assert plan.sigma_cor**2 <= 1.001 * 4 * 50 / 4 * plan.sigma_cdp**2
    refused = here(*line.split(), "--accelerate", "chebyshev", "--output", file, *users(), check=2)
    assert "drop --accelerate" in refused.stderr


def test_rounds_of_a_trial_are_chosen_for_its_noise(here, tmp_path):
    folder = tmp_path / "trial"
    line = "federation new --task breast-cancer --users 8 --epsilon 10 --topology"
    here(*line.split(), "complete", "--output", folder)
    assert Federation.read(folder / "federation.toml").training.gossip_rounds == 1
    here(*line.split(), "ring", "--gossip-rounds", "auto", "--output", folder, "--overwrite")
    federation = Federation.read(folder / "federation.toml")
    gossip = decor.gossip_for(federation.plan)
    assert federation.training.gossip_rounds == gossip.rounds > 1
    assert federation.training.accelerate == "designed"
