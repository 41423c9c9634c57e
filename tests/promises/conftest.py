"""The promises R1 to R12, each tried on real runs of real processes.

Two of them are proved elsewhere. R7 (data is checked): ``tests/data/test_archive.py``, ``test_cifar10.py`` and
``test_download.py`` with truncated, corrupted and wrong archives. R11 (conversion keeps what the network was):
``tests/test_convert.py`` and ``tests/test_module_contract.py``. The scan of the source that belongs to R6 is in
``tests/test_package.py``.
"""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from promises.runs import SEARCH, TRAIN, Commands


@pytest.fixture(scope="session")
def command(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    """Runs ``bayesnorm ARGS``."""
    commands = Commands(tmp_path_factory.mktemp("commands"))
    yield commands
    commands.close()


@pytest.fixture(scope="session")
def reference(command: Commands) -> Path:
    """``TRAIN``, never interrupted, as a user runs it."""
    folder = command.folder / "reference"
    done = command.start_module(*TRAIN, "--out", folder).finish()
    assert (done.status, done.err) == (0, "")
    return folder


@pytest.fixture(scope="session")
def searched(command: Commands) -> Path:
    """``SEARCH``, never interrupted."""
    folder = command.folder / "searched"
    done = command(*SEARCH, "--out", folder)
    assert (done.status, done.err) == (0, "")
    return folder


@pytest.fixture(scope="session")
def interrupted(command: Commands) -> Path:
    """``TRAIN``, killed in step 11: checkpoints of the steps 6 and 9."""
    folder = command.folder / "interrupted"
    assert command(*TRAIN, "--out", folder, faults=[{"kind": "step", "step": 11, "signals": [9]}]).status == -9
    return folder


@pytest.fixture
def copy(tmp_path: Path) -> Callable[[Path], Path]:
    """A copy of a run, to be ruined."""

    def made(folder: Path) -> Path:
        target = tmp_path / f"{folder.name}-{len(list(tmp_path.iterdir()))}"
        shutil.copytree(folder, target)
        return target

    return made
