"""The federation's file: what is read and written, and what is refused."""

import pytest
from federation_files import EXAMPLE, KEYS, PRIVACY, TEXT, users
from hypothesis import given, settings
from hypothesis import strategies as st

from decor.errors import InputError
from decor.federation.federation import Federation, Member, Model, Network, Privacy, Training

DEFAULTS = [
    ("delta = 1e-5", 'delta = 1e-5\nunit = "user"\nrelation = "replace"'),
    ("epsilon = 3.0", "epsilon = 3"),
    ('"curious"', '"colluding:1"'),
    (
        "learning_rate = 0.5",
        'learning_rate = 0.5\nschedule = "constant"\nmomentum = -0.0\nweight_decay = '
        "0\ngossip_rounds = 1\n"
        'accelerate = "no"\nfinal_gossip_rounds = 0\ndtype = "float32"',
    ),
    ("features = 30", "features = 30\nclasses = 2"),
    ('topology = "ring"', 'topology = "ring"\ntimeout = 30\nquorum = 0.5\npatience = 300.0'),
]


@pytest.mark.parametrize(("short", "long"), DEFAULTS, ids=lambda text: text[:20])
def test_a_file_that_spells_out_a_default_is_the_same_federation(short, long):
    assert TEXT.count(short) == 1
    assert Federation.parse(TEXT.replace(short, long)).digests == Federation.parse(TEXT).digests


@settings(max_examples=30, deadline=None)
@given(
    st.floats(0.01, 1e3),
    st.floats(1e-12, 1e-3),
    st.integers(1, 2**32 - 1),
    st.floats(1e-6, 1e6),
    st.floats(0, 0.999),
    st.sampled_from(["float32", "float64"]),
    st.lists(st.integers(1, 64), min_size=1, max_size=3),
    st.text("abcXYZ019._-", min_size=1, max_size=20).filter(lambda text: text[0] not in "._-"),
    st.integers(0, 2**63 - 1),
)
def test_what_is_written_is_read_again(
    epsilon, delta, steps, rate, momentum, dtype, hidden, name, seed
):
    federation = Federation(
        name=name,
        privacy=Privacy(
            epsilon=epsilon, delta=delta, adversary="everyone", unit="example", sampling="fixed"
        ),
        training=Training(
            steps=steps, clip=rate, learning_rate=rate, momentum=momentum, dtype=dtype, batch_size=3
        ),
        model=Model(kind="mlp", features=5, classes=3, hidden=hidden, seed=seed),
        network=Network(edges=[("a", "b"), ("c", "b")], quorum=1),
        members=[Member(n, "", bytes([k]) * 32, 9 + k) for k, n in enumerate("ac")]
        + [Member("b", "[::1]:7400", bytes(32 * [7]), 5)],
    )
    again = Federation.parse(federation.to_toml())
    assert (
        again == federation
        and again.fields() == federation.fields()
        and again.to_toml() == federation.to_toml()
    )


