"""The comparison with vLLM's own tests: what counts, and which differences have a reason."""

import re

import pytest

from benchmarks.peers.vllm_own.run import HERE, SETTINGS, compare, read_reasons, unpack

STOCK = {"a::one": "passed", "a::two": "passed", "b::three": "failed: no GPU", "b::four": "passed"}


def test_only_what_stock_passes_counts_and_reasons_have_patterns():
    ours = {"a::one": "passed", "a::two": "failed: order", "b::three": "failed: no GPU"}
    found = compare(STOCK, ours, {"a::*": "another order"})
    assert (found["stock"], found["ours"], found["explained"]) == (3, 1, 1)
    assert found["unexplained"] == {"b::four": "not run"}
    assert not compare(STOCK, STOCK, {})["unexplained"]


def test_a_reason_holds_for_the_policies_of_its_row(tmp_path):
    table = (
        "| tests | policies | why |\n|---|---|---|\n| `a::*` | slai, rad | x |\n| `b*` | all | y |"
    )
    (tmp_path / "differences.md").write_text(table + "\n")
    assert read_reasons(tmp_path / "differences.md", "rad") == {"a::*": "x", "b*": "y"}
    assert read_reasons(tmp_path / "differences.md", "pars") == {"b*": "y"}


def test_every_row_of_differences_names_existing_schedulers():
    text = (HERE / "differences.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    assert rows
    for row in rows:
        _, _, policies, why, _ = row.split("|")
        assert set(re.split(r"[,\s]+", policies.strip())) <= {*SETTINGS, "all"}
        assert len(why.split()) > 3
    assert sum(len(read_reasons(HERE / "differences.md", p)) for p in SETTINGS) >= len(rows)


def test_another_archive_is_refused(tmp_path):
    other = tmp_path / "vllm-0.32.0.tar.gz"
    other.write_bytes(b"something else")
    with pytest.raises(SystemExit, match="is not the"):
        unpack(other, tmp_path)
