"""Products in float32 are taken as the configuration says, whatever the caller has chosen, which is put back."""

import json
import subprocess
import sys

import pytest
import torch

from bayesnorm.train import Config
from bayesnorm.train.numerics import numerics

CASES = {
    "default": "pass",
    "medium": "torch.set_float32_matmul_precision('medium')",
    "high": "torch.set_float32_matmul_precision('high')",
    "older, products": "torch.backends.cuda.matmul.allow_tf32 = True",
    "older, convolutions": "torch.backends.cudnn.allow_tf32 = False",
    "newer, products": "torch.backends.cuda.matmul.fp32_precision = 'tf32'",
    "newer, convolutions": "torch.backends.cudnn.conv.fp32_precision = 'ieee'",
    "newer, CPU": "torch.backends.mkldnn.matmul.fp32_precision = 'bf16'",
    "newer, all": "torch.backends.fp32_precision = 'tf32'",
}
SCRIPT = """
import json, os, sys
import torch
from bayesnorm.train import Config
from bayesnorm.train.numerics import _on_cpu, _on_gpu, numerics

def read(get):
    try:
        return get()
    except RuntimeError:
        return "set by the newer interface"

def state():
    older = [torch.get_float32_matmul_precision, lambda: torch.backends.cudnn.allow_tf32]
    older.append(lambda: torch.backends.cuda.matmul.allow_tf32)
    return [place.fp32_precision for place in _on_gpu() + _on_cpu()], [read(get) for get in older]

for name, code in json.loads(sys.argv[1]).items():
    if os.fork():  # settings cannot be taken back, so each case has a process
        assert os.wait()[1] == 0
        continue
    exec(code)
    before, inside = state(), {}
    for precision in ("fp32", "tf32", "bf16"):
        with numerics(Config(precision=precision, lr=0.1), torch.device("cpu")):
            inside[precision] = state()
        assert state() == before, (name, precision, before, state())
    print(json.dumps([name, inside]), flush=True)
    os._exit(0)
"""


@pytest.fixture(scope="module")
def inside() -> dict[str, dict[str, list[list[object]]]]:
    done = subprocess.run([sys.executable, "-c", SCRIPT, json.dumps(CASES)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return dict(map(json.loads, done.stdout.splitlines()))


@pytest.mark.parametrize("name", CASES)
def test_what_the_caller_chose_has_no_influence(name: str, inside: dict[str, dict[str, list[list[object]]]]) -> None:
    """That it is put back, the process itself has asserted."""
    single, older = ["ieee"] * 6, ["highest", False, False]
    assert inside[name]["fp32"] == inside[name]["bf16"] == [single, older]
    assert inside[name]["tf32"] == [["tf32"] * 3 + ["ieee"] * 3, ["high", True, True]]


@pytest.mark.parametrize("chosen", [False, True])
def test_determinism_is_put_back_as_the_caller_chose_it(chosen: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether other algorithms only warn, and whether new memory is filled; inside, neither."""
    filling = torch.utils.deterministic
    monkeypatch.setattr(filling, "fill_uninitialized_memory", chosen)
    torch.use_deterministic_algorithms(True, warn_only=chosen)
    try:
        with numerics(Config(lr=0.1), torch.device("cpu")):
            inside = torch.is_deterministic_algorithms_warn_only_enabled(), filling.fill_uninitialized_memory
        after = torch.is_deterministic_algorithms_warn_only_enabled(), filling.fill_uninitialized_memory
    finally:
        torch.use_deterministic_algorithms(False)
    assert inside == (False, False)
    assert after == (chosen, chosen)
