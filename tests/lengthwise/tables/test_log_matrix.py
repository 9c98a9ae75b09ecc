"""Each quirk in each format is read right, left out and counted, or refused: never guessed."""

import json
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hypothesis import given, strategies as st

from lengthwise.tables.options import TraceOptions
from lengthwise.tables.reading import read_log
from tests.lengthwise.tables import log_matrix
from tests.lengthwise.tables.log_matrix import DOCS, NEEDS, as_csv, as_lines, as_parquet, packed

UNITS = {"s": 1e-3, "ms": 1, "us": 10**3, "ns": 10**6}
FORMS = {
    ("csv", ","): as_csv,
    ("csv", ";"): lambda rows: as_csv(rows, ";"),
    ("jsonl", ""): as_lines,
    ("json", "array"): lambda rows: json.dumps(rows).encode(),
    ("json", "pretty"): lambda rows: json.dumps(rows, indent=2, ensure_ascii=False).encode(),
    ("parquet", ""): as_parquet,
}
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)
PROMPTS = TEXTS.filter(lambda t: t.strip()[:1] not in ("", "{", "[") and "litellm" not in t)
TOKENS = st.integers(1, 10**6)
REQUEST = st.tuples(PROMPTS, TOKENS, TOKENS, st.integers(0, 10**7))
REQUESTS = st.lists(REQUEST, min_size=1, max_size=6, unique_by=lambda request: request[3])
NAMES = ["log{0}.{1}", "log.{1}.{0}", "log.{1}-2026030{0}", "{0}/log"]


def test_no_quirk_is_silent_and_the_docs_show_what_becomes_of_it():
    made = log_matrix.table(log_matrix.cells())
    assert DOCS.read_text().endswith(made), "run the command on that page"


def _time(unit: str, ms: int) -> Any:
    if unit in UNITS:
        return ms * UNITS[unit]
    at = datetime.fromtimestamp(ms / 1e3, UTC).isoformat(timespec="milliseconds")
    return at.removesuffix("+00:00") + ("Z" if unit == "zone" else "")


@given(
    data=st.data(),
    requests=REQUESTS,
    unit=st.sampled_from([*UNITS, "zone", "no zone"]),
    form=st.sampled_from(sorted(FORMS)),
    suffix=st.sampled_from(["", ".gz", ".zst"]),
    name=st.sampled_from(NAMES),
    is_epoch=st.booleans(),
)
def test_a_log_in_another_form_or_pieces_has_the_same_requests(
    data, requests, unit, form, suffix, name,
    is_epoch,
):  # fmt: skip
    start_ms = 1_700_000_000_000 if is_epoch or unit not in UNITS else 0
    rows = [
        dict(zip(NEEDS[:3], one, strict=False)) | {"timestamp": _time(unit, start_ms + one[3])}
        for one in data.draw(st.permutations(requests))
    ]
    cut = data.draw(st.integers(0, len(rows) - 1))
    with tempfile.TemporaryDirectory() as folder:
        for number, piece in enumerate(filter(None, (rows[:cut], rows[cut:]))):
            path = Path(folder, name.format(number + 1, form[0]) + suffix)
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(packed(FORMS[form](piece), suffix))
        log = read_log(folder, TraceOptions(time_unit=None if start_ms else unit), needs=NEEDS)
    got = [(*row[:3], round(row[3], 3)) for row in log.frame[list(NEEDS)].itertuples(index=False)]
    wanted = sorted(requests, key=lambda one: one[3])
    first_ms = wanted[0][3] if start_ms else 0
    assert got == [(*one[:3], round((one[3] - first_ms) / 1e3, 3)) for one in wanted]
