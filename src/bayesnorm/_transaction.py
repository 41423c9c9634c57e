"""Changing a network in place, or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def undone_on_error(model: nn.Module) -> Iterator[None]:
    """If the body raises, every module gets back its class, attributes, hooks and the values of its vectors."""
    before = [(module, type(module), dict(vars(module))) for module in model.modules()]
    # The tables themselves (parameters, children, hooks) get their contents back: handles of hooks refer to them.
    tables = [(t, t.copy()) for _, _, values in before for t in values.values() if isinstance(t, (dict, set))]
    tensors = [t for t in (*model.parameters(), *model.buffers()) if t.dim() <= 1]
    values = [t.detach().clone() for t in tensors]
    try:
        yield
    except BaseException:
        for module, kind, attributes in before:
            module.__class__ = kind
            module.__dict__.clear()
            module.__dict__.update(attributes)
        for table, contents in tables:
            table.clear()
            table.update(contents)
        with torch.no_grad():
            for tensor, value in zip(tensors, values, strict=True):
                tensor.copy_(value)
        raise
