"""Networks of the paper, and ResNet-18; all return log-probabilities, classes on axis 1."""

from .all_cnn import AllCNN as AllCNN
from .all_cnn import all_cnn as all_cnn
from .cell_net import CellNet as CellNet
from .cell_net import cell_net as cell_net
from .resnet import ResNet18 as ResNet18
from .resnet import resnet18 as resnet18
