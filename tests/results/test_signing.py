"""The section for signatures: what is left blank, and what is no date."""

import pytest

from decor.errors import InputError
from decor.results.signing import Signing, render_signing, today

DIGESTS = (("plan", "ab" * 32),)


def test_the_owners_line_is_begun_and_two_are_left():
    text = render_signing(Signing(digests=DIGESTS, owner="Dr <Weber>", date="2026-11-19"))
    assert text.count("<td>Dr &lt;Weber&gt;</td><td>owner</td>") == 1
    assert text.count("<tr>") == 4 and "ab" * 32 in text and "2026-11-19" in text
    assert "To check it" not in text
    check = Signing(digests=DIGESTS, check="decor account --plan p.json", date="2026-11-19")
    # nobody is named: the line is for whoever signs by hand
    text = render_signing(check)
    assert "<dt>owner</dt>" not in text and "<td></td><td>owner</td>" in text
    assert "To check it: <code>decor account --plan p.json</code>" in text


@pytest.mark.parametrize("date", ["", "19.11.2026", "2026-13-01", "tomorrow", today() + "T10:00"])
def test_what_is_no_day_is_refused(date):
    with pytest.raises(InputError, match="a day such as 2026-11-19, not"):
        Signing(digests=(), date=date)


def test_a_signing_is_read_as_it_was_written():
    signing = Signing(digests=DIGESTS, check="decor", owner="A", date=today())
    assert Signing.from_json(signing.to_json()) == signing
