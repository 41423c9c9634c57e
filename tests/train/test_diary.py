"""What a run tells of its course, and what is made of it."""

import pytest

from bayesnorm.train.diary import Diary


@pytest.mark.parametrize(
    ("events", "step"),
    [
        ([], 0),
        ([("start", 0)], 0),
        ([("start", 0), ("save", 4)], 4),
        ([("start", 0), ("save", 4), ("diverge", 9)], 4),
        ([("start", 0), ("save", 4), ("stop", 7)], 7),
        ([("start", 0), ("save", 4), ("finish", 8), ("start", 0)], 0),
    ],
)
def test_the_last_step_that_was_saved(events, step, tmp_path):
    """A divergence saves nothing, and a run that begins anew has nothing yet."""
    diary = Diary(tmp_path / "events.jsonl")
    for event, at in events:
        diary.note(event, step=at)
    assert diary.saved_at() == step
