"""Folded networks leave torch: torch.export, and ONNX Runtime."""

import networks
import pytest
import torch
from networks import convert, normal, relative

import bayesnorm

NETWORKS = [
    ("resnet18", "analytic", "bayes"),
    ("preact_tiny", "weight", "noise"),
    ("grouped_transposed", "batch", "bayes"),
]


def folded(name, norm, scale):
    net, x, y = networks.reference(name)
    return bayesnorm.fold(convert(net, norm, scale)), x, y


@pytest.mark.parametrize(("name", "norm", "scale"), NETWORKS)
def test_folded_network_exports_by_torch_export(name, norm, scale):
    net, x, y = folded(name, norm, scale)
    program = torch.export.export(net, (x,))
    assert relative(program.module()(x), y) < 1e-4
    operations = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert any("conv" in operation for operation in operations)
    assert len(program.graph_signature.user_inputs) == 1


@pytest.mark.parametrize("dynamic", [False, True], ids=["fixed", "any batch size"])
def test_export_admits_every_batch_size(dynamic):
    net, _, _ = folded(*NETWORKS[1])
    shapes = ({0: torch.export.Dim("batch", min=1, max=64)},) if dynamic else None
    program = torch.export.export(net, (normal(3, 3, 16, 16),), dynamic_shapes=shapes)
    x = normal(7 if dynamic else 3, 3, 16, 16, seed=1)
    assert relative(program.module()(x), net(x)) < 1e-5


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore:.*:UserWarning:torch.onnx")
@pytest.mark.parametrize(("name", "norm", "scale"), NETWORKS)
def test_onnx_runtime_agrees_with_the_network(name, norm, scale, tmp_path):
    for module in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(module, reason="ONNX export needs onnx, onnxscript and onnxruntime")
    import onnxruntime

    net, x, y = folded(name, norm, scale)
    path = tmp_path / "network.onnx"
    torch.onnx.export(net, (x,), path, dynamo=True, verbose=False)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    (out,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    assert relative(torch.from_numpy(out), y) < 1e-4
    other = normal(*x.shape, seed=2)
    (out,) = session.run(None, {session.get_inputs()[0].name: other.numpy()})
    with torch.no_grad():
        assert relative(torch.from_numpy(out), net(other)) < 1e-4
