"""All parameters in one tensor, and their optimizer in a few operations on it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .._project import project_
from .config import Config
from .rows import rows_of, update_


class Flat:
    """Parameters, gradients and state of an optimizer as parts of flat tensors, one per kind.

    Each parameter keeps its identity, shape and values, and becomes a view; so does its state in the optimizer, from
    which checkpoints read.

    Arguments:
        net: the network, whose weights are projected after a step.
        optimizer: SGD or Adam of ``make_optimizer``.
        config: its settings.
    """

    def __init__(self, net: nn.Module, optimizer: torch.optim.Optimizer, config: Config) -> None:
        self.net, self.config, self.optimizer = net, config, optimizer
        self.parameters: list[Tensor] = [p for group in optimizer.param_groups for p in group["params"]]
        some = self.parameters[0]
        self.values = _gather(self.parameters, [p.detach() for p in self.parameters])
        factors = [self._factor(group) for group in optimizer.param_groups for _ in group["params"]]
        self.row_factors = factors
        self.factors = torch.cat(
            [torch.full_like(p, f).flatten() for p, f in zip(self.parameters, factors, strict=True)]
        )
        by_rows = some.is_cuda and config.optimizer == "sgd" and some.dtype == torch.float32
        self.rows = rows_of(net, self.parameters, factors, config.project) if by_rows else None
        self.names = ("momentum_buffer",) if config.optimizer == "sgd" else ("exp_avg", "exp_avg_sq")
        self.moments = []
        for name in self.names:
            state = [_alike(optimizer.state[p][name], p) for p in self.parameters]
            flat, views = _flattened(state)
            self.moments.append(flat)
            for parameter, view in zip(self.parameters, views, strict=True):
                optimizer.state[parameter][name] = view
        self.steps = torch.zeros(len(self.parameters), device=some.device)
        if config.optimizer == "adam":  # which counts the steps of each parameter
            for parameter, count in zip(self.parameters, self.steps, strict=True):
                optimizer.state[parameter]["step"] = count

    def _factor(self, group: dict[str, object]) -> float:
        return self.config.variance_factor if group["name"] == "variances" else 1.0

    @property
    def state(self) -> list[Tensor]:
        """Every tensor that an update changes."""
        return [self.values, *self.moments, self.steps]

    def move_(self, values: Tensor, *moments: Tensor) -> None:
        """Let other tensors of the same length hold everything from now on."""
        shapes = [_ordered(p, p).shape for p in self.parameters]
        sizes = [p.numel() for p in self.parameters]
        for home, flat in zip((values, *moments), (self.values, *self.moments), strict=True):
            home.copy_(flat)
        for i, name in enumerate(self.names):
            parts = moments[i].split(sizes)
            for parameter, part, shape in zip(self.parameters, parts, shapes, strict=True):
                self.optimizer.state[parameter][name] = _viewed(part.view(shape), parameter)
        for parameter, part, shape in zip(self.parameters, values.split(sizes), shapes, strict=True):
            parameter.data = _viewed(part.view(shape), parameter)
        self.values, self.moments = values, list(moments)

    def release(self) -> None:
        """Parameters with memory of their own, as they were before."""
        for parameter in self.parameters:
            parameter.data = parameter.data.clone(memory_format=torch.preserve_format)

    def gathered(self, gradients: Sequence[Tensor | None]) -> Tensor:
        """One tensor of all gradients; 0 where a parameter has none."""
        parts = [
            torch.zeros_like(p).flatten() if g is None else _ordered(g, p).reshape(-1)
            for p, g in zip(self.parameters, gradients, strict=True)
        ]
        return torch.cat(parts)

    def update_(self, gradient: Tensor, norm: Tensor, rate: Tensor, good: Tensor) -> None:
        """One step of the optimizer and the projection; nothing where ``good`` is False.

        Arguments:
            gradient: of all parameters.
            norm: its length, for clipping.
            rate: learning rate.
            good: whether to take the step.
        """
        clip = self.config.clip
        scale = torch.ones_like(norm) if clip is None else (clip / (norm + 1e-6)).clamp(max=1.0)
        if self.rows is not None:
            (momentum,) = self.moments
            update_(self.rows, self.values, momentum, gradient, rate, good, scale, self.config.momentum)
            return
        gradient = torch.where(good, gradient * scale, 0.0)
        change = self._sgd(gradient) if self.config.optimizer == "sgd" else self._adam(gradient, good)
        self.values.sub_(change * self.factors * torch.where(good, rate, 0.0))
        project_(self.net, weights=self.config.project)

    def _sgd(self, gradient: Tensor) -> Tensor:
        """Nesterov's momentum as torch has it."""
        (momentum,) = self.moments
        momentum.mul_(self.config.momentum).add_(gradient)
        return gradient + self.config.momentum * momentum

    def _adam(self, gradient: Tensor, good: Tensor) -> Tensor:
        first, second = self.moments
        self.steps.add_(good)
        first.lerp_(gradient, 0.1)
        second.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
        count = self.steps[0].double()  # near 1 the powers cancel
        scale = (1 - 0.999**count).sqrt()
        return first / (1 - 0.9**count) * scale / (second.sqrt() + 1e-8 * scale)


def _last(tensor: Tensor) -> bool:
    """Whether the channels are the last axis in memory."""
    return tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last) and not tensor.is_contiguous()


def _alike(tensor: Tensor, like: Tensor) -> Tensor:
    """In memory as another."""
    return tensor.contiguous(memory_format=torch.channels_last) if _last(like) else tensor


def _ordered(tensor: Tensor, like: Tensor) -> Tensor:
    """Its axes as they are in the memory of another."""
    return tensor.permute(0, 2, 3, 1) if _last(like) else tensor


def _flattened(tensors: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """One tensor, and the views of it that the tensors become, with their order in memory."""
    ordered = [_ordered(tensor, tensor) for tensor in tensors]
    flat = torch.cat([tensor.reshape(-1) for tensor in ordered])
    parts = flat.split([tensor.numel() for tensor in tensors])
    shaped = [part.view(tensor.shape) for part, tensor in zip(parts, ordered, strict=True)]
    return flat, [_viewed(part, tensor) for part, tensor in zip(shaped, tensors, strict=True)]


def _viewed(part: Tensor, like: Tensor) -> Tensor:
    """Its axes in the order of another tensor, whose order in memory it has."""
    return part.permute(0, 3, 1, 2) if _last(like) else part


def _gather(parameters: Sequence[Tensor], values: Sequence[Tensor]) -> Tensor:
    """Make the parameters views of one tensor."""
    flat, views = _flattened(values)
    for parameter, view in zip(parameters, views, strict=True):
        parameter.data = view
    return flat
