"""Networks of the paper, ResNet-18 and a U-Net, untrained or trained: log-probabilities, classes on axis 1."""

from .all_cnn import AllCNN as AllCNN
from .all_cnn import all_cnn as all_cnn
from .cell_net import CellNet as CellNet
from .cell_net import cell_net as cell_net
from .pretrained import Pretrained as Pretrained
from .pretrained import available as available
from .pretrained import load as load
from .resnet import ResNet18 as ResNet18
from .resnet import resnet18 as resnet18
from .unet import UNet as UNet
from .unet import unet as unet
