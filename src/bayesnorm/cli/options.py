"""Options of the commands that train: one for each field of ``Recipe`` and ``Config``."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import re
import time
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from ..train.config import ENGINES, Config
from ..train.defaults import DEFAULTS
from ..train.methods import settings_of
from ..train.recipe import CHOICES, Recipe

NAMES = {"directory": "--dir"}
ENUMS = {
    **{name: [c for c in choices if c] for name, choices in CHOICES.items()},
    "optimizer": ["sgd", "adam"],
    "precision": ["fp32", "tf32", "bf16"],
    "engine": list(ENGINES),
}
WORDS = {
    "lr": "auto|NUMBER",
    "prior": "NUMBER|log-uniform",
    "image_size": "HxW",
    "sigma_u": "NUMBER,...",
    "sigma_v": "NUMBER,...",
}
"""Options that are not of one type; they are read by ``_read``."""

BOOLEANS = {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}

Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:1.")]
StopAfter = Annotated[
    float | None,
    typer.Option(
        "--stop-after",
        metavar="MINUTES",
        help="Stop after so many minutes as by a signal, the state saved; what was begun can be gone on with.",
        min=0,
    ),
]
Dir = Annotated[str | None, typer.Option("--dir", help="Where the data is, if it was moved.")]


class Part(enum.StrEnum):
    """Splits of a data set."""

    train = "train"
    val = "val"
    test = "test"


def deadline(minutes: float | None) -> float | None:
    """The time, by ``time.monotonic``, at which so many minutes are over."""
    return None if minutes is None else time.monotonic() + 60 * minutes


def with_settings(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command an option for each setting; it gets those that were given as ``settings``."""
    return some_settings([field.name for cls in (Recipe, Config) for field in dataclasses.fields(cls)])(command)


def some_settings(names: Sequence[str]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The same for some settings."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "settings"]
        fields = [(cls, field) for cls in (Recipe, Config) for field in dataclasses.fields(cls)]
        options = [_option(cls, field) for cls, field in fields if field.name in names]

        def call(**given: Any) -> Any:
            settings = {name: _read(name, given.pop(name)) for name in names}
            return command(settings={k: v for k, v in settings.items() if v is not None}, **given)

        call.__name__, call.__doc__ = command.__name__, command.__doc__
        positional = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]
        call.__signature__ = inspect.Signature([*options, *positional])  # type: ignore[attr-defined]
        call.__annotations__ = {p.name: p.annotation for p in [*options, *own]}
        return call

    return decorate


def _option(cls: type, field: Any) -> inspect.Parameter:
    flag = NAMES.get(field.name, "--" + field.name.replace("_", "-"))
    kind = _kind(field)
    if kind is bool:
        flag = f"{flag}/--no-{flag.removeprefix('--')}"
    option = typer.Option(
        flag,
        help=_help(cls, field.name) + _default(field),
        show_default=False,
        metavar=WORDS.get(field.name),
    )
    return inspect.Parameter(
        field.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option]
    )


def _kind(field: Any) -> Any:
    if field.name in ENUMS:
        values = {re.sub(r"\W", "_", str(value)): value for value in ENUMS[field.name]}
        return enum.StrEnum(field.name, values)
    if field.name in WORDS or "str" in str(field.type):
        return str
    return next(kind for name, kind in (("bool", bool), ("int", int), ("float", float)) if name in str(field.type))


def _help(cls: type, name: str) -> str:
    """From the docstring, where each setting is explained once."""
    text = re.search(rf"^ +{name}: (.*?)(?=^ +\w+: |^\s*$|\Z)", inspect.cleandoc(cls.__doc__ or "") + "\n", re.M | re.S)
    assert text is not None, f"{cls.__name__}.{name} is not explained"
    words = " ".join(text.group(1).replace("``", "").replace('"', "").replace("None:", "not given:").split())
    return words if any(words.startswith(choice) for choice in ENUMS.get(name, ())) else words[0].upper() + words[1:]


def _default(field: Any) -> str:
    by_data = {data: values[field.name] for data, values in DEFAULTS.items() if field.name in values}
    shown = [f"{data}: {value}" for data, value in by_data.items()]
    if field.default is not None and len(by_data) < len(DEFAULTS):
        default = field.default
        default = {True: "yes", False: "no"}[default] if isinstance(default, bool) else default
        shown.append(f"{'others: ' if by_data else ''}{default}")
    return f" [default: {', '.join(shown)}]" if shown else ""


def _read(name: str, value: Any) -> Any:
    if value is None:
        return None
    if isinstance(value, enum.Enum):
        return value.value
    if name == "image_size":
        found = re.fullmatch(r"(\d+)x(\d+)", value)
        if not found:
            raise ValueError(f"--image-size {value}: give height and width as in 32x32")
        return tuple(int(number) for number in found.groups())
    if name in ("lr", "prior"):
        word = {"lr": "auto", "prior": "log-uniform"}[name]
        try:
            return word if value == word else float(value)
        except ValueError:
            raise ValueError(f"--{name} {value}: give a number or {word}") from None
    if name in ("sigma_u", "sigma_v"):
        try:
            numbers = tuple(float(word) for word in value.split(","))
        except ValueError:
            flag = name.replace("_", "-")
            raise ValueError(f"--{flag} {value}: give a number, or one for each layer as in 0.05,0.03,0.02") from None
        return numbers if len(numbers) > 1 else numbers[0]
    return value


def read_settings(given: Sequence[str]) -> dict[str, Any]:
    """Settings as ``--set NAME=VALUE`` gives them, each at most once; ``none`` stands for one that is not given.

    ``METHOD:NAME=VALUE`` is for the runs of a method alone.

    >>> read_settings(["padding=same", "kl-factor=2", "clip=none", "batch+projection:lr=0.1"])
    {'padding': 'same', 'kl_factor': 2.0, 'clip': None, 'batch+projection:lr': 0.1}
    """
    fields = {field.name: field for cls in (Recipe, Config) for field in dataclasses.fields(cls)}
    found: dict[str, Any] = {}
    for text in given:
        full, equals, value = text.partition("=")
        method, colon, name = full.strip().rpartition(":")
        name = name.strip().replace("-", "_")
        if not equals or name not in fields:
            raise ValueError(f"--set {text}: give NAME=VALUE with a name of `bayesnorm train --help`, as in epochs=40")
        if colon:
            _known(method, text)
        key = f"{method}{colon}{name}"
        if key in found:
            raise ValueError(f"--set {text}: {key} is set twice; choose one")
        found[key] = _typed(fields[name], value.strip(), text)
    return found


def _known(method: str, text: str) -> None:
    """ValueError where a method of ``--set METHOD:NAME=VALUE`` is none."""
    try:
        settings_of(method)
    except ValueError as error:
        raise ValueError(f"--set {text}: {error}") from None


def _typed(field: Any, value: str, text: str) -> Any:
    """A value in the type of its setting."""
    if value == "none" and "None" in str(field.type):
        return None
    kind = _kind(field)
    if kind is bool:
        if value not in BOOLEANS:
            raise ValueError(f"--set {text}: give yes or no")
        return BOOLEANS[value]
    if kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            raise ValueError(f"--set {text}: give a {'whole ' if kind is int else ''}number") from None
    if kind is not str and value not in [choice.value for choice in kind]:
        raise ValueError(f"--set {text}: choose {', '.join(choice.value for choice in kind)}")
    return _read(field.name, value)
