"""Settings of torch that decide which numbers come out, put back afterwards."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.utils.deterministic

from .config import Config


@contextmanager
def numerics(config: Config, device: torch.device) -> Iterator[None]:
    """Inside: deterministic kernels, no choice of kernels by timing, the configured precision, generators of the seed.

    The caller's settings and generators are restored, also after an exception.
    """
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    filling: Any = torch.utils.deterministic
    before = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        cudnn.benchmark,
        cudnn.deterministic,
        cudnn.allow_tf32,
        matmul.allow_tf32,
        filling.fill_uninitialized_memory,
    )
    # cuBLAS reads this when it starts; without it deterministic mode refuses matrix products.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    cuda = [] if device.type != "cuda" else [torch.cuda.current_device() if device.index is None else device.index]
    try:
        with torch.random.fork_rng(cuda):
            torch.manual_seed(config.seed)
            if config.deterministic:
                torch.use_deterministic_algorithms(True)
                cudnn.deterministic, cudnn.benchmark = True, False
                # Nothing here reads memory before it is written; filling it would add a kernel to every operation.
                filling.fill_uninitialized_memory = False
            cudnn.allow_tf32 = matmul.allow_tf32 = config.precision == "tf32"
            yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32, matmul.allow_tf32 = before[2:6]
        filling.fill_uninitialized_memory = before[6]
