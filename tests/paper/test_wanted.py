"""Runs that figures want: each has its own folder, and the same one whoever asks."""

import itertools

import pytest

from bayesnorm.paper import EXHIBITS, PRESETS, Preset, Wanted
from bayesnorm.paper.wanted import BATCH, aside
from bayesnorm.train.config import Config
from bayesnorm.train.defaults import resolve
from bayesnorm.train.recipe import NO_FILES, Recipe


def everything(preset: Preset) -> list[Wanted]:
    found = [run for exhibit in EXHIBITS.values() for run in exhibit.wanted(preset)]
    return list(dict.fromkeys([*found, *itertools.chain.from_iterable(run.needs for run in found)]))


@pytest.mark.parametrize("preset", PRESETS.values(), ids=list(PRESETS))
def test_different_runs_have_different_names(preset: Preset) -> None:
    runs = everything(preset)
    names = [run.name(preset) for run in runs]
    assert len(set(names)) == len(names) == (33 if preset.name == "paper" else 29)
    assert all("/" not in name for name in names)


@pytest.mark.parametrize("preset", PRESETS.values(), ids=list(PRESETS))
def test_different_runs_have_different_settings(preset: Preset) -> None:
    settings = [run.settings(preset) for run in everything(preset)]
    assert all(one != other for one, other in itertools.combinations(settings, 2))


@pytest.mark.parametrize("preset", PRESETS.values(), ids=list(PRESETS))
def test_settings_are_complete(preset: Preset) -> None:
    for run in everything(preset):
        settings = run.settings(preset)
        place = {} if settings["data"] in NO_FILES else {"directory": "somewhere"}
        recipe, config = resolve({**settings, **place})
        made = Recipe(**recipe)
        assert made.norm == run.method.split("+")[0]
        assert (made.scale == "bayes") == ("bayes" in run.method)
        assert Config.from_dict(config).project == ("projection" in run.method)


@pytest.mark.parametrize(
    ("run", "name"),
    [
        (BATCH, "digits-batch-seed0"),
        (Wanted("none", batch=128), "digits-none-batch128-seed0"),
        (Wanted("batch", norm_batch=128, lr_of=BATCH), "digits-batch-norm128-seed0"),
        (Wanted("analytic+projection+bayes", seed=2, lr_of=BATCH), "digits-analytic+projection+bayes-seed2"),
        (Wanted("weight+projection+noise", noise_of=BATCH), "digits-weight+projection+noise-seed0"),
        (Wanted("batch", cells=True), "strokes-batch-seed0"),
    ],
)
def test_names_stay_what_they_are(run: Wanted, name: str) -> None:
    """A folder of an earlier version is found again."""
    assert run.name(PRESETS["smoke"]) == name


def test_what_it_needs() -> None:
    assert BATCH.needs == []
    assert Wanted("batch", seed=1, lr_of=BATCH).needs == [BATCH]
    assert Wanted("weight+noise", noise_of=BATCH, lr_of=Wanted("weight")).needs == [Wanted("weight"), BATCH]


def test_special_settings() -> None:
    preset = PRESETS["smoke"]
    plain = BATCH.settings(preset)
    assert plain["lr"] == preset.by_norm["batch"]["lr"]
    assert {"batch", "norm_batch"}.isdisjoint(plain)
    assert Wanted("batch", seed=3, batch=8).settings(preset) == {**plain, "seed": 3, "batch": 8}
    assert Wanted("batch", norm_batch=128).settings(preset) == {**plain, "norm_batch": 128}
    assert Wanted("batch", cells=True).settings(preset)["lr"] == preset.cells["lr"]


def test_the_warm_up_is_over_as_many_samples_at_every_batch_size() -> None:
    steps = {
        size: Wanted("batch", batch=size).settings(PRESETS["paper"])["warmup_steps"] for size in (None, 8, 32, 512)
    }
    assert steps == {None: 2000, 8: 8000, 32: 2000, 512: 125}


# Side experiments: figures 2 and A1.


def test_figure_2_compares_equally_long_runs() -> None:
    preset = PRESETS["paper"]
    small, large = EXHIBITS["fig2"].wanted(preset)
    assert (small, large) == (
        Wanted("batch", side=True),
        Wanted("batch", norm_batch=1024, side=True, lr_of=small),
    )
    assert large.settings(preset) == {**small.settings(preset), "norm_batch": 1024}
    assert small.name(preset) == "cifar10-batch-side-epochs=40,eval_every=1-seed0"
    assert large.name(preset) == "cifar10-batch-norm1024-side-epochs=40,eval_every=1-seed0"


@pytest.mark.parametrize("method", ["none", "batch"])
def test_figure_a1_compares_equally_long_runs_each_with_its_learning_rate(method: str) -> None:
    preset = PRESETS["paper"]
    runs = [run for run in EXHIBITS["figA1"].wanted(preset) if run.method == method]
    assert [run.batch for run in runs] == [8, None, 128, 512]
    for run in runs:
        assert (run.side, run.lr_of) == (True, None)
        assert run.settings(preset)["epochs"] == 40
    assert (runs[1] in EXHIBITS["fig2"].wanted(preset)) == (method == "batch")


@pytest.mark.parametrize("name", [*(name for name in PRESETS if name != "paper"), "paper"])
def test_where_all_runs_are_equally_long_they_are_shared(name: str) -> None:
    """As they were before there were side experiments; so too where epochs were asked for."""
    preset = PRESETS[name].changed({"epochs": 3}) if name == "paper" else PRESETS[name]
    assert EXHIBITS["fig2"].wanted(preset) == [BATCH, Wanted("batch", norm_batch=preset.norm_batch, lr_of=BATCH)]
    sizes = [None if size == 32 else size for size in preset.batch_sizes]
    expected = [Wanted(method, batch=size) for method in ("none", "batch") for size in sizes]
    assert EXHIBITS["figA1"].wanted(preset) == expected


def test_a_run_of_a_side_experiment_keeps_what_is_special_about_it() -> None:
    run = Wanted("analytic", seed=2, batch=8, cells=True, lr_of=BATCH)
    found = aside(run, PRESETS["paper"])
    assert found == Wanted("analytic", seed=2, batch=8, cells=True, side=True, lr_of=BATCH)


def test_an_unknown_method_is_named() -> None:
    with pytest.raises(ValueError, match="unknown method 'bach'"):
        Wanted("bach").settings(PRESETS["smoke"])
