"""The hooks by which a module opens the scope of a call, and a root takes statistics of its inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from .runtime import Opening


@dataclass(frozen=True)
class Broadcast:
    """Statistics of an input are one number, or one per channel: a state dict loads whichever of the two it has.

    Arguments:
        channels: of the input that each buffer belongs to, by the buffer's name.
    """

    channels: dict[str, int]

    def __call__(self, module: nn.Module, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Before a state dict is loaded: expand what is one number there or here."""
        for name, count in self.channels.items():
            given, held = state.get(prefix + name), module._buffers.get(name)
            if not isinstance(given, Tensor) or held is None or given.shape == held.shape:
                continue
            if held.numel() == 1 and given.shape == (count,):
                module._buffers[name] = held.expand(count).clone()
            elif given.numel() == 1:
                state[prefix + name] = given.expand(held.shape).clone()


def hook(module: nn.Module, opening: Opening) -> None:
    """Let this module open the scope when it is the outermost one called."""
    module.register_forward_pre_hook(opening.enter, with_kwargs=True)
    module.register_forward_hook(opening.leave, with_kwargs=True, always_call=True)


def release_buffers(module: nn.Module) -> None:
    """Take away the buffers that a conversion gave to its root."""
    for name in module.__dict__.pop("bayesnorm_buffers", {}).values():
        module._buffers.pop(name, None)


def unhook(model: nn.Module) -> None:
    """Take these hooks away from a network."""
    for module in model.modules():
        for hooks, flags in (
            (module._forward_pre_hooks, [module._forward_pre_hooks_with_kwargs]),
            (module._forward_hooks, [module._forward_hooks_with_kwargs, module._forward_hooks_always_called]),
        ):
            for handle, function in list(hooks.items()):
                if isinstance(getattr(function, "__self__", None), Opening):
                    del hooks[handle]
                    for flag in flags:
                        flag.pop(handle, None)
        for handle, wrapped in list(module._load_state_dict_pre_hooks.items()):
            if isinstance(getattr(wrapped, "hook", None), Broadcast):
                del module._load_state_dict_pre_hooks[handle]
