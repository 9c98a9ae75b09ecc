"""The shape of the repository: who may import whom, and what the names must not shadow."""

import ast
import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("lengthwise", "training", "scoring_service", "scheduler_adapters")
HEAVY = {"torch", "transformers", "lightning", "mlflow", "datasets", "sklearn"}


def imports_of(source: Path | ast.AST) -> set[str]:
    """Every module that a file imports, wherever the statement stands in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source.read_text()) if isinstance(source, Path) else source):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{source} uses a relative import; write the whole name"
            found.add(node.module or "")
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def tops(path: Path) -> set[str]:
    return {name.partition(".")[0] for name in imports_of(path)}


def sources(*parts: str) -> list[Path]:
    found = sorted((ROOT.joinpath(*parts)).rglob("*.py"))
    assert found, f"no sources under {parts}"
    return found


@pytest.mark.parametrize(
    ("package", "forbidden"),
    [
        ("training", {"scheduler_adapters"}),
        ("scheduler_adapters", {"training"}),
        ("scoring_service", {"training", "scheduler_adapters"} | HEAVY),
        ("lengthwise", {"training", "scoring_service", "scheduler_adapters"} | HEAVY),
    ],
)
def test_arrows_between_packages_point_one_way(package, forbidden):
    for path in sources(package):
        # The opener of MLflow stores imports MLflow when a store is opened, and not before.
        opened = {"mlflow"} if path == ROOT / "lengthwise/mlflow_store.py" else set()
        assert not tops(path) & (forbidden - opened), f"{path.relative_to(ROOT)}: a wrong way"


@pytest.mark.parametrize("folder", ["lengthwise", "scoring_service/client"])
def test_the_client_side_of_the_service_needs_no_runtime(folder):
    for path in sources(folder):
        # Answers without counts are counted by a tokenizer, imported for that option only.
        counted = {"tokenizers"} if path.name == "token_counts.py" else set()
        assert not tops(path) & (HEAVY - {"mlflow"} | {"onnxruntime", "tokenizers"} - counted), path


RANKER_AND_CLIENT = ("client", "ranker", "tokenizing", "cost_table")


@pytest.mark.parametrize("package", ["training", "scheduler_adapters"])
def test_others_see_of_the_service_its_client_and_its_ranker(package):
    for path in sources(package):
        for name in imports_of(path):
            top, _, inside = name.partition(".")
            assert top != "scoring_service" or inside.startswith(RANKER_AND_CLIENT), path


@pytest.mark.parametrize("folder", ["policies", "placements"])
def test_policies_see_the_standard_library_and_the_interface(folder):
    interface = ("views", "policy", "placement")
    allowed = (
        "lengthwise.errors",
        "lengthwise.settings",
        *(f"scheduler_adapters.{n}" for n in (folder, *interface)),
    )
    for path in sources("scheduler_adapters", folder):
        for name in imports_of(path) - {"scheduler_adapters"}:
            top = name.partition(".")[0]
            assert top in sys.stdlib_module_names or name.startswith(allowed), (path, name)


def test_our_training_is_the_checkout_and_datasets_the_library():
    for package in PACKAGES:
        spec = importlib.util.find_spec(package)
        assert spec is not None
        assert spec.origin is not None
        assert Path(spec.origin).is_relative_to(ROOT)
    library = importlib.util.find_spec("datasets")
    assert library is not None
    assert library.origin is not None, "datasets is the data folder: install the library"
    assert "site-packages" in library.origin


def test_data_and_test_folders_are_not_packages():
    assert not list((ROOT / "datasets").rglob("*.py"))
    assert not list((ROOT / "tests").rglob("__init__.py"))


def test_no_module_is_named_after_a_library_it_uses():
    for package in PACKAGES:
        for path in sources(package):
            assert path.stem not in tops(path) - {package}, path
