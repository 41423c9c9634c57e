import json
import platform
import sys

import pytest
import torch

from bayesnorm.train import environment
from bayesnorm.train.environment import changed, typed

CPU = torch.device("cpu")
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A source tree with a repository of files alone."""
    source = tmp_path / "src" / "bayesnorm" / "train"
    source.mkdir(parents=True)
    (tmp_path / ".git").mkdir()
    monkeypatch.setattr(environment, "__file__", str(source / "environment.py"))
    return tmp_path


def commit():
    return environment.environment(CPU, 1)["commit"]


def test_what_is_noted(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["bayesnorm", "train", "--lr", "0.1"])
    found = environment.environment(CPU, 2)
    assert json.loads(json.dumps(found)) == found
    assert found["python"] == platform.python_version()
    assert found["versions"]["torch"] is not None
    assert set(found["versions"]) == {"bayesnorm", "torch", "numpy", "scipy", "safetensors"}
    assert found["command"] == ["bayesnorm", "train", "--lr", "0.1"]
    assert found["threads"] == torch.get_num_threads()
    assert found["processes"] == 2
    assert found["device"]
    assert found["cores"] >= 1


def test_the_source_is_told_apart_by_names_and_contents(repository):
    file = repository / "src" / "bayesnorm" / "a.py"
    found = [environment.environment(CPU, 1)["source"]]
    for name, content in (("a.py", ""), ("a.py", "1"), ("b.py", "1")):
        file.unlink(missing_ok=True)
        file = file.with_name(name)
        file.write_text(content)
        found.append(environment.environment(CPU, 1)["source"])
    assert len(set(found)) == 4
    assert all(len(digest) == 64 for digest in found)


def test_the_commit_of_a_branch(repository):
    (repository / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    (repository / ".git" / "refs" / "heads").mkdir(parents=True)
    (repository / ".git" / "refs" / "heads" / "main").write_text(COMMIT + "\n")
    assert commit() == COMMIT


def test_the_commit_of_a_packed_branch(repository):
    (repository / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    lines = [
        "# pack-refs with: peeled fully-peeled sorted",
        f"{'f' * 40} refs/heads/other",
        f"{COMMIT} refs/heads/main",
    ]
    (repository / ".git" / "packed-refs").write_text("\n".join([*lines, "^" + "e" * 40]) + "\n")
    assert commit() == COMMIT


def test_the_commit_of_a_detached_head(repository):
    (repository / ".git" / "HEAD").write_text(COMMIT + "\n")
    assert commit() == COMMIT


@pytest.mark.parametrize("absolute", [True, False])
def test_the_commit_of_a_worktree(repository, absolute, tmp_path):
    (repository / ".git").rmdir()
    shared = tmp_path / "elsewhere" / ".git"
    worktree = shared / "worktrees" / "one"
    worktree.mkdir(parents=True)
    (shared / "refs" / "heads").mkdir(parents=True)
    (shared / "refs" / "heads" / "topic").write_text(COMMIT + "\n")
    (worktree / "HEAD").write_text("ref: refs/heads/topic\n")
    (worktree / "commondir").write_text("../..\n")
    place = worktree if absolute else worktree.relative_to(tmp_path)
    (repository / ".git").write_text(f"gitdir: {place}\n")
    assert commit() == COMMIT


def test_no_commit_is_none(repository):
    assert commit() is None, "a repository without a HEAD"
    (repository / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    assert commit() is None, "a branch without a commit"


def test_what_changes_a_result_is_named():
    now = environment.environment(CPU, 1)
    assert changed(now, now) is None
    assert changed({**now, "threads": 99}, now) == f"threads was 99, now it is {now['threads']}"
    assert "processes was 2, now it is 1" in str(changed({**now, "processes": 2}, now))
    assert str(changed({**now, "versions": {**now["versions"], "torch": "1.0"}}, now)).startswith("versions was")
    assert changed({**now, "command": ["other"], "commit": "x", "cores": 1, "platform": "y"}, now) is None
    assert changed({}, now) is not None


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (
            ["/somewhere/bin/bayesnorm", "reproduce", "table1", "--set", "lr=a b"],
            "bayesnorm reproduce table1 --set 'lr=a b'",
        ),
        (["/somewhere/bayesnorm/__main__.py", "demo"], "bayesnorm demo"),
        (["other.py", "x"], "other.py x"),
        ([], ""),
    ],
)
def test_a_command_as_it_is_typed(words: list[str], command: str) -> None:
    assert typed(words) == command
