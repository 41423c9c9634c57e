"""The benchmarks are scripts beside each other: they are imported as the scripts import them."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
