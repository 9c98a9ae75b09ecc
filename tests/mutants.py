"""Mutation testing, sampled and seeded: the share of small faults that the fast tests notice.

    make mutants                                          200 mutants over all rooms
    python tests/mutants.py --sample 40 --room planner    one room

Cosmic Ray makes the mutants: a comparison, a sign, `and`/`or`, a constant or a loop is changed in
one place. Each runs against the test file of its module, then against the tests of its room, in a
copy of the working tree, and what survives against all fast tests of its package
(`--room-tests-only`: not, so the rate is a lower bound). Survivors are printed with their place and
their change.
"""

import argparse
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).resolve().parents[1]

ROOMS: dict[str, tuple[str, str]] = {
    "policies": (
        "scheduler_adapters/policies",
        "tests/scheduler_adapters/policies tests/scheduler_adapters/test_policy.py",
    ),
    "placements": ("scheduler_adapters/placements", "tests/scheduler_adapters/placements"),
    "planner": ("scheduler_adapters/planner", "tests/scheduler_adapters/planner"),
    "engine": (
        "scheduler_adapters/simulator/engine",
        "tests/scheduler_adapters/simulator/engine tests/scheduler_adapters/simulator",
    ),
    "admission": (
        "scoring_service/service/batching.py scoring_service/service/call_results.py",
        "tests/scoring_service/service",
    ),
    "splits": (
        "training/data/splits.py training/data/labels.py training/data/pairs.py",
        "tests/training/data",
    ),
    "calibration": (
        "training/evaluation/calibration.py lengthwise/calibration.py training/prefill",
        "tests/training/evaluation/test_calibration.py tests/lengthwise/test_calibration.py "
        "tests/training/prefill tests/training/commands/test_calibrate.py",
    ),
}
"""Room -> its source, and the tests that are run first."""

_SWAPS = (
    "Lt_LtE LtE_Lt Gt_GtE GtE_Gt Lt_GtE Gt_LtE Eq_NotEq NotEq_Eq Is_IsNot IsNot_Is",
    "Add_Sub Sub_Add Mul_FloorDiv FloorDiv_Mul Div_Mul Mod_FloorDiv",
)
OPERATORS = (
    *(f"core/ReplaceComparisonOperator_{swap}" for swap in _SWAPS[0].split()),
    *(f"core/ReplaceBinaryOperator_{swap}" for swap in _SWAPS[1].split()),
    "core/ReplaceUnaryOperator_Delete_USub",
    "core/ReplaceUnaryOperator_Delete_Not",
    "core/AddNot",
    "core/ReplaceAndWithOr",
    "core/ReplaceOrWithAnd",
    "core/ReplaceTrueWithFalse",
    "core/ReplaceFalseWithTrue",
    "core/ReplaceBreakWithContinue",
    "core/ReplaceContinueWithBreak",
    "core/NumberReplacer",
    "core/ZeroIterationForLoop",
)


@dataclass(frozen=True)
class Mutant:
    """One changed place."""

    room: str
    path: str
    operator: str
    occurrence: int
    line: int

    def code(self) -> str:
        from cosmic_ray.mutating import mutate_code
        from cosmic_ray.plugins import get_operator

        source = (ROOT / self.path).read_text()
        changed = mutate_code(source, get_operator(self.operator)(), self.occurrence)
        assert changed is not None, self
        return str(changed)

    def change(self) -> str:
        """The changed line, before and after."""
        before = (ROOT / self.path).read_text().splitlines()
        for one, other in zip(before, self.code().splitlines(), strict=False):
            if one != other:
                return f"{one.strip()}   ->   {other.strip()}"
        return "(lines removed or added)"


def mutants_of(room: str) -> Iterator[Mutant]:
    """Every mutant of a room, in a fixed order."""
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.plugins import get_operator

    for place in ROOMS[room][0].split():
        found = ROOT / place
        for path in sorted(found.rglob("*.py")) if found.is_dir() else [found]:
            for name in OPERATORS:
                operator, occurrence = get_operator(name)(), 0
                for node in ast_nodes(get_ast(path.read_text())):
                    for (line, _), _ in operator.mutation_positions(node):
                        where = str(path.relative_to(ROOT))
                        yield Mutant(room, where, name, occurrence, line)
                        occurrence += 1


def sample(rooms: Sequence[str], count: int, seed: int) -> list[Mutant]:
    everything = [mutant for room in rooms for mutant in mutants_of(room)]
    return sorted(
        random.Random(seed).sample(everything, min(count, len(everything))),
        key=lambda mutant: (mutant.room, mutant.path, mutant.line),
    )


