"""Reasons for stopping, as manifests of this and of the first version hold them."""

import pytest

from decor.results.stop_reason import StopReason


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("diverged at step 4: try a smaller learning rate", "diverged"),
        ("interrupted after step 2; go on with --resume", "interrupted"),
        ("stopped after step 3 of 6", "unfinished"),
        ("stopped by a callback after step 3", "callback"),
        ("the loss is good enough", "callback"),
    ],
)
def test_the_sentences_of_version_0_1_tell_their_cause(text, cause):
    reason = StopReason.load(text, None)
    assert reason == text and reason.cause == cause
    assert StopReason.load(text, "unfinished").cause == "unfinished", "a stored cause counts"
