"""The committed stubs are what the .proto generates."""

from __future__ import annotations

from pathlib import Path

import pytest

from scoring_service.proto.generate import ROOT, generate


def test_the_stubs_match_the_proto(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools")
    generate(tmp_path)
    made = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*.*"))
    assert len(made) == 4
    for path in made:
        assert (tmp_path / path).read_bytes() == (ROOT / path).read_bytes(), f"regenerate {path}"