REFUSED = [
    ("format = ", "# ", "format must be .* not None"),
    ("federation-1", "federation-9", "format .*other versions are not read"),
    ('name = "heart"\n', "", "name is missing"),
    ('"heart"', '"my heart"', "name must be .* not 'my heart'"),
    ('"heart"', "3", "name must be .* not 3"),
    ("steps =", "stepz =", "training.stepz .*did you mean steps"),
    ("[model]", "[modell]", "modell .*did you mean model"),
    ("[model]", "[privacy.model]", "privacy.model .*there are epsilon"),
    ("epsilon = 3.0\n", "", "privacy.epsilon is missing; give a positive number"),
    (PRIVACY, "", r"section \[privacy\] is missing"),
    ("epsilon = 3.0", "epsilon = 0", "privacy.epsilon must be .* not 0"),
    ("epsilon = 3.0", 'epsilon = "3"', "privacy.epsilon must be .* not '3'"),
    ("epsilon = 3.0", "epsilon = true", "privacy.epsilon must be .* not True"),
    ("epsilon = 3.0", "epsilon = nan", "privacy.epsilon must be .* not nan"),
    ("epsilon = 3.0", "epsilon = inf", "privacy.epsilon must be .* not inf"),
    ("1e-5", "1", "privacy.delta must be .* not 1"),
    ('"curious"', '"average-only"', "privacy.adversary must be .* not 'average-only'"),
    ('"curious"', '"nobody"', "privacy.adversary must be .* not 'nobody'"),
    ('"curious"', '"colluding:4"', "privacy.adversary: 4 colluding users of 4"),
    ('"curious"', '"curious"\nunit = "group"', "privacy.unit must be .* not 'group'"),
    ('"curious"', '"curious"\nsampling = "poisson"', "privacy.sampling .*unit = .example"),
    ('"curious"', '"curious"\nrelation = "add-remove"', "privacy.relation .*unit = .example"),
    ('"curious"', '"curious"\nunit = "example"', "training.batch_size is missing"),
    ("epsilon = 3.0", "sigma_cdp = 0.1\nepsilon = 3.0", "privacy.sigma_cdp is not a field"),
    ("steps = 200", "steps = 0", "training.steps must be .* not 0"),
    ("steps = 200", "steps = 4294967296", "training.steps must be .* not 4294967296"),
    ("steps = 200", "steps = 200.0", "training.steps must be .* not 200.0"),
    ("clip = 1.0", "clip = -1.0", "training.clip must be .* not -1.0"),
    ("0.5", "0.5\nmomentum = 1", "training.momentum must be .* not 1"),
    ("0.5", '0.5\nschedule = "step"', "training.schedule must be .* not 'step'"),
    ("0.5", '0.5\nschedule = "inverse-time"', "needs training.horizon"),
    ("0.5", "0.5\nfinal = 0.5", "training.final .*schedule = .cosine"),
    ("0.5", "0.5\ngossip_rounds = 0", "training.gossip_rounds must be .* not 0"),
    ("0.5", '0.5\naccelerate = "designed"', "training.accelerate .*one gossip round"),
    ("0.5", '0.5\ndtype = "float16"', "training.dtype must be .* not 'float16'"),
    ('kind = "logistic"', 'kind = "forest"', "model.kind must be .* not 'forest'"),
    ('kind = "logistic"', 'kind = "logistic"\ncode = "a:b"', "give either model.kind"),
    ('kind = "logistic"\n', "", "give either model.kind"),
    ('kind = "logistic"', 'code = "rm -rf"', "model.code must be .package.module:function"),
    ('kind = "logistic"', 'code = "a:b"', "model.features 30 does not apply to model 'code'"),
    ("features = 30\n", "", "model.features is missing: model 'logistic' needs a whole number"),
    ("features = 30", "features = 30\nhidden = [3]", r"model.hidden \(3,\) does not apply"),
    ("features = 30", "features = 30\nclasses = 3", "model.classes must be 2 .* not 3"),
    ('"logistic"', '"mlp"\nclasses = 2\nhidden = []', r"model.hidden must be .* not \[\]"),
    ('"logistic"', '"mlp"\nclasses = 2\nhidden = [99999, 99999]', "more than the 4 GB"),
    ('topology = "ring"\n', "", "give either network.topology"),
    ('"ring"', '"moebius"', "network.topology must be .* not 'moebius'"),
    ('"ring"', '"random-regular"', "network.topology .*write its edges"),
    ('"ring"', '"ring"\nrows = 2', "network.rows 2 .*torus and grid only"),
    ('"ring"', '"torus"\nrows = 3', "network.rows 3 does not divide 4 users"),
    ('topology = "ring"', 'edges = ["bonn"]', "network.edges must be pairs of users"),
    ('topology = "ring"', 'edges = [["bonn", "rome"]]', "network.edges names 'rome'"),
    ('topology = "ring"', 'edges = [["bonn", "bonn"]]', "network.edges: .*bonn-bonn"),
    ('topology = "ring"', 'edges = [["bonn", "ulm"], ["ulm", "bonn"]]', "edges: .*bonn-ulm"),
    ('topology = "ring"', 'edges = [["bonn", "ulm"]]', "network.edges: .* 3 parts"),
    ('"ring"', '"ring"\nquorum = 0', "network.quorum must be .* not 0"),
    ('"ring"', '"ring"\nquorum = 1.5', "network.quorum must be .* not 1.5"),
    ('"ring"', '"ring"\ntimeout = 0.0', "network.timeout must be .* not 0.0"),
    (users(), "", "users are missing"),
    (users(), users(["bonn"]), "users: the file lists 1"),
    (users(), users(["bonn", "ulm"]), 'network.topology "ring" does not fit 2 users'),
    (users(), users(["bonn", "ulm", "bonn"]), "users.name 'bonn' appears more than once"),
    (users(), users(addressless=("bonn", "ulm")), "users.address is empty for 'bonn' and 'ulm'"),
    (KEYS[1], KEYS[0], "users.key 'decor-ed25519 .* appears more than once"),
    ("ulm.example.org", "bonn.example.org", "users.address 'bonn.* appears more than once"),
    ("ulm.example.org:7400", "ulm.example.org", r"users.address of 'ulm': .* \(user 1 \(ulm\)\)"),
    (
        "ulm.example.org:7400",
        "ulm example:7400",
        "users.address of 'ulm': .*is not an address; give host:port",
    ),
    ('name = "ulm"', 'name = "../ulm"', r"users.name must be .* \(user 1\)"),
    ('name = "ulm"\n', "", "users.name of user 1 is missing"),
    (f'key = "{KEYS[1]}"\n', "", r"users.key of user 1 \(ulm\) is missing"),
    (KEYS[1], "ssh-ed25519 AAAA", r"users.key of user 1 \(ulm\): 'ssh-ed25519 AAAA'"),
    ('name = "ulm"', 'nom = "ulm"\nname = "ulm"', r"users \(user 1 \(ulm\)\): nom "),
    ('name = "ulm"', 'records = 5\nname = "ulm"', "users.records of 'ulm' .*unit = .example"),
    ("name = ", "name ", "this is not TOML"),
]
"""(text, what replaces it, words of the error)."""


