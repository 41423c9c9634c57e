"""Where the kernels of the fused engine are tested: interpreted by Triton on the CPU, or on CUDA."""

import os
from importlib.util import find_spec

import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cpu" if INTERPRETED else "cuda")
MARKS = [
    pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton"),
    pytest.mark.skipif(not (INTERPRETED or torch.cuda.is_available()), reason="needs CUDA, or TRITON_INTERPRET=1"),
    pytest.mark.filterwarnings("ignore"),  # numpy's of integers that wrap around, Triton's own
]
