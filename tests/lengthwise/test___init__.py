"""`import lengthwise`: a dozen names, each imported at its first use."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import lengthwise

ROOT = Path(__file__).resolve().parents[2]


def modules_after(program: str) -> set[str]:
    """Return the modules that a new process has imported after a program."""
    code = f"import sys\nbefore = set(sys.modules)\n{program}\nprint(*set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_the_import_needs_the_standard_library_only():
    tops = {name.partition(".")[0] for name in modules_after("import lengthwise")}
    assert tops - sys.stdlib_module_names == {"lengthwise"}


def test_no_module_imports_a_runtime_before_it_is_used():
    files = [path.relative_to(ROOT).with_suffix("") for path in ROOT.glob("lengthwise/**/*.py")]
    names = [".".join(file.parts).removesuffix(".__init__") for file in files]
    found = modules_after("import " + ", ".join(names))
    assert not found & {"torch", "grpc", "onnxruntime", "mlflow", "pandas", "scoring_service"}


NAMES = [name for name in lengthwise.__all__ if name != "__version__"]


@pytest.mark.parametrize("name", NAMES)
def test_every_name_has_an_example_and_the_type_of_the_stub(name):
    value = getattr(lengthwise, name)
    assert vars(lengthwise)[name] is value
    assert dir(lengthwise) == sorted(lengthwise.__all__)
    assert f"lengthwise.{name}" in (lengthwise.__doc__ or "")
    stub = ast.parse((ROOT / "lengthwise/__init__.pyi").read_text()).body
    imports = [node for node in stub if isinstance(node, ast.ImportFrom)]
    places = {one.name: node.module for node in imports for one in node.names}
    assert places.keys() == set(NAMES)
    assert getattr(sys.modules[str(places[name])], name) is value


def test_a_name_whose_packages_are_missing_names_the_extra(monkeypatch):
    monkeypatch.delitem(vars(lengthwise), "load_bundle", raising=False)
    for module in ("scoring_service.ranker.scorer", "scoring_service.ranker.model"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ImportError, match=r"onnxruntime.*; pip install 'lengthwise\[serve\]'$"):
        from lengthwise import load_bundle  # noqa: F401


def test_another_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'Oracle'"):
        _ = lengthwise.Oracle  # type: ignore[attr-defined]
