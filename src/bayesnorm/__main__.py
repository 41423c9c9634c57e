"""``python -m bayesnorm`` is the command ``bayesnorm``."""

from .cli import main
from .cli.world import end

if __name__ == "__main__":
    end(main())
