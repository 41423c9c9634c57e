"""The architectures on which the conversion is tested: published families at published depth, and corner cases."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import nn

from . import odd
from .conv1d import Conv1dNet
from .conv3d import Conv3dNet
from .convnext import ConvNeXtTiny
from .densenet import DenseNet121
from .efficientnet import EfficientNetB0
from .inception import InceptionV3
from .mlp import MLP
from .mobilenet import MobileNetV2, MobileNetV3Small
from .preact_resnet import PreActResNet
from .randomize import randomize_
from .regnet import RegNetY400MF
from .resnet import resnet18, resnet50
from .shufflenet import ShuffleNetV2
from .unet import UNet
from .vgg import VGG16

__all__ = ["CASES", "Case", "randomize_"]


@dataclass(frozen=True)
class Case:
    """A network, how to build it, and the size of one input without the batch dimension."""

    name: str
    build: Callable[[], nn.Module]
    input_size: tuple[int, ...]
    has_bn: bool = True
    published: bool = False


_CIFAR = (3, 32, 32)
_IMAGE = (3, 64, 64)
_ODD = (3, 16, 16)

_PUBLISHED = (
    Case("vgg16_bn", partial(VGG16, width=0.125), _CIFAR, published=True),
    Case("vgg16", partial(VGG16, width=0.125, batch_norm=False), _CIFAR, has_bn=False, published=True),
    Case("resnet18", partial(resnet18, width=0.25), _IMAGE, published=True),
    Case("resnet50", partial(resnet50, width=0.125), _IMAGE, published=True),
    Case("resnet50_zero_init", partial(resnet50, width=0.125, zero_init_residual=True), _IMAGE, published=True),
    Case("preact_resnet56", partial(PreActResNet, depth=56, width=0.5), _CIFAR, published=True),
    Case("preact_resnet110", partial(PreActResNet, depth=110, width=0.5), _CIFAR, published=True),
    Case("densenet121", partial(DenseNet121, width=0.25), _IMAGE, published=True),
    Case("mobilenet_v2", partial(MobileNetV2, width=0.25), _IMAGE, published=True),
    Case("mobilenet_v3_small", partial(MobileNetV3Small, width=0.5), _IMAGE, published=True),
    Case("efficientnet_b0", partial(EfficientNetB0, width=0.25), _IMAGE, published=True),
    Case("shufflenet_v2", partial(ShuffleNetV2, width=0.5), _IMAGE, published=True),
    Case("inception_v3", partial(InceptionV3, width=0.125), (3, 75, 75), published=True),
    Case("regnet_y_400mf", partial(RegNetY400MF, width=0.5), _IMAGE, published=True),
    Case("convnext_tiny", partial(ConvNeXtTiny, width=0.25, layer_scale=0.5), _IMAGE, has_bn=False, published=True),
    Case("unet", partial(UNet, width=0.125), _CIFAR, published=True),
)
_SMALL = (
    Case("mlp_bn", MLP, (20,)),
    Case("mlp", partial(MLP, batch_norm=False), (20,), has_bn=False),
    Case("conv1d", Conv1dNet, (4, 32)),
    Case("conv3d", Conv3dNet, (1, 8, 8, 8)),
    Case("shared_block", odd.SharedBlock, _ODD),
    Case("aliased_module", odd.AliasedModule, _ODD),
    Case("conv_to_norm_and_skip", odd.ConvToNormAndSkip, _ODD),
    Case("conv_to_two_norms", odd.ConvToTwoNorms, _ODD),
    Case("norm_after_two_convs", odd.NormAfterTwoConvs, _ODD),
    Case("norm_on_input", odd.NormOnInput, _ODD),
    Case("nested_containers", odd.NestedContainers, _ODD),
    Case("functional_forms", odd.FunctionalForms, _ODD),
    Case("functional_layers", odd.FunctionalLayers, _ODD),
    Case("bias_before_norm", odd.BiasBeforeNorm, _ODD),
    Case("norm_without_affine", odd.NormWithoutAffine, _ODD),
    Case("grouped_transposed", odd.GroupedTransposed, _ODD),
    Case("dilated", odd.Dilated, _ODD),
    Case("root_sequential", odd.root_sequential, _ODD),
    Case("extra_methods", odd.ExtraMethods, _ODD),
    Case("group_norm", odd.GroupNormNet, _ODD, has_bn=False),
    Case("channel_softmax", odd.ChannelSoftmax, _ODD),
    Case("functional_dropout", odd.FunctionalDropout, _ODD),
    Case("mixed_activations", odd.MixedActivations, _ODD),
    Case("shape_control_flow", odd.ShapeControlFlow, _ODD),
    Case("preact_tiny", odd.PreActTiny, _ODD),
)

CASES: dict[str, Case] = {case.name: case for case in (*_PUBLISHED, *_SMALL)}
