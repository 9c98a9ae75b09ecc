"""Bad input of the simulator's commands: one line, exit code 2, and no file."""

import pytest

from scheduler_adapters.__main__ import main
from scheduler_adapters.commands import profile_prefill

SMALL = ("--num_requests=60", "--max_num_seqs=8")
GIVEN = {"simulate": SMALL, "compare": (*SMALL, "--out=runs")}
BAD = [
    ('compare; --cv=3; --by=concurrency; --slo={"ttft_s.p90": 1}', "cv is 3.0; use it with"),
    ("simulate; --cv=3", "cv is 3.0; use it with --rate-per-s, or 1"),
    ("simulate; --policy=shortest", "no policy named 'shortest'; use one of fcfs"),
    ("simulate; --profile=gpt-5@a100-80g", "llama-3-8b"),
    ("simulate; --trace=absent.csv", "absent.csv"),
    ("simulate; --rate_per_s=0", "rate_per_s is 0"),
    ("simulate; --policy=json:loads", "cannot be made with {} (TypeError"),
    ("simulate; --tau_b=2", "tau_b is 2"),
    ("simulate; --kv_blocks=0", "kv_blocks is 0"),
    ("simulate; --out=timeline.xlsx", "no known format"),
    ("simulate; --out=absent/timeline.parquet", "absent"),
    ("simulate; --scores=trace", "there is no trace"),
    ('simulate; --policy=orca; --settings={"max_batch": 0}', "max_batch is 0; use a whole number"),
    ('simulate; --policy=round-robin; --settings={"offload": true}', "--host-gb-per-s 50"),
    ("simulate; --rate_per_s=2; --clients=3", "rate_per_s is 2.0 and clients 3; use one"),
    ("simulate; --kv_blocks=1", "all 60 requests need more than 1 KV blocks of 16 tokens"),
    ("simulate; --placement=random; --clients=0", "clients is 0"),
    ("simulate; --outage=0@1", "outage is ['0@1'] without a placement; name one"),
    ("simulate; --placement=random; --outage=0", "outage is '0' ("),
    ("simulate; --placement=random; --outage=1@5", "of 1 instances; name one of them"),
    ("simulate; --placement=distserve; --prefill-instances=1", "prefill_instances is 1; use 1 or"),
    ("simulate; --placement=phasor; --instances=3; --elastic-instances=2", "elastic_instances is"),
    ("simulate; --placement=nearest", "no placement named 'nearest'; use one of distserve"),
    ('simulate; --placement=random; --placement-settings={"sede": 1}', "cannot be made with"),
    ('compare; --classes={"a": {"share": 1, "tbt": 1}}', "class 'a' has ['tbt']"),
    ('compare; --classes={"a": {"share": 1, "tbt_s": -1}}', "tbt_s of class 'a' is -1"),
    ("compare; --settings={pars: {speed: 1}}", "unexpected keyword argument 'speed'"),
    ("compare; --rates_per_s=[0]", "rate_per_s is 0"),
    ("compare; --rates_per_s=[2, 4, 2]", "use each rate once"),
    ("compare; --rates_per_s=[2, 4]; --rate_per_s=3", "use one of them"),
    ("compare; --policies=fcfs,best", "no policy named 'best'"),
    ("compare; --policies=[]", "policies is empty"),
    ("compare; --policies=[fcfs, pars, fcfs]", "policies names 'fcfs' twice"),
    ("compare; --out=/dev/null", "out is /dev/null, which is no folder"),
    ('compare; --classes={"a": {"share": 1}}; --slo={"tbt_s.p99.b": 1}', "class 'b'; use a"),
    ("compare; --placements=[random]; --placement=least-kv", "use one of them"),
    ("compare; --placements=[random, random]", "placements names 'random' twice"),
    ("compare; --placements=[random, nearest]", "no placement named 'nearest'"),
    ('compare; --placements=[random]; --placement-settings={"pascal": {}}',
     "placement_settings are for 'pascal', which is not in placements; use random"),
    ("compare; --kv_blocks=1", "all 60 requests need more than 1 KV blocks"),
    ('capacity; --slo={"ttft_s.p99": -1}', "slo ttft_s.p99 is -1"),
    ('capacity; --slo={"ttft_s.p99": .nan}', "slo ttft_s.p99 is nan"),
    ("capacity; --slo={}", "slo is empty"),
    ('capacity; --settings={"rad": {}}', "settings are for 'rad'"),
    ('capacity; --slo={"speed.p99": 1}', "slo names 'speed.p99'"),
    ('capacity; --slo={"tbt_s.paying": 1}', "and .CLASS behind it for one user class"),
    ('capacity; --slo={"tbt_s.p99.": 1}', "slo names 'tbt_s.p99.'"),
    ('capacity; --slo={"tbt_s.p99.paying": 1}', "is of class 'paying'; add --classes"),
    ('capacity; --slo={"qoe_violations.paying": 1}', "use a share in [0, 1)"),
    ('capacity; --slo={"qoe.p50": 0.9}', "or qoe_violations"),
    ("capacity; --seeds=0", "seeds is 0"),
    ("capacity; --tolerance=1", "tolerance is 1.0; use a number above 0 and below 1"),
    ("capacity; --by=concurrency; --num_requests=7", "num_requests is 7; use at least 8"),
    ("capacity; --rate_per_s=3", "rate_per_s is 3.0; use none: capacity searches the load"),
    ("capacity; --kv_blocks=1", "all 2,000 requests need more than 1 KV blocks"),
    ("profile-prefill; --out=nodir/prefill.csv", "nodir/prefill.csv"),
    ("profile-prefill; --out=prefill.txt", "prefill.txt"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "complaint"), BAD)
def test_bad_input_is_one_line_and_leaves_no_file(words, complaint, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(profile_prefill, "measure", None)
    command, *more = words.split("; ")
    assert main([command, *GIVEN.get(command, ()), *more]) == 2
    printed = capsys.readouterr()
    (line,) = printed.err.splitlines()
    assert line.startswith("error: ")
    assert complaint in line
    assert printed.out == ""
    assert list(tmp_path.iterdir()) == []
