"""``python -m bayesnorm`` is the command ``bayesnorm``."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
