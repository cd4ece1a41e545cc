"""Records of an audit: everything that was written is read, in order, also after a crash."""

import os

import pytest

from decor.federation.recording import KEY, MODEL, OF_EDGES, OF_STEPS, Recorder, read


@pytest.fixture
def path(tmp_path):
    return tmp_path / "bonn.witness"


@pytest.fixture
def record(path):
    """Makes recorders, and closes their files."""
    made = []

    def make():
        made.append(Recorder(path))
        return made[-1]

    yield make
    for recorder in made:
        recorder._file.close()


def test_what_a_recorder_has_written_is_read_in_order(path, record):
    first = record()
    first.record_model(3, 0, 1, b"model")
    first.record_start(1, memoryview(b"start"))
    again = record()  # after a crash
    again.record_keys(1, {3: b"key", 5: b"other"})
    assert list(read(path)) == [
        (3, 0, 1, b"model"),
        (0, 1, MODEL, b"start"),
        (3, 1, KEY, b"key"),
        (5, 1, KEY, b"other"),
    ]


def test_random_bytes_are_passed_on_and_recorded_with_their_origin(path, record):
    recorder = record()
    system = recorder.record_random(os.urandom, OF_EDGES)
    other = recorder.record_random(bytes, OF_STEPS)
    drawn = system(32)
    assert len(drawn) == 32 and other(4) == bytes(4)
    assert list(read(path)) == [(1, 0, OF_EDGES, drawn), (0, 0, OF_STEPS, bytes(4))]
