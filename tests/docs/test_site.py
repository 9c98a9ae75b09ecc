"""The site of `docs/`: every link is checked, and no page loads anything from elsewhere."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.slow


def build(config: Path, site: Path) -> subprocess.CompletedProcess[str]:
    mkdocs = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    places = ["-f", str(config), "-d", str(site)]
    return subprocess.run([*mkdocs, *places], capture_output=True, text=True, cwd=ROOT)


def test_the_site_builds_and_needs_no_network(tmp_path):
    built = build(ROOT / "mkdocs.yml", tmp_path)
    assert built.returncode == 0, built.stderr
    pages = {page.relative_to(tmp_path): page.read_text() for page in tmp_path.rglob("*.html")}
    sources = {source.relative_to(ROOT / "docs") for source in (ROOT / "docs").rglob("*.md")}
    assert {source.with_suffix(".html") for source in sources} <= pages.keys()
    assert "check_policy" in pages[Path("api/schedulers.html")]
    for name, text in pages.items():
        loaded = re.findall(r"<(?:script|img)[^>]* src=\"(.*?)\"", text)
        loaded += re.findall(r"<link[^>]* rel=\"stylesheet\"[^>]*>", text)
        assert not [place for place in loaded if "//" in place], name


@pytest.mark.parametrize("link", ["[a page](nowhere.md)", "[a heading](metrics.md#nowhere)"])
def test_a_broken_link_ends_the_build(link, tmp_path):
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    config = (ROOT / "mkdocs.yml").read_text().replace("paths: [.]", f"paths: ['{ROOT}']")
    (tmp_path / "mkdocs.yml").write_text(config)
    with (tmp_path / "docs/index.md").open("a") as page:
        page.write(f"\n{link}\n")
    built = build(tmp_path / "mkdocs.yml", tmp_path / "site")
    assert built.returncode == 1
    assert "nowhere" in built.stderr
