import pytest

from bayesnorm.cli import main


@pytest.fixture
def bayesnorm_(tmp_path, monkeypatch, capsys):
    """Runs a command in an empty folder; returns its status, output and errors."""
    monkeypatch.chdir(tmp_path)

    def call(*args):
        status = main([str(arg) for arg in args])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call
