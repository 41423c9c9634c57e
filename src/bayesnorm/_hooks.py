"""The hooks by which a module opens the scope of a call."""

from __future__ import annotations

from torch import nn

from .runtime import Opening


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
