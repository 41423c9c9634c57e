"""The page holds the numbers it was given, escapes every name, and is sound HTML that needs nothing but itself."""

import base64
import hashlib
import json
import re
from dataclasses import fields
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from made_up_runs import evaluation, metrics, record, robustness, run, segmented

from bayesnorm.errors import RunError
from bayesnorm.report.html import heat, numbers
from bayesnorm.report.html.chart import POINTS, Line, thinned
from bayesnorm.report.html.markup import VOID, Html, escape, join, tag
from bayesnorm.report.html.page import CONTENTS, distinct, embedded, page
from bayesnorm.report.html.sections import results, settings, training
from bayesnorm.report.summary import Summary, read
from bayesnorm.train import durable

EVIL = "<script>alert(1)</script> & \"two\" 'one' </title><img src=x onerror=alert(2)>"


class Sound(HTMLParser):
    """Reads a page and fails where an element does not end; keeps elements, ids and texts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def all(self, tag: str, key: str = "", value: str = "") -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.elements if name == tag and (not key or attrs.get(key) == value)]

    @property
    def ids(self) -> list[str]:
        return [found for _, attrs in self.elements if (found := attrs.get("id"))]


def charts(text: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="numbers">(.*?)</script>', text, re.DOTALL)
    assert found
    document: dict[str, Any] = json.loads(found[1])
    return document


def bare(name: str = "bare") -> Summary:
    nothing: dict[str, Any] = {"history": [], "result": None, "evaluation": None, "examples": None, "robustness": None}
    return run(name, **nothing, recipe={}, environment={})


PAGES = {
    "two runs": [run(), run("second", bayes=False)],
    "one run": [run()],
    "no documents": [bare()],
    "some documents": [bare(), run()],
    "masks": [run(examples=segmented())],
    "evil": [run(EVIL, data=EVIL, method=EVIL), run(EVIL)],
    "many": [run(f"run {index}", bayes=index % 2 == 0, epochs=3) for index in range(12)],
}


@pytest.mark.parametrize("case", PAGES)
def test_every_page_is_sound(case: str) -> None:
    found = Sound(page(PAGES[case], "A title"))
    assert len(found.ids) == len(set(found.ids))
    assert set(CONTENTS) <= set(found.ids)
    targets = [attrs["for"] for attrs in found.all("label")]
    targets += [str(attrs["href"])[1:] for attrs in found.all("a")]
    assert set(targets) <= set(found.ids)
    assert len(found.all("h1")) == len(found.all("main")) == len(found.all("nav")) == 1
    assert all(attrs.get("aria-label") for attrs in found.all("svg", "role", "img"))
    assert all(attrs.get("alt") for attrs in found.all("img"))


@pytest.mark.parametrize("case", PAGES)
def test_nothing_is_loaded_and_the_policy_allows_this_script_alone(case: str) -> None:
    text = page(PAGES[case], "A title")
    assert not re.search(r"https?:|//\w+\.\w|@import|url\((?!#)", text)
    sources = [attrs.get("src") or attrs.get("href") for _, attrs in Sound(text).elements]
    assert all(source.startswith(("data:", "#")) for source in sources if source)
    scripts = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(scripts[0].encode()).digest()).decode()
    assert len(scripts) == 1
    assert f"default-src 'none'; script-src 'sha256-{digest}';" in text


def test_names_are_text_wherever_they_stand() -> None:
    evil: dict[str, Any] = {EVIL: EVIL}
    many = evaluation({EVIL: metrics(), "single": metrics()}, bayes=True)
    many["channels"] = {EVIL: [0.1, 0.2]}
    sample = {"index": EVIL, "image": EVIL, "target": 0, "probs": [0.5, 0.5], "entropy": 0.1}
    shown = {"way": EVIL, "classes": [EVIL, EVIL], "certain": [sample], "uncertain": []}
    everywhere = run(EVIL, data=EVIL, method=EVIL, config=evil, recipe=evil, environment=evil,
                     result={"state": EVIL}, evaluation=many, examples=shown)  # fmt: skip
    text = page([everywhere, run()], EVIL)
    found = Sound(text)
    assert not [attrs for _, attrs in found.elements if any(key.startswith("on") for key in attrs)]
    assert len(found.all("script")) == 2
    assert all(str(attrs["src"]).startswith("data:image/png;base64,") for attrs in found.all("img"))
    assert "".join(found.texts).count(EVIL) > 10
    assert EVIL in charts(text)["runs"]


def test_markup_escapes_all_but_markup() -> None:
    assert tag("p", "<", Html("<b>"), ["&", None, 3], title='"') == '<p title="&quot;">&lt;<b>&amp;3</p>'
    assert escape("a\x00b\ud800") == "a\ufffdb\ufffd"
    assert join("x", tag("wbr")) == "x<wbr>"
    assert json.loads(embedded({"</script>": "<!-- &"})) == {"</script>": "<!-- &"}
    assert not set(embedded("</script><!-- &")) & set("<>&")


def test_numbers_of_the_documents_appear() -> None:
    text = page([run(), run("second", bayes=False)], "A title")
    found = "".join(Sound(text).texts)
    for shown in (
        "92.00\N{NO-BREAK SPACE}%",
        "0.2401",
        "0.2800",
        "1.40",
        "0.1500",
        "0.01200",
        "70.0\N{NO-BREAK SPACE}%",
    ):
        assert shown in found
    for shown in ("0.0123", "20 / 20", "finished", "1,000 test images", "3.11.7", "bayesnorm train", "2.13.0"):
        assert shown in found


def test_the_page_names_the_samples_that_were_judged() -> None:
    whole = run()
    cells = run("cells", examples=segmented(), evaluation={**(whole.evaluation or {}), "has_test": False})
    text = page([cells], "A title")
    for shown in ("Metrics on the validation set", "1,000 validation images", "On 500 validation images"):
        assert shown in text
    assert "Validation images that the network is most" in text
    assert 'alt="truth of validation image 3"' in text
    assert "test set" not in text
    assert "test image" not in text.lower()
    both = page([whole, cells], "A title")
    assert "Metrics on the test or validation set" in both
    assert {'alt="truth of validation image 3"' in both, 'alt="test image' in both} == {True}


def test_charts_hold_what_was_measured() -> None:
    runs = [run(), run("second", bayes=False)]
    document = charts(page(runs, "A title"))
    assert document["runs"] == ["first", "second"]
    found = document["charts"]
    loss = found["val-nll"]
    assert loss["slots"] == list(range(1, 21))
    assert loss["y"]["log"]
    assert loss["lines"][1]["y"] == pytest.approx([r["val_nll"] for r in runs[1].history], rel=1e-4)
    notes = [(line["run"], line["note"]) for line in found["train-nll"]["lines"]]
    assert notes == [(0, "running"), (0, "evaluation mode"), (1, "running"), (1, "evaluation mode")]
    diagram = found["reliability-mc30"]["lines"]
    assert diagram[0]["counts"] == [3, 5, 8, 13, 21, 50, 100, 800]
    assert [line.get("note") for line in diagram] == [None, "single pass"]
    shares = found["confidence-mc30"]["lines"][0]["y"]
    assert shares == [None] * 7 + [0.003, 0.005, 0.008, 0.013, 0.021, 0.05, 0.1, 0.8]
    curve = found["coverage-mc30-entropy"]["lines"][0]
    assert curve["y"][-1] == pytest.approx(0.08)
    top = found["coverage-top-mc30-entropy"]
    assert [(xs[0], xs[-1]) for xs in top["xs"]] == [(0.7, 1.0)], "of the same curves"
    assert top["lines"][0]["y"] == curve["y"][-len(top["xs"][0]) :]
    assert found["noise-accuracy"]["lines"][0]["y"] == pytest.approx([0.9, 0.8, 0.7, 0.5])
    row = found["noise-0"]["rows"][0]
    assert row["channels"] == [5, 4, 3, 2, 1, 0]
    assert row["values"] == pytest.approx([0.2, 0.18, 0.16, 0.14, 0.12, 0.1])
    assert "noise-1" not in found


def marked(text: str) -> list[str]:
    return re.findall(r"<strong>([^<]*)</strong><span class=\"sr\"> \(best\)</span>", text)


def test_the_best_of_each_column_is_bold_and_said_to_be() -> None:
    ways = {"single": metrics(accuracy=0.91, nll=0.5), "mc30": metrics(accuracy=0.90, nll=0.2, coverage_at_1=0.8)}
    rows = results.rows_of([run(evaluation=evaluation(ways, bayes=True))])
    best = {column.key: results.best_rows(rows, column) for column in (*results.MAIN, *results.MORE)}
    assert best["accuracy"] == {0}
    assert best["nll"] == best["coverage_at_1"] == {1}
    assert best["brier"] == {0, 1}  # a tie
    assert best["temperature"] == best["entropy"] == best["count"] == set()
    text = results.metrics_table([run()], rows, results.MAIN[:2], "caption")
    assert marked(text) == ["91.00\N{NO-BREAK SPACE}%", "0.2000"]


def test_what_reads_the_same_is_equally_good_and_data_sets_are_not_compared() -> None:
    def row(data: str, nll: float | None) -> results.Row:
        return results.Row(0, "single", data, {"nll": nll})

    column = results.MAIN[1]
    assert results.best_rows([row("a", 0.12341), row("a", 0.12343), row("a", None)], column) == {0, 1}
    assert results.best_rows([row("a", 0.2), row("a", 0.3), row("b", 1.0), row("b", 0.9)], column) == {0, 3}
    assert results.best_rows([row("a", 0.2), row("b", 0.3)], column) == set()


def test_infinite_and_missing_values_are_told_apart() -> None:
    ways = {"single": metrics(nll=None, calibrated_nll=0.5), "mc10": {"count": 10, "accuracy": 0.5, "nll": 0.7}}
    history = [record(1), {**record(2), "val_nll": None, "train_eval_nll": None}, record(3)]
    text = page([run(evaluation=evaluation(ways, bayes=True), history=history)], "A title")
    assert text.count(f'<td class="number" data-value="inf"><span aria-hidden="true">{numbers.INFINITE}</span>') == 1
    assert f'<td class="number">{numbers.MISSING}</td>' in text
    assert charts(text)["charts"]["val-nll"]["lines"][0]["y"][1] is None


@pytest.mark.parametrize(("temperature", "shown"), [(None, numbers.MISSING), (0.8, numbers.INFINITE)])
def test_what_no_temperature_was_fitted_to_is_missing_not_infinite(temperature: float | None, shown: str) -> None:
    """As on validation images, which are what it would be fitted to."""
    calibrated = next(column for column in results.MAIN if column.key == "calibrated_nll")
    assert calibrated.show({"nll": 0.5, "temperature": temperature, "calibrated_nll": None}) == shown


def test_columns_that_no_row_has_are_left_out() -> None:
    """On validation images no temperature is fitted."""
    none = {"temperature": None, "calibrated_nll": None}
    for some, there in ((none, False), ({**none, "temperature": 0.8}, True)):
        text = page([run(evaluation=evaluation({"single": {**metrics(), **some}}, bayes=False))], "A title")
        table = text[text.index("<thead>") : text.index("</thead>")]
        assert (">NLL at T<" in table) is there
        assert ">NLL<" in table


def _sparse(count: int, every: int) -> list[dict[str, Any]]:
    """A history of which some epochs and the last were evaluated."""
    kept = ("epoch", "step", "lr", "train_loss", "train_nll", "kl")
    bare = [{key: record(epoch)[key] for key in kept} for epoch in range(1, count + 1)]
    return [record(r["epoch"]) if r["epoch"] % every == 0 or r["epoch"] == count else r for r in bare]


def test_over_epochs_that_were_not_evaluated_a_curve_goes_on() -> None:
    runs = [run(history=_sparse(8, 3)), run("other", epochs=8)]
    lines = training.curves(runs, training.shown_epochs(runs), "val_nll")
    assert [list(line.x) for line in lines] == [[3, 6, 8], list(range(1, 9))]
    assert None not in lines[0].y
    losses = training.curves(runs, training.shown_epochs(runs), "train_nll")
    assert [len(line.x) for line in losses] == [8, 8]
    unfinished = run(history=_sparse(8, 3)[:5], evaluation=None)
    assert f"{record(3)['val_nll']:.4f}" in page([unfinished], "A title"), "the last that was measured"


def test_of_long_histories_the_epochs_that_all_have_evaluated_are_drawn() -> None:
    runs = [run(history=_sparse(1200, 5)), run("other", epochs=1200)]
    epochs = training.shown_epochs(runs)
    assert 200 < len(epochs) <= POINTS
    assert [len(line.x) >= 240 for line in training.curves(runs, epochs, "val_nll")] == [True, True]


def test_long_histories_are_thinned_with_their_ends() -> None:
    runs = [run(epochs=1200), run("short", epochs=777), run("late", history=[record(e) for e in range(500, 900)])]
    epochs = training.shown_epochs(runs)
    assert len(epochs) <= POINTS
    assert {1, 1200, 777, 500, 899} <= set(epochs)
    lines = training.curves(runs, epochs, "val_nll")
    assert [(line.x[0], line.x[-1]) for line in lines] == [(1, 1200), (1, 777), (500, 899)]
    assert lines[0].y[-1] == runs[0].history[-1]["val_nll"]


@pytest.mark.parametrize(("count", "limit"), [(0, 5), (1, 5), (5, 5), (6, 5), (1200, 300), (301, 300)])
def test_thinning_keeps_first_and_last(count: int, limit: int) -> None:
    kept = thinned(count, limit)
    assert len(kept) == len(set(kept)) == min(count, limit)
    assert kept == sorted(kept)
    assert not count or (kept[0], kept[-1]) == (0, count - 1)


def test_a_curve_is_read_at_its_nearest_point_within_reach() -> None:
    line = Line(0, [1.0, 2.0, 4.0], [0.1, None, 0.4])
    assert [line.at(x, 0.5) for x in (0.4, 0.6, 1.4, 2.0, 3.6, 4.5, 4.6)] == [None, 0, 0, None, 2, 2, None]
    assert Line(0, [], []).at(1.0, 9.0) is None


def test_axes_have_round_ticks_inside() -> None:
    assert numbers.linear_ticks(0.0, 1.0) == (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    assert numbers.log_ticks(1e-6, 1e3)[0] == 1e-6
    for low, high in ((0.3, 0.31), (1e-5, 3.0), (0.02, 0.09), (5.0, 5e7)):
        axis = numbers.logarithmic("nll", [low, high])
        assert 2 <= len(axis.ticks) <= 8
        assert all(axis.low <= tick <= axis.high for tick in axis.ticks)
        assert 0 < axis.place(low) < axis.place(high) < 1
    constant = numbers.linear("x", [0.5, 0.5])
    assert constant.low < 0.5 < constant.high
    assert numbers.logarithmic("x", [0.0]).log is False
    assert not numbers.Axis("x", 0.1, 1.0, (), log=True).drawable(0.0)


def test_heat_map_colours_grow_with_the_value() -> None:
    axis = numbers.linear("x", [], low=0.0, high=1.0)
    steps = [heat.step(axis, value) for value in (-1.0, 0.0, 0.5, 1.0, 2.0)]
    assert steps == [0, 0, heat.STEPS // 2, heat.STEPS - 1, heat.STEPS - 1]
    strip = heat.strip(axis, [1.0, 1.0, 0.0])
    assert strip.count("<rect") == 2
    assert f'x="0" width="2" height="1" fill="{heat.colour(heat.STEPS - 1)}"' in strip


def test_missing_documents_are_said_to_be_missing() -> None:
    text = page([bare("empty"), run("full")], "A title")
    assert text.count("Not shown: empty (") == 6
    alone = "".join(Sound(page([bare()], "A title")).texts)
    for words in (
        "bayesnorm eval RUN",
        "No run has finished an epoch",
        "None of the runs has learned",
        "No run has examples",
    ):
        assert words in alone


def test_means_stand_in_for_channels() -> None:
    history = [{**record(1), "sigma_over_s": {"a": 0.1, "b": 0.3}}]
    found = charts(page([run(evaluation=None, history=history)], "A title"))["charts"]["noise-0"]
    assert found["rows"][1] == {"name": "b", "values": [0.3], "channels": [-1]}


def test_settings_that_differ_come_first() -> None:
    one, two = run(), run("second", bayes=False)
    assert settings.different([settings.flat(one.config), settings.flat(two.config)]) == ["project"]
    text = settings.configuration([one, two])
    different, _, whole = text.partition("<details>")
    assert "recipe.norm" in different
    assert "recipe.model" not in different
    assert "recipe.model" in whole
    assert "same settings" in settings.configuration([one, one])


def test_runs_of_the_same_name_are_numbered() -> None:
    names = [summary.name for summary in distinct([run("a"), run("a"), run("b"), run("a (1)")])]
    assert names == ["a (2)", "a (3)", "b", "a (1)"]


def test_a_report_of_nothing_is_refused() -> None:
    with pytest.raises(RunError, match="at least one run"):
        page([], "A title")


def test_the_same_runs_give_the_same_page() -> None:
    assert page([run()], "A title") == page([run()], "A title")


def test_odd_curves_are_drawn() -> None:
    one = evaluation({"single": metrics()}, bayes=False)
    one["coverage"] = {"single": {"entropy": {"coverage": [1.0], "risk": [0.1]}}}
    one["reliability"]["single"] = {"count": [0, 0], "confidence": [None, None], "accuracy": [None, None]}
    short = robustness()
    short["attack"] = []
    text = page([run(evaluation=one, robustness=short, history=[record(1)])], "A title")
    found = charts(text)["charts"]
    assert found["coverage-single-entropy"]["lines"][0]["y"] == [0.1]
    assert "no data" in Sound(text).texts
    assert "attack-accuracy" not in found


def sealed(folder: Path, name: str, document: dict[str, Any]) -> None:
    durable.write(folder / name, durable.sealed(document))


def test_data_sets_of_one_name_are_not_compared() -> None:
    """What is best on some images says nothing about others that are called the same."""
    same = page([run("first"), run("second")], "report")
    assert "Lowest NLL" in same
    assert "pets (1)" not in same
    other = page([run("first", images="a"), run("second", images="b"), run("third", images="b", bayes=False)], "report")
    assert "Lowest NLL" not in other
    assert all(name in other for name in ("pets (1)", "pets (2)"))
    assert "of one name, other images or splits are numbered" in other
    alone = page([run("first", bayes=False, images="a"), run("second", bayes=False, images="b")], "report")
    assert "(best)" not in alone


def test_a_summary_is_read_from_its_folder(tmp_path: Path) -> None:
    about = {
        "config": {"project": True, "epochs": 5},
        "recipe": {"norm": "analytic", "scale": "bayes"},
        "data": {"name": "pets", "digest": "ab12"},
        "environment": {"python": "3.11"},
    }
    sealed(tmp_path, "config.json", about)
    found = read(tmp_path)
    assert (found.name, found.method, found.data) == (tmp_path.name, "analytic+projection+bayes", "pets")
    assert [getattr(found, field.name) for field in fields(found)][-6:] == [[], None, None, None, None, "ab12"]
    for name, key in (
        ("result", "state"),
        ("evaluation-test", "metrics"),
        ("examples-test", "way"),
        ("robustness-test", "count"),
    ):
        sealed(tmp_path, f"{name}.json", {key: name})
    found = read(tmp_path, "another name")
    assert found.name == "another name"
    assert [document and document.get(key) for document, key in (
        (found.result, "state"), (found.evaluation, "metrics"), (found.examples, "way"), (found.robustness, "count")
    )] == ["result", "evaluation-test", "examples-test", "robustness-test"]  # fmt: skip
    sealed(tmp_path, "config.json", {**about, "recipe": None})
    assert (read(tmp_path).method, read(tmp_path).recipe) == ("own network", {})


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is no run"):
        read(tmp_path)


def test_a_damaged_document_is_left_out(tmp_path: Path) -> None:
    about = {"config": {"project": False}, "recipe": None, "data": {"name": "pets"}}
    sealed(tmp_path, "config.json", about)
    (tmp_path / "evaluation-test.json").write_text('{"metrics": {}}')
    with pytest.warns(UserWarning, match="ignored"):
        assert read(tmp_path).evaluation is None
