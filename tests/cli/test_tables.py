import io
import math

import pytest
from rich.console import Console

from bayesnorm.cli.tables import WIDE, console, evaluation_table, scales_table
from bayesnorm.evaluate.panel import Measures


def text(table, width=100, styled=False):
    file = io.StringIO()
    Console(file=file, width=width, force_terminal=styled, no_color=not styled).print(table)
    return file.getvalue()


def cells(shown, first):
    """The words of the line that begins with this one."""
    return next(words for words in map(str.split, shown.splitlines()) if words[:1] == [first])


def measures(accuracy=0.5, nll=1.0, ece=0.1, **more):
    """Those that are not given are those of a network that guesses; not calibrated unless a temperature is given."""
    others = {"adaptive_ece": 0.1, "entropy": 0.7, "mutual_info": None, "excess_aurc": 0.1, "aurc_max_prob": 0.4}
    given = {"brier": 0.5, "aurc": 0.4, "coverage_at_1": 0.0, **more}
    return Measures(100, accuracy, nll, ece, **others, **given)


def rows():
    return {
        "batch": {"single": measures(0.9, 0.5, 0.08, temperature=1.25, calibrated_nll=0.45, brier=0.2, aurc=0.03)},
        "analytic+projection+bayes": {
            "single": measures(0.95, 0.6, 0.09, temperature=1.5, calibrated_nll=0.41, brier=0.15, aurc=0.02),
            "mc10": measures(0.94, 0.4, 0.05, temperature=1.1, calibrated_nll=0.39, brier=0.14, aurc=0.01),
            "mc30": measures(0.94, 0.3, 0.04, temperature=1.0, calibrated_nll=0.3, brier=0.13, aurc=0.015),
        },
    }


def test_a_row_per_method_and_way_of_predicting():
    shown = text(evaluation_table(rows(), "digits"))
    assert shown.splitlines()[0].strip() == "digits"
    assert cells(shown, "method") == ["method", "by", "accuracy", "NLL", "NLL/T", "T", "Brier", "ECE", "AURC"]
    batch = ["batch", "single", "90.00", "%", "0.5000", "0.4500", "1.25", "0.200", "0.080", "0.0300"]
    assert cells(shown, "batch") == batch
    bayes = cells(shown, "analytic+projection+bayes")
    assert bayes[1:] == ["single", "95.00", "%", "0.6000", "0.4100", "1.50", "0.150", "0.090", "0.0200"]
    # A method is named once.
    assert cells(shown, "MC-10")[1:] == ["94.00", "%", "0.4000", "0.3900", "1.10", "0.140", "0.050", "0.0100"]
    assert cells(shown, "MC-30")[1:] == ["94.00", "%", "0.3000", "0.3000", "1.00", "0.130", "0.040", "0.0150"]


def test_what_was_not_measured_is_a_dash():
    shown = text(evaluation_table({"batch": {"single": measures()}}, "t"))
    assert cells(shown, "batch") == ["batch", "single", "50.00", "%", "1.0000", "-", "-", "0.500", "0.100", "0.4000"]


def test_ways_are_ordered_by_their_draws():
    names = ("mc100", "SBN chi", "moments", "single", "mc9", "MC-BN", "mc10", "SBN")
    shown = text(evaluation_table({"weight+bayes": {name: measures() for name in names}}, "t"))
    found = [line.split("50.00")[0].split()[-1] for line in shown.splitlines() if "50.00" in line]
    assert found == ["single", "MC-BN", "SBN", "chi", "moments", "MC-9", "MC-10", "MC-100"]


def test_the_best_of_each_column_is_bold():
    styled = text(evaluation_table(rows(), "t"), styled=True)
    bold = [part.partition("\x1b[0m")[0] for part in styled.split("\x1b[1m")[1:]]
    values = [value for value in bold if value.strip() and value.strip()[0].isdigit()]
    assert values == ["95.00 %", "0.0100", "0.3000", "0.3000", "0.130", "0.040"], "but no temperature is"


def test_the_best_segmentation_has_the_most_overlap():
    found = {name: {"single": measures(iou=x, dice=x, seg=x)} for name, x in (("a", 0.25), ("b", 0.75))}
    assert text(evaluation_table(found, "t"), styled=True).count("\x1b[1m0.750") == 3


def test_one_row_has_no_best():
    styled = text(evaluation_table({"batch": rows()["batch"]}, "t"), styled=True)
    assert "90.00" in styled
    assert "\x1b[1m90.00" not in styled


def test_an_infinite_nll_is_shown_and_is_not_the_best():
    found = {"a": {"single": measures(nll=math.inf)}, "b": {"single": measures(nll=2.0)}}
    assert cells(text(evaluation_table(found, "t")), "a")[4] == "inf"
    styled = text(evaluation_table(found, "t"), styled=True)
    assert "\x1b[1m2.0000" in styled
    assert "\x1b[1minf" not in styled


def test_the_numbers_of_a_network_that_diverged_do_not_push_the_others_out():
    found = {"weight+projection+bayes": {"single": measures(nll=4.7e30, temperature=100.0, calibrated_nll=4.7e28)}}
    shown = cells(text(evaluation_table(found, "t")), "weight+projection+bayes")
    assert shown[4:7] == ["4.7e+30", "4.7e+28", "100.00"]


@pytest.mark.parametrize("width", [80, WIDE])
def test_the_table_of_the_demo_is_not_cut(width):
    found = rows()
    found["analytic+projection+bayes"]["moments"] = measures(0.94, temperature=1.3, calibrated_nll=0.3)
    shown = text(evaluation_table(found, "scikit-learn's digits"), width)
    assert "…" not in shown
    assert "0.0150" in shown
    assert max(len(line.rstrip()) for line in shown.splitlines()) <= width


def test_long_names_are_folded_and_no_number_is_cut():
    name = "runs/" + "a" * 150
    shown = text(evaluation_table({name: rows()["batch"], "b": {"single": measures()}}, "t"), 80)
    assert "".join(line.split()[0] for line in shown.splitlines() if line[:1] in ("a", "r")) == name
    assert cells(shown, "method") == ["method", "by", "accuracy", "NLL", "NLL/T", "T", "Brier", "ECE", "AURC"]
    assert next(line.split() for line in shown.splitlines() if line.startswith("runs/"))[1:] == [
        *("single", "90.00", "%", "0.5000", "0.4500", "1.25", "0.200", "0.080", "0.0300")
    ]
    shown = text(scales_table({name: dict.fromkeys("abcdefghi", 0.25)}), 80)
    assert next(line.split() for line in shown.splitlines() if line.startswith("runs/"))[1:] == [".25"] * 9


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
