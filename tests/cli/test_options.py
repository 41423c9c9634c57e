import dataclasses
import re

import pytest
import typer

from bayesnorm.cli import main
from bayesnorm.cli.app import app
from bayesnorm.cli.options import NAMES, read_settings, with_settings
from bayesnorm.train.config import Config
from bayesnorm.train.defaults import DEFAULTS
from bayesnorm.train.recipe import CHOICES, Recipe

COMMANDS = ("demo", "train", "lr", "eval", "data", "runs")
FIELDS = [(cls, field) for cls in (Recipe, Config) for field in dataclasses.fields(cls)]


def flag(name):
    return NAMES.get(name, "--" + name.replace("_", "-"))


def parameters(command):
    return {parameter.name: parameter for parameter in typer.main.get_command(app).commands[command].params}


def shown(capsys, monkeypatch, columns, *args):
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main([*args, "--help"]) == 0
    return capsys.readouterr().out


def words(text):
    """Without the frames that rich draws."""
    return " ".join(re.sub(r"[│╭╮╰╯─]", " ", text).split())


@pytest.mark.parametrize("command", ["train", "lr"])
@pytest.mark.parametrize("field", [field for _, field in FIELDS], ids=lambda field: field.name)
def test_every_setting_is_an_option_with_a_help_text(command, field):
    option = parameters(command)[field.name]
    assert flag(field.name) in option.opts
    assert len(option.help) > 5
    assert "``" not in option.help
    if field.type == "bool":
        assert option.secondary_opts == [f"--no-{flag(field.name).removeprefix('--')}"]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("columns", [80, 160])
def test_help_names_and_explains_every_option(command, columns, capsys, monkeypatch):
    text = shown(capsys, monkeypatch, columns, command)
    for parameter in parameters(command).values():
        assert parameter.help, parameter.name
        for name in (*parameter.opts, *parameter.secondary_opts):
            if name.startswith("--"):
                assert re.search(rf"{re.escape(name)}(?![\w-])", words(text)), name
    assert "…" not in text


def test_help_of_the_program_lists_all_commands(capsys, monkeypatch):
    text = shown(capsys, monkeypatch, 100)
    for command in COMMANDS:
        assert re.search(rf"^ +{command} +\w", text, re.M), command


def test_help_says_the_default_by_data_set(capsys, monkeypatch):
    text = words(shown(capsys, monkeypatch, 400, "train"))
    epochs = ", ".join(f"{data}: {values['epochs']}" for data, values in DEFAULTS.items())
    assert f"[default: {epochs}]" in text
    assert "[default: digits: 0.125, strokes: 0.5, others: 1.0]" in text
    assert "[default: auto]" in text
    assert "[default: yes]" in text


@pytest.fixture
def given(monkeypatch):
    """Settings that a command gets for arguments."""
    found = []

    def command(*, settings: dict, out: str = "") -> None:
        found.append(settings)

    application = typer.Typer()
    application.command()(with_settings(command))

    def call(*args):
        typer.main.get_command(application).main(list(args), standalone_mode=False)
        return found[-1]

    return call


def test_only_what_was_given_is_a_setting(given):
    assert given() == {}
    assert given("--out", "x") == {}
    assert given("--epochs", "3", "--no-project", "--norm", "weight") == {
        "epochs": 3,
        "project": False,
        "norm": "weight",
    }


