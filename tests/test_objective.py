"""The ELBO in its parts, and the KL of a network."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from members import MEMBERS, build, inputs
from torch import nn

import bayesnorm

N_DATA = 450


def classifier(scale: str = "bayes") -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 4))
    return bayesnorm.convert(net, norm="analytic", scale=scale)


def segmenter() -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 5, 3, padding=1), nn.BatchNorm2d(5), nn.ReLU(), nn.Conv2d(5, 4, 1))
    return bayesnorm.convert(net, norm="analytic", scale="bayes")


TARGET = torch.tensor([0, 3, 1, 2])


def maps(seed: int = 0) -> torch.Tensor:
    return torch.randint(4, (4, 6, 6), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("factor", [0.0, 0.1, 1.0, 2.0, torch.tensor(0.5)])
def test_total_is_nll_plus_factor_times_kl_per_sample(factor):
    net = classifier()
    y = net(inputs("linear"))
    terms = bayesnorm.ELBO(net, N_DATA, kl_factor=factor)(y, TARGET)
    assert torch.equal(terms.nll, F.cross_entropy(y, TARGET))
    assert torch.equal(terms.kl, bayesnorm.kl(net))
    assert terms.kl > 1
    expected = terms.nll.double() + float(factor) * terms.kl.double() / N_DATA
    assert abs(terms.total.double() - expected) < 1e-6
    assert (terms.total, terms.nll, terms.kl) == tuple(terms)


def test_kl_does_not_depend_on_the_batch_size_and_is_no_mean_over_channels():
    net = classifier()
    elbo = bayesnorm.ELBO(net, N_DATA)
    few = elbo(net(inputs("linear", 2)), TARGET[:2])
    many = elbo(net(inputs("linear", 4)), TARGET)
    assert torch.equal(few.kl, many.kl)
    assert torch.allclose(few.total - few.nll, many.total - many.nll, atol=1e-6)
    wide = bayesnorm.convert(
        nn.Sequential(nn.Linear(6, 10), nn.BatchNorm1d(10)), norm="weight", scale="bayes", preserve=False
    )
    narrow = bayesnorm.convert(
        nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5)), norm="weight", scale="bayes", preserve=False
    )
    assert torch.allclose(bayesnorm.kl(wide), 2 * bayesnorm.kl(narrow))


def test_factor_may_be_changed_between_calls():
    net = classifier()
    y = net(inputs("linear"))
    elbo = bayesnorm.ELBO(net, N_DATA)
    full = elbo(y, TARGET)
    elbo.kl_factor = 0.25
    quarter = elbo(y, TARGET)
    assert torch.allclose(quarter.total - quarter.nll, (full.total - full.nll) / 4, atol=1e-6)


def test_every_pixel_of_a_segmentation_is_an_example():
    net, target = segmenter(), maps()
    y = net(inputs())
    terms = bayesnorm.ELBO(net, N_DATA, kl_factor=0.1)(y, target)
    assert torch.equal(terms.nll, F.cross_entropy(y, target))
    assert abs(terms.total - terms.nll - 0.1 * terms.kl / (N_DATA * 36)) < 1e-6
    assert 0.1 * terms.kl / N_DATA > 1e-4  # without the pixels it would show


@pytest.mark.parametrize("index", [-100, 2])
def test_ignored_pixels_do_not_count_in_the_nll_but_the_kl_is_divided_as_the_shape_says(index):
    net, target = segmenter(), maps()
    target[:, :3] = index
    y = net(inputs())
    terms = bayesnorm.ELBO(net, N_DATA, ignore_index=index)(y, target)
    log_probs = F.log_softmax(y, 1).gather(1, target.clamp(min=0).unsqueeze(1)).squeeze(1)
    expected = -log_probs[target != index].mean()
    assert torch.allclose(terms.nll, expected, rtol=1e-6)
    assert torch.allclose(terms.total, expected + terms.kl / (N_DATA * 36), rtol=1e-6)


def test_ignored_samples_do_not_count_in_the_nll_either():
    net, target = classifier(), TARGET
    y = net(inputs("linear"))
    terms = bayesnorm.ELBO(net, N_DATA, ignore_index=2)(y, target)
    assert torch.allclose(terms.nll, F.cross_entropy(y[target != 2], target[target != 2]), rtol=1e-6)


def test_logits_and_log_probabilities_are_said_not_guessed():
    net = classifier()
    y = net(inputs("linear"))
    logits = bayesnorm.ELBO(net, N_DATA)(y, TARGET)
    log_probs = bayesnorm.ELBO(net, N_DATA, nll="log_probs")(F.log_softmax(y, 1), TARGET)
    assert torch.allclose(logits.total, log_probs.total, rtol=1e-6)
    assert torch.equal(
        bayesnorm.ELBO(net, N_DATA, nll="log_probs")(3 * y, TARGET).nll, F.nll_loss(3 * y, TARGET)
    )  # taken at its word
    with pytest.raises(ValueError, match="probabilities"):
        bayesnorm.ELBO(net, N_DATA, nll="probabilities")


def test_any_callable_is_an_nll():
    net = classifier()
    y = net(inputs("linear"))
    terms = bayesnorm.ELBO(net, N_DATA, nll=lambda output, target: F.multi_margin_loss(output, target))(y, TARGET)
    assert torch.equal(terms.nll, F.multi_margin_loss(y, TARGET))
    assert abs(terms.total - terms.nll - terms.kl / N_DATA) < 1e-6
    pixels = bayesnorm.ELBO(segmenter(), N_DATA, nll=F.cross_entropy)(torch.zeros(4, 4, 6, 6), maps())
    assert abs(pixels.total - pixels.nll - pixels.kl / (N_DATA * 36)) < 1e-6
    with pytest.raises(ValueError, match=r"\(4,\)"):
        bayesnorm.ELBO(net, N_DATA, nll=lambda output, target: output[:, 0])(y, TARGET)


def test_soft_targets_are_one_target_per_sample():
    net = classifier()
    y = net(inputs("linear"))
    soft = F.one_hot(TARGET, 4).float() * 0.9 + 0.025
    terms = bayesnorm.ELBO(net, N_DATA)(y, soft)
    assert torch.equal(terms.nll, F.cross_entropy(y, soft))
    assert abs(terms.total - terms.nll - terms.kl / N_DATA) < 1e-6


def test_number_of_data_is_required():
    with pytest.raises(TypeError, match="n_data"):
        bayesnorm.ELBO(classifier())


@pytest.mark.parametrize("wrong", [0, -1, 1.5, 45_000.0, True, None, "45000", float("nan")])
def test_number_of_data_is_checked(wrong):
    with pytest.raises(ValueError, match="n_data"):
        bayesnorm.ELBO(classifier(), wrong)


@pytest.mark.parametrize("wrong", [-1.0, math.nan, math.inf, "1", None])
def test_a_factor_that_is_none_is_refused(wrong):
    with pytest.raises(ValueError, match="kl_factor"):
        bayesnorm.ELBO(classifier(), N_DATA, kl_factor=wrong)


def test_a_factor_may_be_a_number_of_numpy():
    assert bayesnorm.ELBO(classifier(), N_DATA, kl_factor=np.float32(0.5)).kl_factor == 0.5


def test_an_output_that_is_no_tensor_is_refused():
    with pytest.raises(ValueError, match="the network returned dict: pass its tensor"):
        bayesnorm.ELBO(classifier(), N_DATA)({"out": torch.zeros(2, 3)}, torch.zeros(2, dtype=torch.int64))


@pytest.mark.parametrize(("norm", "scale"), MEMBERS)
def test_network_without_a_posterior_has_kl_zero(norm, scale):
    value = bayesnorm.kl(build(norm, scale))
    assert isinstance(value, torch.Tensor)
    assert value.dim() == 0
    assert (value > 0) == (scale == "bayes")
    assert bayesnorm.kl(nn.Linear(2, 2)) == 0


def test_gradient_of_the_total_reaches_every_parameter_and_that_of_u_is_about_one_over_n():
    net = classifier()
    elbo = bayesnorm.ELBO(net, N_DATA)
    elbo(net(inputs("linear")), TARGET).total.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())
    net.zero_grad()
    (bayesnorm.kl(net) / N_DATA).backward()
    # d KL / d u = -1 + sigma^2 / s0^2 where sigma = e^u
    sigma = net[0].scale.u.detach().exp()
    assert torch.allclose(net[0].scale.u.grad, (-1 + sigma**2 / 100) / N_DATA, rtol=1e-5)


def test_half_precision_logits_give_a_float32_loss():
    net = classifier()
    y = net(inputs("linear"))
    terms = bayesnorm.ELBO(net, N_DATA)(y.bfloat16(), TARGET)
    assert terms.nll.dtype == terms.kl.dtype == terms.total.dtype == torch.float32
    assert torch.equal(terms.nll, F.cross_entropy(y.bfloat16().float(), TARGET))
    log_probs = bayesnorm.ELBO(net, N_DATA, nll="log_probs")(F.log_softmax(y, 1).bfloat16(), TARGET)
    assert log_probs.nll.dtype == torch.float32


@pytest.mark.parametrize("shape", [(2, 6, 4), (4, 6, 2), (48,), (2, 1, 4, 6), (2, 24)])
def test_targets_that_are_no_class_for_each_output_are_refused(shape):
    """As many numbers do not make them the right ones."""
    elbo = bayesnorm.ELBO(nn.Linear(1, 1), n_data=10)
    with pytest.raises(ValueError, match=r"targets of shape .* for outputs \(2, 3, 4, 6\): .* of shape \(2, 4, 6\)"):
        elbo(torch.zeros(2, 3, 4, 6), torch.zeros(shape, dtype=torch.int64))
