"""Metrics against hand-computed cases, torchmetrics and scikit-learn; streamed against whole."""

import math
from typing import Any

import pytest
import torch
from sklearn.metrics import log_loss  # type: ignore[import-untyped]
from torch import Tensor
from torchmetrics.functional.classification import multiclass_accuracy, multiclass_calibration_error

from bayesnorm.evaluate import Metrics, Tally, accuracy, ece, nll

LOG0 = -math.inf


def problem(count: int = 500, classes: int = 7, space: tuple[int, ...] = (), seed: int = 0) -> tuple[Tensor, Tensor]:
    """Log-probabilities that know something of the targets, in float64."""
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randint(classes, (count, *space), generator=generator)
    logits = 2 * torch.randn(count, classes, *space, generator=generator, dtype=torch.float64)
    logits.scatter_add_(1, targets.unsqueeze(1), torch.full_like(logits[:, :1], 1.5))
    return logits.log_softmax(1), targets


def tally_of(*batches: tuple[Tensor, Tensor], **options: Any) -> Tally:
    tally = Tally(**options)
    for batch in batches:
        tally.update(*batch)
    return tally


@pytest.mark.parametrize("space", [(), (4,), (3, 5)])
@pytest.mark.parametrize("classes", [2, 7])
@pytest.mark.parametrize("ignored", [0.0, 0.3])
def test_agrees_with_torchmetrics_and_scikit_learn(space: tuple[int, ...], classes: int, ignored: float) -> None:
    log_probs, targets = problem(300, classes, space)
    targets[torch.rand(targets.shape, generator=torch.Generator().manual_seed(1)) < ignored] = -100
    options: dict[str, Any] = {"num_classes": classes, "ignore_index": -100}
    probs = log_probs.exp()
    assert accuracy(log_probs, targets) == pytest.approx(
        multiclass_accuracy(probs, targets, average="micro", **options).item(), rel=1e-6
    )
    for bins in (1, 10, 15, 40):
        expected = multiclass_calibration_error(probs, targets, n_bins=bins, norm="l1", **options).item()
        assert ece(log_probs, targets, bins) == pytest.approx(expected, abs=1e-5)  # float32 inside
    rows, kept = probs.movedim(1, -1).reshape(-1, classes), targets.flatten() != -100
    expected = log_loss(targets.flatten()[kept].numpy(), rows[kept].numpy(), labels=range(classes))
    assert nll(log_probs, targets) == pytest.approx(expected, rel=1e-9)


def test_a_case_by_hand() -> None:
    # Confidences 0.9, 0.7, 0.6 and 0.95, the second and the last wrong, in the bins (0.4, 0.6], (0.6, 0.8], (0.8, 1.0].
    probs = torch.tensor([[0.9, 0.1], [0.3, 0.7], [0.6, 0.4], [0.05, 0.95]], dtype=torch.float64)
    metrics = tally_of((probs.log(), torch.tensor([0, 0, 0, 0])), bins=5).compute()
    gaps = abs(1 - 0.6) / 4 + abs(0 - 0.7) / 4 + abs(0.5 - 0.925) * 2 / 4
    assert metrics == pytest.approx(Metrics(4, 0.5, -math.log(0.9 * 0.3 * 0.6 * 0.05) / 4, gaps))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_bin_ends_with_its_upper_edge(dtype: torch.dtype) -> None:
    half = torch.tensor([[0.5, 0.5]], dtype=dtype).log()
    assert half.exp().tolist() == [[0.5, 0.5]]
    for bins in (2, 4, 16):
        assert tally_of((half, torch.tensor([0])), bins=bins).sums[:bins].nonzero().flatten().tolist() == [
            bins // 2 - 1
        ]
    whole = tally_of((torch.tensor([[0.0, LOG0]], dtype=dtype), torch.tensor([0])))
    assert whole.sums[:15].nonzero().flatten().tolist() == [14]


