"""Changing a network in place, or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


@contextmanager
def undone_on_error(model: nn.Module) -> Iterator[None]:
    """If the body raises, every module gets back its class, attributes, hooks and the values of its vectors."""
    before: list[tuple[nn.Module, type[nn.Module], dict[str, Any]]] = [
        (module, type(module), {name: _shallow(value) for name, value in vars(module).items()})
        for module in model.modules()
    ]
    tensors = [t for t in (*model.parameters(), *model.buffers()) if t.dim() <= 1]
    values = [t.detach().clone() for t in tensors]
    try:
        yield
    except BaseException:
        for module, kind, attributes in before:
            module.__class__ = kind
            module.__dict__.clear()
            module.__dict__.update(attributes)
        with torch.no_grad():
            for tensor, value in zip(tensors, values, strict=True):
                tensor.copy_(value)
        raise


def _shallow(value: Any) -> Any:
    """A copy of the tables that a module keeps (parameters, buffers, children, hooks); other values as they are."""
    return value.copy() if isinstance(value, (dict, set)) else value