def copy_tree(target: Path) -> Path:
    """A copy of what the tests need, to be changed at will; the data folder stays beside it."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, target / name)
    return target


def passes(tree: Path, tests: str, cpu_s: float) -> bool:
    """Whether tests pass within `cpu_s` seconds of processor time; a deadlock ends ten times later.

    Processor time, because other work on the machine must not kill a mutant.
    """
    existing = [path for path in tests.split() if (tree / path).exists()]
    environment = {
        **os.environ,
        "PYTHONPATH": str(tree),
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "HYPOTHESIS_PROFILE": "unshrunk",
    }
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *existing]
    limited = ["prlimit", f"--cpu={ceil(cpu_s)}", *command]
    try:
        done = subprocess.run(
            limited, cwd=tree, env=environment, capture_output=True, timeout=10 * cpu_s
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def children_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def package_tests(path: str) -> str:
    return f"tests/{path.partition('/')[0]}"


def module_tests(path: str) -> str:
    place = Path(path)
    return str("tests" / place.with_name(f"test_{place.name}"))


def survives(mutant: Mutant, tree: Path, timeouts_s: dict[str, float]) -> bool:
    """Whether none of the tests fails that `timeouts_s` has a limit for."""
    place = tree / mutant.path
    original = place.read_text()
    place.write_text(mutant.code())
    try:
        room = ROOMS[mutant.room][1]
        own = module_tests(mutant.path)
        if (tree / own).exists() and not passes(tree, own, timeouts_s[room]):
            return False
        limits_s = [
            (tests, timeouts_s[tests])
            for tests in (room, package_tests(mutant.path))
            if tests in timeouts_s
        ]
        return all(passes(tree, tests, limit_s) for tests, limit_s in limits_s)
    finally:
        place.write_text(original)


def time_unchanged(mutants: Sequence[Mutant], tree: Path, *, of_packages: bool) -> dict[str, float]:
    """Processor seconds that each set of tests may take: twice what it takes unchanged, and 20."""
    limits_s: dict[str, float] = {}
    for mutant in mutants:
        stages = (ROOMS[mutant.room][1], package_tests(mutant.path))
        for tests in stages[: 1 + of_packages]:
            if tests not in limits_s:
                start_s = children_cpu_s()
                if not passes(tree, tests, 3600):
                    sys.exit(f"error: {tests} fails without any mutant; mend it first")
                limits_s[tests] = 20 + 2 * (children_cpu_s() - start_s)
    return limits_s


def report(mutants: Sequence[Mutant], survivors: Sequence[Mutant]) -> None:
    total, left = Counter(m.room for m in mutants), Counter(m.room for m in survivors)
    print(f"\n{'room':<12} {'mutants':>8} {'killed':>8} {'rate':>6}")
    for room, count in total.items():
        killed = count - left[room]
        print(f"{room:<12} {count:>8} {killed:>8} {killed / count:>6.0%}")
    killed = len(mutants) - len(survivors)
    print(f"{'all':<12} {len(mutants):>8} {killed:>8} {killed / len(mutants):>6.0%}")
    for mutant in survivors:
        print(f"\nsurvived  {mutant.path}:{mutant.line}\n  {mutant.change()}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--sample", type=int, default=200, help="mutants (default: 200)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--room", action="append", choices=ROOMS, help="default: all of them")
    parser.add_argument("--skip", type=int, default=0, help="of the sample, judged in another run")
    parser.add_argument("--room-tests-only", action="store_true")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    options = parser.parse_args()
    rooms = [room for room in options.room or ROOMS if (ROOT / ROOMS[room][0].split()[0]).exists()]
    mutants = sample(rooms, options.sample, options.seed)[options.skip :]
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        trees: SimpleQueue[Path] = SimpleQueue()
        for job in range(options.jobs):
            trees.put(copy_tree(Path(folder) / str(job)))
        first = trees.get()
        timeouts_s = time_unchanged(mutants, first, of_packages=not options.room_tests_only)
        trees.put(first)

        def judge(mutant: Mutant) -> bool:
            tree = trees.get()
            try:
                return survives(mutant, tree, timeouts_s)
            finally:
                trees.put(tree)

        survivors = []
        with ThreadPoolExecutor(options.jobs) as pool:
            for done, (mutant, survived) in enumerate(
                zip(mutants, pool.map(judge, mutants), strict=True), start=1
            ):
                if survived:
                    survivors.append(mutant)
                    print(f"\rsurvived {mutant.path}:{mutant.line}", file=sys.stderr)
                print(f"\r{done} of {len(mutants)}", end="", file=sys.stderr, flush=True)
    report(mutants, survivors)
    if options.json:
        rows = [{"path": m.path, "line": m.line, "change": m.change()} for m in survivors]
        print(json.dumps({"mutants": len(mutants), "survivors": rows}))


if __name__ == "__main__":
    main()
