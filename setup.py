"""The README's copy in the wheel: its relative links lead into the repository."""

import re
import tomllib
from pathlib import Path

from setuptools import setup

HERE = Path(__file__).parent
REPOSITORY = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]["urls"]["Repository"]


def absolute(link: re.Match[str]) -> str:
    view = "raw" if link[1] else "blob"
    return f"{link[1]}{link[2]}({REPOSITORY}/{view}/main/{link[3]})"


readme = (HERE / "README.md").read_text()
setup(
    long_description=re.sub(r"(!?)(\[[^\]]*\])\((?![a-z]+:|#)([^)]+)\)", absolute, readme),
    long_description_content_type="text/markdown",
)