@pytest.mark.parametrize(
    ("log_probs", "targets", "expected"),
    [
        ([[0.0, LOG0], [LOG0, 0.0]], [0, 1], Metrics(2, 1.0, 0.0, 0.0)),  # sure and right
        ([[0.0, LOG0], [LOG0, 0.0]], [0, 0], Metrics(2, 0.5, math.inf, 0.5)),  # sure and once wrong
        ([[0.0], [0.0]], [0, 0], Metrics(2, 1.0, 0.0, 0.0)),  # one class
        ([[math.log(0.5)] * 2] * 2, [0, 1], Metrics(2, 0.5, math.log(2), 0.0)),  # a tie: the first wins
        ([[math.log(0.25)] * 4], [3], Metrics(1, 0.0, math.log(4), 0.25)),
        ([[LOG0, 0.0], [0.0, LOG0]], [0, -100], Metrics(1, 0.0, math.inf, 1.0)),  # what is ignored may be anything
        ([[math.nan, math.nan], [0.0, LOG0]], [-100, 0], Metrics(1, 1.0, 0.0, 0.0)),
    ],
)
def test_corners(log_probs: list[list[float]], targets: list[int], expected: Metrics) -> None:
    batch = torch.tensor(log_probs), torch.tensor(targets)
    assert tally_of(batch).compute() == pytest.approx(expected, abs=1e-7)
    assert accuracy(*batch) == pytest.approx(expected.accuracy)
    assert nll(*batch) == pytest.approx(expected.nll, abs=1e-7)
    assert ece(*batch) == pytest.approx(expected.ece, abs=1e-7)


def test_not_a_number_does_not_hide() -> None:
    metrics = tally_of((torch.tensor([[math.nan, math.nan], [0.0, LOG0]]), torch.tensor([0, 0]))).compute()
    assert metrics.count == 2
    assert math.isnan(metrics.nll)
    assert math.isnan(metrics.ece)


@pytest.mark.parametrize("space", [(), (3, 2)])
@pytest.mark.parametrize("size", [1, 37, 500])
def test_streamed_is_whole_in_any_order(space: tuple[int, ...], size: int) -> None:
    log_probs, targets = problem(500, 5, space)
    targets[::7] = -100
    whole = tally_of((log_probs, targets))
    order = torch.randperm(500, generator=torch.Generator().manual_seed(3))
    batches = list(zip(log_probs[order].split(size), targets[order].split(size), strict=True))
    streamed = tally_of(*batches)
    assert streamed.sums.shape == whole.sums.shape == (47,)
    assert torch.equal(streamed.sums[:30], whole.sums[:30])  # counts and hits are whole numbers
    torch.testing.assert_close(streamed.sums, whole.sums, rtol=1e-12, atol=0)
    assert streamed.compute() == pytest.approx(whole.compute(), rel=1e-12)


def test_float32_sums_do_not_stall() -> None:
    """A float32 sum of ten million halves would stop at 2^24 of its steps; these sums are exact."""
    log_probs, targets = torch.tensor([[0.5, 0.5]]).log().expand(100_000, 2), torch.zeros(100_000, dtype=torch.int64)
    tally = tally_of(*[(log_probs, targets)] * 3)
    total = Tally.from_sums(tally.sums * 1000)
    total.update(log_probs[:1], targets[:1])
    metrics = total.compute()
    assert metrics.count == 300_000_001
    assert metrics.nll == pytest.approx(math.log(2), rel=1e-7)
    assert metrics.ece == pytest.approx(0.5, rel=1e-7)


def test_parts_of_several_processes_add_up() -> None:
    log_probs, targets = problem()
    parts = [tally_of((log_probs[i::3], targets[i::3])) for i in range(3)]
    whole = tally_of((log_probs, targets)).compute()
    reduced = Tally.from_sums(torch.stack([part.sums for part in parts]).sum(0))
    assert reduced.compute() == pytest.approx(whole, rel=1e-12)
    parts[0].merge(parts[1])
    parts[0].merge(Tally())  # a process without samples
    parts[0].merge(parts[2])
    assert parts[0].compute() == pytest.approx(whole, rel=1e-12)
    # In place, as an all-reduce does it.
    parts[1].sums.copy_(reduced.sums)
    assert parts[1].compute() == reduced.compute()


