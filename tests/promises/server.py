"""Starts commands fast: a process that has everything imported and forks for each.

Each line of stdin is a job, JSON: arguments, folder, faults, files for the two streams. The answer is the process id at
once, and ``id status`` when the process has ended. The child is what ``python -m bayesnorm`` is: a process of its own,
with its own streams and the usual signal handlers.
"""

import gc
import json
import os
import runpy
import select
import signal
import sys
from pathlib import Path
from typing import Any

from bayesnorm import cli


def serve(faults: Any) -> None:
    children: set[int] = set()
    while True:
        for child in list(children):
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                children.remove(child)
                print(child, status, flush=True)
        if select.select([sys.stdin], [], [], 0.002 if children else None)[0]:
            line = sys.stdin.readline()
            if not line:
                return
            child = os.fork()
            if child == 0:
                _run(json.loads(line), faults)
            children.add(child)
            print(child, flush=True)


def _run(job: dict[str, Any], faults: Any) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(job[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
    os.chdir(job["folder"])
    faults.install(job["faults"])
    status = 0
    if job["args"][0].endswith(".py"):
        sys.argv = job["args"]
        runpy.run_path(job["args"][0], run_name="__main__")
    else:
        sys.argv = ["bayesnorm", *job["args"]]
        status = cli.main(job["args"])
    sys.stdout.flush()
    os._exit(status)


def _warm(folder: str) -> None:
    """Import all that a command imports late."""
    standard = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    args = "train --data digits --width 0.0625 --batch 512 --epochs 1 --lr auto --lr-trials 1 --lr-epochs 1 --samples 0"
    cli.main([*args.split(" "), "--out", str(Path(folder) / "warm")])
    sys.stdout.flush()
    os.dup2(standard, 1)


if __name__ == "__main__":
    import faults as ours  # beside this file, which is a script here

    _warm(sys.argv[1])
    gc.freeze()  # a collection in a child would copy every page
    print("ready", flush=True)
    serve(ours)
