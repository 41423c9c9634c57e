"""Several threads with one network in evaluation mode: each gets what it would get alone."""

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from members import MEMBERS, build, inputs

import bayesnorm
from bayesnorm import _sampling


@pytest.fixture(autouse=True)
def hurried() -> Iterator[None]:
    """Threads give way to each other as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def batches(count: int = 40) -> list[torch.Tensor]:
    return [inputs(seed=seed) for seed in range(count)]


@pytest.mark.parametrize(("norm", "scale"), MEMBERS)
def test_evaluation(norm, scale):
    net = build(norm, scale).eval()
    with torch.no_grad():
        expected = [net(x) for x in batches()]
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(torch.no_grad()(net), batches()))
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("method", ["draws", "moments"])
def test_predictions(method):
    net = torch.nn.Sequential(build("analytic", "bayes"), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()).eval()
    flags = [parameter.requires_grad for parameter in net.parameters()]

    def predict(x: torch.Tensor) -> torch.Tensor:
        return bayesnorm.predict(net, x, samples=4, method=method).probs

    expected, before = [predict(x) for x in batches()], net(inputs())
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(predict, batches()))
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(found, expected, strict=True))
    assert torch.allclose(net(inputs()), before, atol=1e-6)
    assert [parameter.requires_grad for parameter in net.parameters()] == flags


def test_drawing_in_one_thread_leaves_the_others_alone():
    net, x = build("weight", "bayes").eval(), inputs()
    expected = net(x)
    with bayesnorm.sampling(net), ThreadPoolExecutor(1) as pool:
        assert torch.equal(pool.submit(net, x).result(), expected)
        assert pool.submit(lambda: [runtime.sampling for runtime in _sampling.runtimes(net)]).result() == [None]
        assert not torch.equal(net(x), expected)
