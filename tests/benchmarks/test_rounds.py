import itertools
import time

import pytest
import torch
from rounds import interleaved, milliseconds, peak, ratio, repeated, seconds

CPU = torch.device("cpu")


def test_every_round_has_all_works_and_begins_with_another() -> None:
    calls: list[str] = []
    works = {name: repeated(lambda name=name: calls.append(name), 1) for name in "abc"}
    times = interleaved(works, 4, CPU)
    assert "".join(calls) == "abc" + "bca" + "cab" + "abc"
    assert {name: len(found) for name, found in times.items()} == {"a": 4, "b": 4, "c": 4}


def test_a_time_is_that_of_one_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(0.0, 6.0)
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    assert seconds(repeated(lambda: None, 3), CPU) == 2.0
    assert seconds(lambda: 1 / 3, CPU) == pytest.approx(18.0)


def test_ratios_are_taken_within_a_round() -> None:
    # The medians have ratio 3 / 10; in each round it is 1 / 10, 3 / 5 and 9 / 12.
    assert ratio([1.0, 3.0, 9.0], [10.0, 5.0, 12.0]) == 0.6
    assert ratio([1.0], None) is None
    assert milliseconds([0.001, 0.5, 0.002]) == 2.0


def test_peak_memory_is_the_most_at_one_time_beyond_what_was_there() -> None:
    before = torch.zeros(1 << 20)
    with peak(CPU) as found:
        for size in (2, 8, 4):
            torch.zeros(size << 18)
        kept = torch.zeros(1 << 18)
        torch.zeros(4 << 18)
    assert len(kept) < len(before)
    assert found.allocated == pytest.approx(8, abs=0.1)
    assert found.reserved is None
