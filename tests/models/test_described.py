import json

import pytest
import torch

from bayesnorm import Analytic, Batch, Bayes, Noise, Point, Weight
from bayesnorm.errors import DataError
from bayesnorm.models.described import MODELS, Description

SMALL = {"width": 0.125, "num_classes": 3, "in_channels": 1}
SPECS = [
    (None, Point()),
    (Batch(0.2, 1e-3), Noise(0.1, 0.2)),
    (Weight(), Bayes("log-uniform", 0.3, True, False, 1e-6)),
    (Analytic(), Bayes(stochastic_bias=True)),
]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("norm", "scale"), SPECS, ids=lambda spec: type(spec).__name__)
def test_a_network_is_rebuilt_from_json(model, norm, scale):
    said = Description(model, SMALL, norm, scale)
    read = Description.from_dict(json.loads(json.dumps(said.as_dict())))
    assert read == said
    nets = []
    for description in (said, read):
        torch.manual_seed(0)
        nets.append(description.build((torch.zeros(1), torch.ones(1))).eval())
    x = torch.randn(2, 1, 32, 32, generator=torch.Generator().manual_seed(1))
    assert torch.equal(nets[0](x), nets[1](x))
    assert nets[0](x).shape[:2] == (2, 3)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": "transformer"}, "model 'transformer' is none of all-cnn"),
        ({"norm": {"name": "layer"}}, "'layer' is none of batch, weight, analytic"),
        ({"scale": {"name": "cauchy"}}, "'cauchy' is none of point, noise, bayes"),
        ({"norm": {"name": "weight", "colour": "red"}}, "weight has other options here .*colour"),
    ],
)
def test_what_a_newer_version_wrote_is_named(change, words):
    values = Description("all-cnn", SMALL, Weight(), Bayes()).as_dict()
    with pytest.raises(DataError, match=words + ".*use a newer bayesnorm"):
        Description.from_dict({**values, **change})