@pytest.mark.parametrize(
    ("args", "settings"),
    [
        (("--lr", "auto"), {"lr": "auto"}),
        (("--lr", "3e-3"), {"lr": 0.003}),
        (("--prior", "log-uniform"), {"prior": "log-uniform"}),
        (("--prior", "1"), {"prior": 1.0}),
        (("--image-size", "32x48"), {"image_size": (32, 48)}),
        (("--sigma-u", "0.05"), {"sigma_u": 0.05}),
        (("--sigma-u", "0.05,.03,2e-2"), {"sigma_u": (0.05, 0.03, 0.02)}),
        (("--sigma-v", "0.1,0.2"), {"sigma_v": (0.1, 0.2)}),
        (("--dir", "somewhere"), {"directory": "somewhere"}),
        (("--clip", "1"), {"clip": 1.0}),
        (("--seed", "7"), {"seed": 7}),
        (("--compile",), {"compile": True}),
        (("--precision", "bf16"), {"precision": "bf16"}),
        (("--cell-split", "01-02"), {"cell_split": "01-02"}),
        (("--masks", "expert+auto"), {"masks": "expert+auto"}),
        (("--reduce", "4"), {"reduce": 4}),
        (("--project",), {"project": True}),
    ],
    ids=str,
)
def test_values_are_read(args, settings, given):
    found = given(*args)
    assert found == settings
    assert type(next(iter(found.values()))) is type(next(iter(settings.values())))


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--lr", "fast"), "--lr fast: give a number or auto"),
        (("--prior", "flat"), "--prior flat: give a number or log-uniform"),
        (("--image-size", "32"), "--image-size 32: give height and width as in 32x32"),
        (("--image-size", "-1x3"), "give height and width"),
        (("--sigma-u", "much"), "--sigma-u much: give a number, or one for each layer as in 0.05,0.03"),
        (("--sigma-v", "0.1,"), "--sigma-v 0.1,: give a number, or one for each layer"),
    ],
)
def test_what_cannot_be_read_is_refused(args, words, given):
    with pytest.raises(ValueError, match=words):
        given(*args)


@pytest.mark.parametrize("name", CHOICES)
def test_choices_are_those_of_the_recipe(name, given, capsys):
    for choice in CHOICES[name]:
        assert choice is None or given(flag(name), choice) == {name: choice}
    assert main(["train", flag(name), "wrong"]) == 2
    message = capsys.readouterr().err
    assert all(choice is None or f"'{choice}'" in message for choice in CHOICES[name])


@pytest.mark.parametrize(
    ("given", "settings"),
    [
        ([], {}),
        (["padding=same", "kl_factor=2"], {"padding": "same", "kl_factor": 2.0}),
        (["kl-factor = 0.5", "epochs=40"], {"kl_factor": 0.5, "epochs": 40}),
        (["clip=none", "variance_step=none", "lr=auto"], {"clip": None, "variance_step": None, "lr": "auto"}),
        (["lr=3e-3", "prior=log-uniform", "augment=no"], {"lr": 0.003, "prior": "log-uniform", "augment": False}),
        (["per-layer-variance=yes", "cell_split=01-02"], {"per_layer_variance": True, "cell_split": "01-02"}),
        (["lr=1", "batch+projection:lr=2"], {"lr": 1.0, "batch+projection:lr": 2.0}),
        (["none: lr-epochs = 3"], {"none:lr_epochs": 3}),
    ],
)
def test_settings_in_words(given, settings):
    assert read_settings(given) == settings


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["epochs"], "--set epochs: give NAME=VALUE with a name of `bayesnorm train --help`, as in epochs=40"),
        (["epoch=4"], "--set epoch=4: give NAME=VALUE with a name of `bayesnorm train --help`, as in epochs=40"),
        (["epochs=4.5"], "--set epochs=4.5: give a whole number"),
        (["epochs=none"], "--set epochs=none: give a whole number"),
        (["clip=much"], "--set clip=much: give a number"),
        (["padding=full"], "--set padding=full: choose valid, same"),
        (["augment=maybe"], "--set augment=maybe: give yes or no"),
        (["lr=fast"], "--lr fast: give a number or auto"),
        (["epochs=4", "epochs=5"], "--set epochs=5: epochs is set twice; choose one"),
        (["none:lr=4", "none:lr=5"], "--set none:lr=5: none:lr is set twice; choose one"),
        (["batch:lr=much"], "--lr much: give a number or auto"),
        (
            ["bach:lr=4"],
            "--set bach:lr=4: unknown method 'bach': choose a norm (none, batch, weight, analytic), +projection, "
            "+noise or +bayes",
        ),
        (
            ["none:rate=4"],
            "--set none:rate=4: give NAME=VALUE with a name of `bayesnorm train --help`, as in epochs=40",
        ),
    ],
)
def test_settings_that_cannot_be_read_are_named_with_a_remedy(given, message):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        read_settings(given)
    assert str(caught.value) == message