def test_sums_of_another_tally_are_copied() -> None:
    first = tally_of(problem(20))
    second = Tally.from_sums(first.sums, ignore_index=3)
    before = first.compute()
    second.update(*problem(20, seed=5))
    assert first.compute() == before
    assert (second.bins, second.ignore_index) == (15, 3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_lower_precision(dtype: torch.dtype) -> None:
    log_probs, targets = problem()
    low = log_probs.to(dtype)
    expected = tally_of((low.double(), targets)).compute()
    assert tally_of((low, targets)).compute() == pytest.approx(expected, rel=1e-5)


def test_no_gradient_is_kept() -> None:
    log_probs, targets = problem(10)
    tally = tally_of((log_probs.requires_grad_(), targets))
    assert not tally.sums.requires_grad


class Recorder(torch.utils._python_dispatch.TorchDispatchMode):
    """Names of the operations that run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(func.overloadpacket.__name__)
        return func(*args, **kwargs or {})


def test_an_update_never_waits_for_the_device() -> None:
    """No operation whose result is a number on the host or has a size that depends on values."""
    tally, batch = Tally(), problem(10)
    with Recorder() as recorder:
        tally.update(*batch)
    assert "gather" in recorder.names
    assert not recorder.names & {
        "_local_scalar_dense",
        "nonzero",
        "masked_select",
        "index",
        "bincount",
        "unique",
        "equal",
    }
    with Recorder() as recorder:
        _ = batch[0].sum().item()
    assert recorder.names >= {"_local_scalar_dense"}


def test_sums_follow_the_batch_to_its_device() -> None:
    tally = Tally(device="meta")
    tally.update(torch.empty(4, 3, device="meta"), torch.empty(4, dtype=torch.int64, device="meta"))
    assert tally.sums.device.type == "meta"
    moved = Tally(device="cpu")
    moved.update(torch.empty(4, 3, device="meta"), torch.empty(4, dtype=torch.int64, device="meta"))
    assert moved.sums.device.type == "meta"


@pytest.mark.parametrize("function", [accuracy, nll, ece])
@pytest.mark.parametrize(
    ("shape", "target"), [((0, 3), torch.empty(0, dtype=torch.int64)), ((2, 3), torch.tensor([-100, -100]))]
)
def test_nothing_to_average_is_an_error(function: Any, shape: tuple[int, ...], target: Tensor) -> None:
    with pytest.raises(ValueError, match=r"no targets.*-100"):
        function(torch.zeros(shape).log_softmax(1), target)
    with pytest.raises(ValueError, match="no targets"):
        Tally().compute()


@pytest.mark.parametrize(
    ("log_probs", "targets", "message"),
    [
        (torch.zeros(3), torch.zeros(3, dtype=torch.int64), r"\(3,\)"),
        (torch.zeros(3, 2), torch.zeros(4, dtype=torch.int64), r"\(3, 2\).*\(4,\)"),
        (torch.zeros(3, 2, 5), torch.zeros(3, dtype=torch.int64), r"\(3, 2, 5\)"),
        (torch.zeros(3, 0), torch.zeros(3, dtype=torch.int64), r"\(3, 0\)"),
        (torch.zeros(3, 2), torch.zeros(3), "targets of torch.float32"),
        (torch.zeros(3, 2, dtype=torch.int64), torch.zeros(3, dtype=torch.int64), "log_probs of torch.int64"),
        (torch.ones(3, 2), torch.zeros(3, dtype=torch.int64), "sum to 5.44 in the mean.*not logits"),
    ],
)
def test_errors_name_the_value(log_probs: Tensor, targets: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message) as raised:
        ece(log_probs, targets)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("strange", [2, -1, 7, -(2**40)])
def test_targets_that_are_no_class(strange: int) -> None:
    """Also after a sum over processes, and without an index out of bounds, which would end a CUDA process."""
    tally = tally_of((torch.tensor([[0.5, 0.5], [0.0, LOG0]]).log_softmax(1), torch.tensor([0, strange])))
    total = Tally.from_sums(tally.sums + tally_of((torch.zeros(3, 2).log_softmax(1), torch.zeros(3).long())).sums)
    for found in (tally, total):
        with pytest.raises(ValueError, match=r"not a class: pass 0 to classes - 1, or ignore_index=-100"):
            found.compute()
    allowed = tally_of((torch.tensor([[0.0, LOG0]] * 2), torch.tensor([0, strange])), ignore_index=strange)
    assert allowed.compute() == Metrics(1, 1.0, 0.0, 0.0)


def test_errors_of_a_tally_name_the_value() -> None:
    with pytest.raises(ValueError, match="bins=0"):
        Tally(bins=0)
    with pytest.raises(ValueError, match=r"bins=10.*bins=15"):
        Tally().merge(Tally(bins=10))
    for sums in (torch.zeros(45, dtype=torch.float64), torch.zeros(46), torch.zeros(1, dtype=torch.float64)):
        with pytest.raises(ValueError, match=rf"\({len(sums)},\) and {sums.dtype}"):
            Tally.from_sums(sums)
