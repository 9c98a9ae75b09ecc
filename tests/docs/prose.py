"""Shapes that the prose of this repository avoids: `python tests/docs/prose.py [PATH]`.

Docstrings of the packages and the pages of `docs/` are read once, by engineers whose English
may be a second language. A sentence has one idea, and a first line names the thing.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("lengthwise", "training", "scoring_service", "scheduler_adapters", "benchmarks")
MAX_WORDS = 25

FIRST = re.compile(
    r"(?:What|How|Who|Whose|Where|When|Whether|Would|Does|Is|Are|Those|The same|As|So)\b"
)
"""A docstring's first line is a noun phrase or a verb with its object, none of these."""


def plain(text: str) -> str:
    """Return the prose of a text: without code, links, sections of arguments and examples."""
    text = re.sub(r"```.*?```|^    .*?$", " ", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"``?[^`\n]*``?|\"[^\"\n]*\"|\]\([^)]*\)|--[\w-]+|https?://\S+", "code", text)
    return text


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a docstring or of a paragraph."""
    for paragraph in re.split(r"\n\s*\n|\n\s*(?=[-*|] )", plain(text)):
        if paragraph.lstrip().startswith("|"):
            continue
        for part in re.split(r"(?<=[.:;?!])\s+", " ".join(paragraph.split())):
            if part:
                yield part


def flaws(text: str, *, is_docstring: bool) -> Iterator[str]:
    """Yield what is wrong with a docstring or a page."""
    first = text.strip().split("\n")[0]
    if is_docstring and FIRST.match(first):
        yield f"first line hints instead of naming the thing: {first!r}"
    for sentence in sentences(text):
        if len(sentence.split()) > MAX_WORDS:
            yield f"sentence of {len(sentence.split())} words: {sentence[:60]!r}"
        if sentence.endswith("...") or "\N{HORIZONTAL ELLIPSIS}" in sentence:
            yield f"ellipsis: {sentence[:60]!r}"


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Yield each docstring of a file, those of fields included, with its line."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            text = node.value.value
            if isinstance(text, str):
                yield node.lineno, text


def found_in(path: Path) -> Iterator[str]:
    """Yield the flaws of a source file or a page, each with its place."""
    name = path.relative_to(ROOT)
    if path.suffix == ".md":
        yield from (f"{name}: {flaw}" for flaw in flaws(path.read_text(), is_docstring=False))
        return
    for line, text in docstrings(path):
        yield from (f"{name}:{line}: {flaw}" for flaw in flaws(text, is_docstring=True))


def files(places: list[Path]) -> Iterator[Path]:
    """Yield the sources and pages under some places."""
    for place in places:
        found = (
            [place]
            if place.is_file()
            else sorted(place.rglob("*.py")) + sorted(place.rglob("*.md"))
        )
        yield from (path for path in found if "_pb2" not in path.name)


def main(arguments: list[str]) -> int:
    """Print the flaws under the given paths, all packages without any; exit code 1 with flaws."""
    places = [Path(name).resolve() for name in arguments] or [ROOT / name for name in PACKAGES]
    found = [flaw for path in files(places) for flaw in found_in(path)]
    print("\n".join([*found, f"{len(found)} flaws"]))
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
