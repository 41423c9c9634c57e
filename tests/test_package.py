"""The package as a whole: what it imports, what it offers, and what its source must not contain."""

import ast
import json
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

import pytest

import bayesnorm

SOURCE = Path(bayesnorm.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))
PUBLIC = {
    *("convert", "fold", "project_", "param_groups", "ELBO", "kl", "predict", "posterior", "sampling"),
    *("input_stats", "init_from_data_", "update_bn", "bn_noise", "models", "moments"),
    *("Batch", "Weight", "Analytic", "Point", "Noise", "Bayes"),
}

IMPORTS = """
import json, sys
import torch
before = set(sys.modules)
import bayesnorm
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def test_import_pulls_in_torch_and_nothing_else() -> None:
    command = [
        sys.executable,
        "-W",
        "error",
        "-c",
        f"import sys; sys.path.insert(0, {str(SOURCE.parent)!r})\n{IMPORTS}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    loaded = {name.partition(".")[0] for name in json.loads(done.stdout)}
    assert "bayesnorm" in loaded
    assert loaded <= {"bayesnorm", "torch", *sys.stdlib_module_names}


@pytest.mark.parametrize("package", ["safetensors", "filelock"])
def test_training_without_what_it_needs_says_what_to_install(package: str) -> None:
    script = f"import sys; sys.modules[{package!r}] = None; import bayesnorm.train"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert f"ImportError: bayesnorm.train needs {package}" in done.stderr
    assert "pip install 'bayesnorm[cli]'" in done.stderr


MORE = {
    "data": {"sklearn", "PIL", "numpy"},
    "evaluate": {"sklearn", "scipy"},
    "report": {"matplotlib"},
    "paper": {"matplotlib", "scipy"},
    "train": {"safetensors", "filelock", "triton"},
    "cli": {"typer", "rich"},
}


def test_every_import_in_the_source_is_of_torch_the_standard_library_or_what_its_folder_is_for() -> None:
    for path in FILES:
        allowed = {"torch", "bayesnorm", *sys.stdlib_module_names, *MORE.get(path.relative_to(SOURCE).parts[0], set())}
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            assert {name.partition(".")[0] for name in names} <= allowed, path


def _dangerous(node: ast.AST) -> str | None:
    """A call that can run code from a file or a string, or an import that is for that."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
        found = {name.partition(".")[0] for name in modules} & {"pickle", "marshal", "shelve", "dill", "subprocess"}
        return ", ".join(found) or None
    if isinstance(node, ast.Call):
        function = node.func
        if isinstance(function, ast.Name) and function.id in ("eval", "exec", "compile", "__import__"):
            return function.id
        if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
            name = f"{function.value.id}.{function.attr}"
            return name if name in ("torch.load", "os.system", "torch.jit.load", "torch.hub.load") else None
    return None


def test_no_file_can_run_code() -> None:
    for path in FILES:
        found = [name for node in ast.walk(ast.parse(path.read_text())) if (name := _dangerous(node))]
        assert not found, f"{path}: {found}"


@pytest.mark.parametrize(
    "line", ["eval('1')", "exec('x')", "import pickle", "from pickle import loads", "torch.load(p)"]
)
def test_the_scan_finds_what_it_looks_for(line: str) -> None:
    assert any(_dangerous(node) for node in ast.walk(ast.parse(line)))


def test_the_public_surface_is_the_contract() -> None:
    names = {name for name in vars(bayesnorm) if not name.startswith("_")}
    submodules = {path.stem for path in SOURCE.iterdir() if not path.name.startswith("_")}
    assert names >= PUBLIC
    assert names - PUBLIC <= submodules
    assert all(getattr(bayesnorm, name).__doc__ for name in PUBLIC)
    assert callable(bayesnorm.train.fit)
    assert callable(bayesnorm.models.all_cnn)
    assert callable(bayesnorm.moments.register)
    assert callable(bayesnorm.bn_noise.measure)
    assert callable(bayesnorm.bn_noise.apply_)
    moments = bayesnorm.moments.Moments(1, 2)  # type: ignore[arg-type]
    assert (moments.mean, moments.var) == (1, 2)


def test_types_are_shipped_and_files_stay_small() -> None:
    assert (SOURCE / "py.typed").is_file()
    assert len(FILES) > 20
    lengths = {path.name: len(path.read_text().splitlines()) for path in FILES}
    assert max(lengths.values()) < 400, lengths


def test_metadata_of_an_installed_package() -> None:
    try:
        found = metadata("bayesnorm")
    except PackageNotFoundError:
        pytest.skip("bayesnorm is not installed, its source is on the path")
    required = [value for value in found.get_all("Requires-Dist") or [] if "extra ==" not in value]
    assert required == ["torch>=2.10"]
    assert found["Requires-Python"] == ">=3.11"