@pytest.mark.parametrize(("old", "new", "error"), REFUSED, ids=[row[2][:50] for row in REFUSED])
def test_what_cannot_be_meant_is_refused_with_its_field(old, new, error):
    assert old in TEXT
    # one that breaks the syntax stands alone: its first line is where the reader stops
    text = TEXT.replace(old, new, 1) if old != "name = " else "name heart"
    with pytest.raises(InputError, match=error):
        Federation.parse(text)


REFUSED_EXAMPLES = [
    (("records = 120\n", ""), "users.records of 'bonn' is missing"),
    (
        ("records = 120", "records = 19"),
        "training.batch_size 20 is larger than users.records of 'bonn', 19",
    ),
    (("records = 120", "records = 0"), "users.records must be a whole number from 1"),
    (
        ('unit = "example"', 'unit = "example"\nsampling = "fixed"\nrelation = "add-remove"'),
        "privacy.relation .* is accounted for",
    ),
]


@pytest.mark.parametrize(("change", "said"), REFUSED_EXAMPLES)
def test_example_level_refuses_what_it_cannot_account(change, said):
    assert change[0] in EXAMPLE
    with pytest.raises(InputError, match=said):
        Federation.parse(EXAMPLE.replace(*change, 1))


def test_two_lines_of_one_key_are_one_key():
    """Base64 leaves two bits over, so that four lines say the same."""
    other = KEYS[0][:-2] + chr(ord(KEYS[0][-2]) + 1) + "="
    assert other != KEYS[0]
    with pytest.raises(InputError, match="users.key .* appears more than once"):
        Federation.parse(TEXT.replace(KEYS[1], other))


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(
        InputError, match="the federation '.*nowhere.toml' cannot be read: No such file"
    ):
        Federation.read(tmp_path / "nowhere.toml")
    (tmp_path / "raw").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="is not a text file"):
        Federation.read(tmp_path / "raw")
    (tmp_path / "bad.toml").write_text(TEXT.replace("steps = 200", "steps = 0"))
    with pytest.raises(InputError, match="the federation '.*bad.toml': training.steps must be"):
        Federation.read(tmp_path / "bad.toml")
    (tmp_path / "good.toml").write_text(TEXT)
    assert Federation.read(str(tmp_path / "good.toml")) == Federation.parse(TEXT)
