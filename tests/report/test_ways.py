"""Which way of predicting stands for another."""

import pytest

from bayesnorm.report.ways import most, of_run, ordered


@pytest.mark.parametrize(
    ("found", "way", "used"),
    [
        (["single"], "mc30", "single"),
        (["single", "MC-BN"], "mc30", "single"),
        (["single", "MC-BN"], "MC-BN", "MC-BN"),
        (["single"], "MC-BN", "single"),
        (["single", "moments", "mc10"], "mc30", None),
        (["single", "moments", "mc10"], "MC-BN", None),
        (["single", "moments", "mc10"], "mc10", "mc10"),
    ],
)
def test_a_network_without_a_posterior_is_shown_by_its_single_pass(
    found: list[str], way: str, used: str | None
) -> None:
    assert of_run(dict.fromkeys(found), way) == used


def test_baselines_come_last_and_do_not_count_as_draws() -> None:
    assert ordered(["SBN", "MC-BN", "mc30", "single"]) == ["single", "mc30", "MC-BN", "SBN"]
    assert most(["SBN", "single", "MC-BN"]) == "single"
