"""How good predictions are: stateless metrics, and sums of them over batches, devices and processes."""

from .evaluation import as_json as as_json
from .evaluation import evaluate as evaluate
from .metrics import Metrics as Metrics
from .metrics import Tally as Tally
from .metrics import accuracy as accuracy
from .metrics import ece as ece
from .metrics import nll as nll
