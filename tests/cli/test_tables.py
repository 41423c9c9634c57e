import io
import math

import pytest
from rich.console import Console

from bayesnorm.cli.tables import WIDE, console, evaluation_table, scales_table
from bayesnorm.evaluate.metrics import Metrics


def text(table, width=100, styled=False):
    file = io.StringIO()
    Console(file=file, width=width, force_terminal=styled, no_color=not styled).print(table)
    return file.getvalue()


def cells(shown, first):
    """The words of the line that begins with this one."""
    return next(words for words in map(str.split, shown.splitlines()) if words[:1] == [first])


def rows():
    return {
        "batch": {"single": Metrics(100, 0.9, 0.5, 0.08)},
        "analytic+projection+bayes": {
            "single": Metrics(100, 0.95, 0.6, 0.09),
            "mc10": Metrics(100, 0.94, 0.4, 0.05),
            "mc30": Metrics(100, 0.94, 0.3, 0.04),
        },
    }


def test_a_row_per_method_and_a_column_per_way_of_predicting():
    shown = text(evaluation_table(rows(), "digits"))
    assert shown.splitlines()[0].strip() == "digits"
    assert cells(shown, "method") == ["method", "accuracy", "NLL", "NLL-10", "NLL-30", "ECE", "ECE-30"]
    assert cells(shown, "batch") == ["batch", "90.00", "%", "0.5000", "-", "-", "0.0800", "-"]
    bayes = cells(shown, "analytic+projection+bayes")
    assert bayes[1:] == ["95.00", "%", "0.6000", "0.4000", "0.3000", "0.0900", "0.0400"]


def test_ways_are_ordered_by_their_draws():
    ways = {name: Metrics(1, 0.5, 1.0, 0.1) for name in ("mc100", "single", "mc9", "mc10")}
    header = text(evaluation_table({"weight+bayes": ways}, "t"))
    assert header.index("NLL-9") < header.index("NLL-10") < header.index("NLL-100")


def test_the_best_of_each_column_is_bold():
    styled = text(evaluation_table(rows(), "t"), styled=True)
    bold = [part.partition("\x1b[0m")[0] for part in styled.split("\x1b[1m")[1:]]
    values = [value for value in bold if value.strip() and value.strip()[0].isdigit()]
    assert values == ["0.5000", "0.0800", "95.00 %", "0.4000", "0.3000", "0.0400"]


def test_one_row_has_no_best():
    styled = text(evaluation_table({"batch": rows()["batch"]}, "t"), styled=True)
    assert "\x1b[1m90.00" not in styled


def test_an_infinite_nll_is_shown():
    found = {"a": {"single": Metrics(1, 0.5, math.inf, 0.1)}, "b": {"single": Metrics(1, 0.5, 2.0, 0.1)}}
    assert "inf" in text(evaluation_table(found, "t"))


@pytest.mark.parametrize("width", [80, WIDE])
def test_the_table_of_the_demo_is_not_cut(width):
    shown = text(evaluation_table(rows(), "scikit-learn's digits"), width)
    assert "…" not in shown
    assert "0.0400" in shown
    assert max(len(line.rstrip()) for line in shown.splitlines()) <= width


def test_sigma_per_layer():
    shown = text(scales_table({"weight+bayes": {"a": 0.123, "b": 0.04567}, "analytic+bayes": {"a": 1.0}}))
    assert cells(shown, "method") == ["method", "1", "2"]
    assert cells(shown, "weight+bayes") == ["weight+bayes", ".12", ".046"]
    assert cells(shown, "analytic+bayes") == ["analytic+bayes", "1"]


def test_nine_layers_fit_into_80_columns():
    """The numbers of the paper."""
    ratios = (0.39, 0.34, 0.018, 0.029, 0.027, 0.029, 0.031, 0.061, 0.024)
    shown = text(scales_table({"analytic+projection+bayes": {str(i): ratio for i, ratio in enumerate(ratios)}}), 80)
    assert cells(shown, "analytic+projection+bayes")[1:] == [str(ratio).removeprefix("0") for ratio in ratios]


def test_a_file_gets_wide_lines(capsys):
    screen = console()
    assert screen.width == WIDE
    screen.print("here")
    assert capsys.readouterr().out == "here\n"
