"""A log and the same log in another unit, order, format, in pieces or packed: the same requests."""

import csv
import gzip
import io
import json
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st

from lengthwise.tables.options import TraceOptions
from lengthwise.tables.reading import read_log

NEEDS = ("prompt", "prompt_tokens", "output_tokens", "arrival_s")
SUFFIXES = {",": "csv", ";": "csv", "lines": "jsonl", "array": "json", "pretty": "json"}
SUFFIXES |= {"parquet": "parquet"}
UNITS = {"s": 1e-3, "ms": 1, "us": 10**3, "ns": 10**6}
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)
PROMPTS = TEXTS.filter(
    lambda text: text.strip()[:1] not in ("", "{", "[") and "litellm" not in text
)
TOKENS = st.integers(1, 10**6)
REQUESTS = st.lists(
    st.tuples(PROMPTS, TOKENS, TOKENS, st.integers(0, 10**7)),
    min_size=1,
    max_size=6,
    unique_by=lambda request: request[3],
)


def _time(unit: str, ms: int, start_ms: int) -> Any:
    if unit in UNITS:
        return (start_ms + ms) * UNITS[unit]
    at = datetime.fromtimestamp((start_ms + ms) / 1e3, UTC).isoformat(timespec="milliseconds")
    return at.removesuffix("+00:00") + ("Z" if unit == "zone" else "")


def _encoded(rows: list[dict[str, Any]], form: str) -> bytes:
    if form == "parquet":
        sink = io.BytesIO()
        pq.write_table(pa.Table.from_pylist(rows), sink)
        return sink.getvalue()
    if form in ",;":
        text = io.StringIO()
        table = csv.DictWriter(text, list(rows[0]), delimiter=form)
        table.writeheader()
        table.writerows(rows)
        return text.getvalue().encode()
    if form == "lines":
        return "".join(json.dumps(row) + "\n" for row in rows).encode()
    return json.dumps(rows, indent=None if form == "array" else 2, ensure_ascii=False).encode()


def _packed(content: bytes, suffix: str) -> bytes:
    if suffix == ".gz":
        return gzip.compress(content)
    return pa.Codec("zstd").compress(content, asbytes=True) if suffix else content


@given(
    data=st.data(),
    requests=REQUESTS,
    unit=st.sampled_from([*UNITS, "zone", "no zone"]),
    form=st.sampled_from(sorted(SUFFIXES)),
    suffix=st.sampled_from(["", ".gz", ".zst"]),
    name=st.sampled_from(["log{0}.{1}", "log.{1}.{0}", "log.{1}-2026030{0}", "{0}/log"]),
    is_epoch=st.booleans(),
)
def test_a_log_in_another_form_holds_the_same_requests(
    data: st.DataObject,
    requests: list[Any],
    unit: str,
    form: str,
    suffix: str,
    name: str,
    is_epoch: bool,
) -> None:
    start_ms = 1_700_000_000_000 if is_epoch or unit not in UNITS else 0
    option = None if start_ms else unit
    rows = [
        dict(zip(NEEDS[:3], one, strict=False)) | {"timestamp": _time(unit, one[3], start_ms)}
        for one in data.draw(st.permutations(requests))
    ]
    cut = data.draw(st.integers(0, len(rows) - 1))
    with tempfile.TemporaryDirectory() as folder:
        for number, piece in enumerate(filter(None, (rows[:cut], rows[cut:]))):
            path = Path(folder, name.format(number + 1, SUFFIXES[form]) + suffix)
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(_packed(_encoded(piece, form), suffix))
        log = read_log(folder, TraceOptions(time_unit=option), needs=NEEDS)
    got = log.frame[list(NEEDS)]
    wanted = sorted(requests, key=lambda one: one[3])
    assert [tuple(row[:3]) for row in got.itertuples(index=False)] == [w[:3] for w in wanted]
    gaps = (got.arrival_s - got.arrival_s.iloc[0]).round(3).tolist()
    assert gaps == [round((one[3] - wanted[0][3]) / 1e3, 3) for one in wanted]
