"""The command line: ``bayesnorm``, or ``python -m bayesnorm``."""

from __future__ import annotations

import sys


def main(args: list[str] | None = None) -> int:
    """Run a command; returns the exit status. An error is one line on stderr, with ``--debug`` a traceback."""
    args = sys.argv[1:] if args is None else args
    try:
        from .app import run
    except ImportError as error:
        if error.name is None or error.name.startswith("bayesnorm"):
            raise
        print(f"bayesnorm: the command line needs {error.name}: pip install 'bayesnorm[cli]'", file=sys.stderr)
        return 1
    return run(args)
