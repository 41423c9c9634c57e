"""Networks of the paper."""

from .all_cnn import AllCNN as AllCNN
from .all_cnn import all_cnn as all_cnn
