"""The floor plan: rooms in one order, imports downward, a dozen files per room, one class per name.

Purposes of the rooms: `docs/architecture.md`.
"""

import ast
from collections import defaultdict
from pathlib import Path

import pytest

from tests.test_architecture import PACKAGES, ROOT, imports_of, sources

FLOORS: dict[str, tuple[str, ...]] = {
    "lengthwise": (
        "errors settings strict_json progress child_processes conversation",
        "agreement bundle mlflow_store addresses",
        "tables",
        "report_page",
        "command_line",
        "__main__",
    ),
    "scoring_service": (
        "cost_table tokenizing shares proto",
        "client",
        "transport",
        "ranker",
        "service",
        "server",
        "commands",
        "__main__",
    ),
    "scheduler_adapters": (
        "views",
        "policy placement",
        "workload",
        "timeline",
        "policies placements",
        "policies.rivals",
        "planner",
        "simulator.latency",
        "simulator.links",
        "simulator.instance",
        "simulator.engine",
        "simulator.compiled",
        "simulator",
        "simulator.cluster",
        "engines",
        "engines.vllm_v1 engines.transformers_batching",
        "routers",
        "routers.ray routers.endpoint_picker",
        "routers.ray.vllm_replicas",
        "reporting",
        "checks",
        "commands",
        "commands.advise commands.serving",
        "__main__",
    ),
    "training": (
        "config recipes",
        "data",
        "ranker",
        "export",
        "evaluation",
        "release",
        "collection sources",
        "prefill",
        "commands",
        "commands.data",
        "__main__",
    ),
    "benchmarks": ("speed validation studies papers", "soak", "gpu peers", "__main__"),
}
"""The floor table: the rooms and ground-floor modules of each package, bottom first. A file may
import from its own line and from lines above it in this table, which are floors below it."""
MAX_FILES = 12


def floor_of(package: str, module: str) -> int | None:
    """The floor of a module (dotted, without its package): that of its longest prefix there."""
    floors = {room: i for i, line in enumerate(FLOORS[package]) for room in line.split()}
    parts = module.split(".")
    for length in range(len(parts), 0, -1):
        if (floor := floors.get(".".join(parts[:length]))) is not None:
            return floor
    return None


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def upward_imports(package: str, module: str, names: set[str]) -> list[str]:
    """The imports of a module of `package` that lead to a higher floor."""
    here = floor_of(package, module)
    assert here is not None, f"{package}.{module} stands on no floor; add its room to FLOORS"
    found = []
    for name in sorted(names):
        if name.startswith(f"{package}."):
            there = floor_of(package, name.removeprefix(f"{package}."))
            if there is not None and there > here:
                found.append(name)
    return found


@pytest.mark.parametrize("package", FLOORS)
def test_no_file_imports_from_a_higher_floor(package):
    wrong = {}
    for path in sources(package):
        module = module_of(path)
        if module != package and not path.stem.endswith(("_pb2", "_pb2_grpc")):
            inside = module.removeprefix(f"{package}.")
            if found := upward_imports(package, inside, imports_of(path)):
                wrong[module] = found
    assert not wrong


def test_an_import_from_above_is_found():
    above = {"scheduler_adapters.commands.simulate", "scheduler_adapters.commands.simulate.main"}
    assert upward_imports("scheduler_adapters", "simulator.engine.engine", above)
    assert not upward_imports("scheduler_adapters", "commands.bench.simulator", above)
    with pytest.raises(AssertionError, match="stands on no floor"):
        upward_imports("training", "attic.thing", above)


def imports_at_run_time(path: Path) -> set[str]:
    """The imports of a file without those that only a type checker follows."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = [ast.Pass()]
    return imports_of(tree)


@pytest.mark.parametrize("package", FLOORS)
def test_no_imports_go_in_circles(package):
    modules = {module_of(path): path for path in sources(package) if path.stem != "__init__"}
    arrows = {name: imports_at_run_time(path) & modules.keys() for name, path in modules.items()}
    while free := [name for name, targets in arrows.items() if not targets & arrows.keys()]:
        for name in free:
            del arrows[name]
    assert not arrows, f"these import each other in a circle: {sorted(arrows)}"


def test_a_room_has_a_dozen_files_at_most():
    for package in FLOORS:
        for folder in {path.parent for path in sources(package)}:
            files = [path.name for path in folder.glob("*.py") if "_pb2" not in path.name]
            assert len(files) <= MAX_FILES, f"{folder.relative_to(ROOT)} has {len(files)} files"


@pytest.mark.parametrize("package", FLOORS)
def test_a_class_name_occurs_once(package):
    places = defaultdict(list)
    for path in sources(package):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and "_pb2" not in path.name:
                places[node.name].append(str(path.relative_to(ROOT)))
    assert not {name: files for name, files in places.items() if len(files) > 1}


MAX_LINES = 60


def test_a_function_fits_on_a_screen():
    """One compiled loop excepted: cut into inlined functions it takes 1.2 to 3.5 times as long."""
    long = []
    for path in (path for package in FLOORS for path in sources(package)):
        if "_pb2" in path.name:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or 0) - node.lineno + 1
                if lines > MAX_LINES:
                    long.append(f"{path.relative_to(ROOT)}: {node.name}")
    assert long == ["scheduler_adapters/simulator/compiled/loop.py: run"]


def test_the_tests_mirror_the_rooms():
    """Every module has a test file of its name, in the folder of its room."""
    missing = []
    for package in PACKAGES:
        for path in sources(package):
            if path.stem in ("__init__", "__main__") or "_pb2" in path.name:
                continue
            test = ROOT / "tests" / path.relative_to(ROOT).with_name(f"test_{path.name}")
            if not test.is_file():
                missing.append(str(path.relative_to(ROOT)))
    assert not missing


MAX_LINES_OF = {"product": 40_500, "benchmarks": 6_500, "tests": 41_520}
MAX_PRODUCT_STATEMENTS = 22_440
"""These only fall: a feature that adds lines takes others away first."""


def num_statements(source: str) -> int:
    """Statements of a file, docstrings not counted: nothing is won by joining lines."""
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.stmt)]
    return sum(
        not (isinstance(node, ast.Expr) and isinstance(getattr(node.value, "value", None), str))
        for node in nodes
    )


def texts_of(trees: tuple[str, ...]) -> list[str]:
    paths = [path for tree in trees for path in sources(tree)]
    return [path.read_text() for path in paths if "_pb2" not in path.name]


@pytest.mark.parametrize(
    ("part", "trees"),
    [("product", PACKAGES), ("benchmarks", ("benchmarks",)), ("tests", ("tests",))],
)
def test_each_part_stays_small(part, trees):
    texts = texts_of(trees)
    assert sum(len(text.splitlines()) for text in texts) <= MAX_LINES_OF[part]
    if part == "product":
        assert sum(map(num_statements, texts)) <= MAX_PRODUCT_STATEMENTS


def test_docstrings_are_no_statements():
    assert num_statements('"""A."""\nx = 1\n"""B."""\nif x:\n    f("c")\n') == 3


MAX_TEST_NAME = 60


def test_names_of_tests_are_short():
    nodes = [node for text in texts_of(("tests",)) for node in ast.walk(ast.parse(text))]
    functions = [x.name for x in nodes if isinstance(x, ast.FunctionDef | ast.AsyncFunctionDef)]
    tests = [name for name in functions if name.startswith("test_")]
    assert len(tests) > 1000
    assert not [name for name in tests if len(name) > MAX_TEST_NAME]
