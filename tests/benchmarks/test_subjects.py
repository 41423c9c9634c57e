import pytest
import torch
from comparison import step_of
from subjects import NETWORKS, SUBJECTS, Subject
from torch import nn

WIDTH = 1 / 16
CASES = [(network, name) for network in NETWORKS for name in SUBJECTS]


def _made(network: str, name: str) -> Subject:
    torch.manual_seed(0)
    try:
        return SUBJECTS[name](NETWORKS[network], WIDTH)
    except ImportError as error:
        pytest.skip(f"{name} is not installed: {error}")


@pytest.mark.filterwarnings("ignore::UserWarning")  # of the peers
@pytest.mark.parametrize(("network", "name"), CASES)
def test_steps_have_a_gradient_and_a_prediction_is_a_distribution(network: str, name: str) -> None:
    subject = _made(network, name)
    x, y = torch.randn(4, 3, 32, 32), torch.arange(4)
    step = step_of(subject, x, y, None)
    for _ in range(2):
        step()
    gradients = [value.grad for value in subject.net.parameters() if value.grad is not None]
    assert len(gradients) >= 2 * len([m for m in subject.net.modules() if "Conv2d" in type(m).__name__])
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert sum(float(gradient.abs().sum()) > 0 for gradient in gradients) > len(gradients) / 2
    if subject.draw is not None:
        found = subject.draw(x, 3)
        probs = found if isinstance(found, torch.Tensor) else found.probs  # type: ignore[attr-defined]
        assert probs.shape == (4, 10)
        torch.testing.assert_close(probs.sum(1), torch.ones(4))
    assert subject.draw is not None or not subject.posterior


@pytest.mark.parametrize(("network", "name"), [case for case in CASES if "dropout" in case[1] or "torch" in case[1]])
def test_all_start_from_the_same_architecture(network: str, name: str) -> None:
    convolutions = {"All-CNN": 9, "ResNet-18": 20}[network]
    subject = _made(network, name)
    found = [m for m in subject.net.modules() if "Conv2d" in type(m).__name__]
    assert len(found) == convolutions
    norms = [m for m in subject.net.modules() if isinstance(m, nn.BatchNorm2d)]
    assert len(norms) == (convolutions if name.startswith("torch batch norm") else 0)


def test_nothing_changes_before_the_first_step() -> None:
    subject = _made("All-CNN", "bayesnorm analytic + Bayes")
    before = [value.clone() for value in subject.net.parameters()]
    step_of(subject, torch.randn(2, 3, 32, 32), torch.arange(2), None)
    assert all(torch.equal(*pair) for pair in zip(before, subject.net.parameters(), strict=True))


def test_passes_of_one_subject_draw_anew() -> None:
    subject = _made("All-CNN", "MC dropout")
    assert subject.draw is not None
    x = torch.randn(2, 3, 32, 32)
    assert not torch.equal(subject.draw(x, 1), subject.draw(x, 1))  # type: ignore[arg-type]
