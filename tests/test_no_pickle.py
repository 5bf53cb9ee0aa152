"""Nothing is passed between processes, or taken from a model, in a form that can run code when it is read."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODULES = ("pickle", "_pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib", "multiprocessing", "jsonpickle")
CALLS = ("torch.load", "torch.save", "torch.jit.load", "torch.package", "numpy.load", "np.load", "ProcessPoolExecutor")
NEVER = ("trust_remote_code=True", "allow_pickle=True", "weights_only=False")
# numba keeps its cache's index as one: only its error is named, and kernels/compile_cache.py says whose cache is read.
ALLOWED = {("kernels/compile_cache.py", "pickle"): {"pickle.UnpicklingError"}}


def imported(tree: ast.Module) -> set[str]:
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def used(tree: ast.Module) -> set[str]:
    """Dotted names that are read, and names of their own."""
    return {dotted(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute | ast.Name)}


def faults(path: Path, source: str) -> set[str]:
    tree = ast.parse(source)
    names, modules = used(tree), imported(tree)
    found = {name for name in modules if name.split(".")[0] in MODULES}
    for module in set(found):
        uses = {name for name in names if name.startswith(f"{module}.")}
        if uses and uses == ALLOWED.get((str(path.relative_to(ROOT)), module)):
            found.remove(module)
    calls = {name for name in names | modules if name in CALLS or name.split(".")[-1] == CALLS[-1]}
    keywords = {
        f"{node.arg}={node.value.value}"
        for node in ast.walk(tree)
        if isinstance(node, ast.keyword) and isinstance(node.value, ast.Constant)
    }
    return found | calls | (keywords & set(NEVER))


@pytest.mark.parametrize("folder", ["engine", "kernels", "tui", "loadgen"])
def test_modules_read_data_alone(folder: str) -> None:
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files
    assert {path.name: found for path in files if (found := faults(path, path.read_text()))} == {}


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "import pickle as p",
        "from pickle import loads",
        "def f():\n    import marshal",
        "import multiprocessing.pool",
        "from concurrent.futures import ProcessPoolExecutor",
        "import concurrent.futures as c\nc.ProcessPoolExecutor()",
        "torch.load('x')",
        "AutoModel.from_pretrained('x', trust_remote_code=True)",
        "np.load('x', allow_pickle=True)",
    ],
)
def test_this_would_be_found(source: str) -> None:
    assert faults(ROOT / "engine" / "some.py", source)


def test_the_allowed_is_all_that_is_done() -> None:
    path = ROOT / "kernels" / "compile_cache.py"
    assert faults(path, path.read_text() + "\npickle.loads(b'')\n") == {"pickle"}
