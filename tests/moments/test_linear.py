"""Moments of linear maps against the maps themselves, in every weight layout."""

import pytest
import torch
import torch.nn.functional as F

from bayesnorm.moments.linear import filters, linear_moments, scale_filters

CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
GROUPS = [(4, 6, 1), (4, 6, 2), (4, 4, 4), (4, 8, 4)]
groups_of = pytest.mark.parametrize(("inputs", "outputs", "groups"), GROUPS)


def normal(*size, seed=0):
    return torch.randn(*size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def moments(channels):
    return normal(channels, seed=1), normal(channels, seed=2) ** 2 + 0.1


def constant_map(vector, axes, side):
    return vector.view(1, -1, *[1] * axes).expand(1, -1, *[side] * axes)


def test_linear():
    weight = normal(5, 7)
    mean, var = moments(7)
    torch.testing.assert_close(linear_moments(weight, mean, var), (weight @ mean, weight**2 @ var))


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize(("stride", "dilation"), [(1, 1), (2, 1), (1, 2)])
@groups_of
def test_convolution(axes, stride, dilation, inputs, outputs, groups):
    weight = normal(outputs, inputs // groups, *[3, 2, 3][:axes])
    mean, var = moments(inputs)
    got = linear_moments(weight, mean, var, groups=groups, stride=stride, dilation=dilation)
    for value, kernel, channels in zip(got, (weight, weight**2), (mean, var), strict=True):
        response = CONV[axes](constant_map(channels, axes, 7), kernel, None, stride, 0, dilation, groups)
        torch.testing.assert_close(response, constant_map(value, axes, 1).expand_as(response))


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize(("stride", "dilation"), [(1, 1), (2, 1), (3, 1), (2, 2), (2, 3)])
@groups_of
def test_transposed_convolution(axes, stride, dilation, inputs, outputs, groups):
    """The interior of the response, whose side is a multiple of the stride, holds every phase equally often."""
    weight = normal(inputs, outputs // groups, *[3, 2, 4][:axes])
    mean, var = moments(inputs)
    layout = {"groups": groups, "stride": stride, "dilation": dilation}
    got = linear_moments(weight, mean, var, transposed=True, **layout)
    side = 12
    margin = (4 - 1) * dilation
    means, variances = (
        _interior(TRANSPOSED[axes](constant_map(c, axes, side), w, None, **layout), margin, stride)
        for c, w in ((mean, weight), (var, weight**2))
    )
    torch.testing.assert_close(got[0], means.mean(1))
    torch.testing.assert_close(got[1], variances.mean(1) + means.var(1, correction=0))


def _interior(response, margin, stride):
    for axis in range(2, response.dim()):
        length = 2 * stride
        response = response.narrow(axis, margin, length)
    return response[0].flatten(1)


def test_mixed_strides():
    weight, (mean, var) = normal(3, 2, 3, 3), moments(3)
    got = linear_moments(weight, mean, var, transposed=True, stride=(2, 1))
    response = F.conv_transpose2d(constant_map(mean, 2, 9), weight, stride=(2, 1))[0, :, 4:8, 3:6].flatten(1)
    torch.testing.assert_close(got[0], response.mean(1))
    squares = F.conv_transpose2d(constant_map(var, 2, 9), weight**2, stride=(2, 1))[0, :, 4:8, 3:6].flatten(1)
    torch.testing.assert_close(got[1], squares.mean(1) + response.var(1, correction=0))


def test_convolution_monte_carlo():
    """Independent inputs: each moment within 5 standard errors, and a 10 % perturbation is seen."""
    weight, (mean, var) = normal(3, 2, 3, 3), moments(2)
    n = 100_000
    x = mean.view(-1, 1, 1) + var.sqrt().view(-1, 1, 1) * normal(n, 2, 3, 3, seed=3)
    y = F.conv2d(x, weight).flatten(1).T
    mu, spread = linear_moments(weight, mean, var)

    def agrees(mu, spread):
        mean_ok = (y.mean(1) - mu).abs() < 5 * (spread / n).sqrt()
        return mean_ok & ((y.var(1) - spread).abs() < 5 * spread * (2 / n) ** 0.5)

    assert agrees(mu, spread).all()
    assert not agrees(mu + 0.1 * spread.sqrt(), spread).any()
    assert not agrees(mu, spread * 1.21).any()


@pytest.mark.parametrize("layout", [{}, {"groups": 2}, {"transposed": True, "stride": 2}])
def test_gradients(layout):
    weight = normal(4, 2 if layout.get("groups") else 4, 3).requires_grad_()
    mean, var = (t.requires_grad_() for t in moments(4))
    assert torch.autograd.gradcheck(lambda *args: linear_moments(*args, **layout), (weight, mean, var))


@pytest.mark.parametrize("transposed", [False, True])
@groups_of
def test_filters_and_their_scale(inputs, outputs, groups, transposed):
    """Scaling filter o scales response o, and nothing else."""
    shape = (inputs, outputs // groups) if transposed else (outputs, inputs // groups)
    weight, x = normal(*shape, 3, 3), normal(2, inputs, 6, 6, seed=4)
    factor = normal(outputs, seed=5)
    rows = filters(weight, groups, transposed)
    assert rows.shape == (outputs, inputs // groups * 9)
    scaled = scale_filters(weight, factor, groups, transposed)
    torch.testing.assert_close(filters(scaled, groups, transposed), rows * factor[:, None])
    conv = F.conv_transpose2d if transposed else F.conv2d
    expected = conv(x, weight, groups=groups) * factor.view(-1, 1, 1)
    torch.testing.assert_close(conv(x, scaled, groups=groups), expected)


@pytest.mark.parametrize("layout", [{}, {"groups": 2}, {"transposed": True, "stride": 2, "groups": 2}])
def test_compiles_without_break(layout):
    weight, (mean, var) = normal(4, 2, 3, 3), moments(4)
    if not layout:
        weight = normal(4, 4, 3, 3)
    compiled = torch.compile(lambda *args: linear_moments(*args, **layout), fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(weight, mean, var), linear_moments(weight, mean, var, **layout))
