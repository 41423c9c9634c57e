"""The rows of the fused update: with them the step is that of the optimizer and the projection."""

import pytest
import torch
from small_data import ALONE, made_up, network
from small_networks import NETWORKS, converted
from torch import Tensor, nn

from bayesnorm.train import Config
from bayesnorm.train.captured import CapturedTrainer
from bayesnorm.train.rows import LONGEST, Rows, rows_of


def by_rows(rows: Rows, values: Tensor, momentum: Tensor, gradient: Tensor, rate: float, mu: float) -> None:
    """What the kernel does, a row after the other."""
    for start, length, factor, low, high, project in zip(
        *[c.tolist() for c in vars(rows).values() if isinstance(c, Tensor)], strict=True
    ):
        part = slice(int(start), int(start + length))
        momentum[part] = mu * momentum[part] + gradient[part]
        moved = values[part] - rate * factor * (gradient[part] + mu * momentum[part])
        values[part] = moved.clamp(low, high)
        if project and values[part].norm() > 0:
            values[part] /= values[part].norm()


@pytest.mark.parametrize("project", [True, False])
@pytest.mark.parametrize(
    ("norm", "scale"), [(None, "point"), ("batch", "point"), ("weight", "bayes"), ("analytic", "bayes")]
)
def test_the_rows_make_the_step_of_the_optimizer(norm, scale, project):
    config = Config(batch=8, project=project)
    trainer = CapturedTrainer(network(norm, scale), made_up(), config, 0.1, ALONE)
    flat = trainer.flat
    factors = [f for group in trainer.optimizer.param_groups for p in group["params"] for f in [flat._factor(group)]]
    rows = rows_of(trainer.net, flat.parameters, factors, project)
    assert rows is not None
    assert rows.length.sum().item() == flat.values.numel()
    assert rows.longest == rows.length.max()
    values, momentum = flat.values.clone(), flat.moments[0].clone()
    for seed in range(3):
        gradient = torch.randn(len(values), generator=torch.Generator().manual_seed(seed))
        by_rows(rows, values, momentum, gradient, 0.1, config.momentum)
        flat.update_(gradient, gradient.norm(), torch.tensor(0.1), torch.tensor(True))
    torch.testing.assert_close(values, flat.values, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(momentum, flat.moments[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", NETWORKS)
def test_every_parameter_is_in_one_row(name):
    net = converted(name, "weight", "bayes")
    parameters = list(net.parameters())
    rows = rows_of(net, parameters, [1.0] * len(parameters), True)
    if rows is None:
        assert any(isinstance(module, nn.modules.conv._ConvTransposeNd) for module in net.modules())
        return
    ends = (rows.start + rows.length).tolist()
    assert rows.start.tolist() == [0, *ends[:-1]]
    assert ends[-1] == sum(p.numel() for p in parameters)
    assert rows.length[rows.project == 0].max() <= LONGEST
