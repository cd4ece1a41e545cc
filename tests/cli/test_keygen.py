"""`decor keygen` writes a key, and prints its public line."""

import json
import stat
import sys

from decor.net.identity import Identity, public_of

from .commands import run


def test_keygen_writes_the_key_for_its_owner_and_prints_the_line(tmp_path):
    line = run("keygen", "bonn", "--output", tmp_path).stdout.strip()
    file = tmp_path / "bonn.key"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert Identity.load(file).line == line and len(public_of(line)) == 32
    deep = tmp_path / "deep" / "er"
    answer = json.loads(run("keygen", "ulm", "--output", deep, "--json").stdout)
    public = Identity.load(deep / "ulm.key").line
    assert answer == {"name": "ulm", "file": str(deep / "ulm.key"), "public": public}


def test_keygen_overwrites_no_key_and_leaves_its_folder_for_none(tmp_path):
    run("keygen", "bonn", "--output", tmp_path)
    before = (tmp_path / "bonn.key").read_bytes()
    assert "never overwritten" in run("keygen", "bonn", "--output", tmp_path, check=2).stderr
    assert (tmp_path / "bonn.key").read_bytes() == before
    assert "NAME must be" in run("keygen", "../bonn", check=2, cwd=tmp_path).stderr


def test_without_cryptography_keygen_names_what_to_install(tmp_path):
    code = (
        "import sys; sys.modules['cryptography'] = None; from decor.cli.main import main; "
        "sys.exit(main(sys.argv[1:]))"
    )
    done = run("keygen", "bonn", check=2, command=[sys.executable, "-c", code], cwd=tmp_path)
    assert "pip install '.[peer]'" in done.stderr and not list(tmp_path.iterdir())
