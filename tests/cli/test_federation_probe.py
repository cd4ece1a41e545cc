"""`decor federation probe`: its options and its table; the network is in federation/test_probe.py."""

import subprocess
import sys

import pytest

from decor.cli.federation_probe import show
from decor.federation.probe import Outcome
from decor.net.probe_messages import EdgeRow, Report, Versions

VERSIONS = Versions("0.1.0", "3.11.2", "2.9.0+cpu", None)
GOOD = EdgeRow("ulm", "direct", 0.0123, 41.5e6, 12e6, -0.004)
NAMES = ["bonn", "ulm", "kiel"]


def outcome(**changes):
    reports = {
        "bonn": Report("bonn", 1, True, VERSIONS, (GOOD, EdgeRow("kiel", problem="hung up"))),
        "ulm": Report("ulm", 1, True, VERSIONS, (EdgeRow("kiel", problem="is away"),)),
    }
    found = {
        "user": "bonn",
        "federation": "tumour",
        "digest": "ab" * 32,
        "at": 0.0,
        "reports": reports,
        "problems": ("kiel hung up",),
        "missing": ("kiel",),
        "edges": (("bonn", "ulm"), ("bonn", "kiel"), ("ulm", "kiel")),
    }
    return Outcome(**found | changes)


def test_the_table_is_plain_and_narrow_enough_for_a_mail():
    text = show(outcome(), NAMES)
    assert text.isascii() and max(map(len, text.splitlines())) <= 100
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "bonn - ulm direct 12.3 ms 41.5 12 -0.00 s bonn" in lines
    assert "bonn - kiel none - - - - bonn" in lines and "kiel - - - -" in lines
    assert "ulm says: kiel is away" in lines and "kiel has sent no report" in lines
    assert lines[-2:] == ["problems:", "kiel hung up"]
    assert show(outcome(problems=()), NAMES).endswith("everything agrees")


def test_every_edge_of_the_file_has_a_row_also_between_two_silent_members():
    """bonn and ulm have told; kiel, jena and trier have not, and kiel - jena is in nobody's report."""
    edges = (*outcome().edges, ("kiel", "jena"), ("jena", "trier"))
    silent = ("kiel", "jena", "trier")
    text = show(outcome(edges=edges, missing=silent), [*NAMES, "jena", "trier"])
    lines = [" ".join(line.split()) for line in text.splitlines()]
    table = lines[lines.index("edge way round trip MB/s there MB/s back clock reported by") + 2 :]
    assert table[: len(edges)] == [
        "bonn - ulm direct 12.3 ms 41.5 12 -0.00 s bonn",
        "bonn - kiel none - - - - bonn",
        "ulm - kiel none - - - - ulm",
        "kiel - jena - - - - - nobody",
        "jena - trier - - - - - nobody",
    ]


def test_an_edge_that_the_file_does_not_have_is_not_in_the_table_whoever_tells_of_it():
    report = Report("ulm", 1, True, VERSIONS, (EdgeRow("rome", "direct", 0.1, 1.0, 1.0, 0.0),))
    text = show(outcome(reports=outcome().reports | {"ulm": report}), NAMES)
    assert "rome" not in text and "ulm - kiel" in text


def test_who_sent_no_report_is_a_finding_of_this_members_and_not_told_by_others():
    told, _, rest = show(outcome(), NAMES).partition("not heard by bonn:\n")
    assert "reported by others, not verified:\n  ulm says: kiel is away" in told
    assert rest.startswith("  kiel has sent no report\n\n") and "no report" not in told
    assert "not heard" not in show(outcome(missing=()), NAMES)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--seconds", "0"], "--seconds must be positive"),
        (["--output", "nowhere/probe.txt"], "cannot be written"),
        (["--proxy", "ftp://a:1"], "proxy"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_probed(here, tmp_path, words, said):
    new = "federation new --task breast-cancer --users 3 --epsilon 10 --output"
    here(*new.split(), tmp_path / "trial")
    file, key = tmp_path / "trial/federation.toml", tmp_path / "trial/keys/bonn.key"
    assert said in here("federation", "probe", file, "--identity", key, *words, check=2).stderr


def test_a_lonely_probe_writes_its_table_ends_with_1_and_loads_no_torch(here, tmp_path):
    new = "federation new --task breast-cancer --users 3 --epsilon 10 --output"
    here(*new.split(), tmp_path / "trial")
    words = ["federation", "probe", str(tmp_path / "trial/federation.toml"), "--seconds", "0.5"]
    words += ["--identity", str(tmp_path / "trial/keys/bonn.key"), "--output", "probe.txt"]
    code = (
        "import sys; from decor.cli.main import main; "
        f"code = main({words!r}); sys.exit(50 if 'torch' in sys.modules else code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 1, done.stderr
    assert (tmp_path / "probe.txt").read_text() == done.stdout
    assert "ulm has not been reached yet" in done.stdout
