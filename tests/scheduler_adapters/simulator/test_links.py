"""Copies over links: shares of the bandwidth, the order of landing, and conserved bytes."""

from dataclasses import replace
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from lengthwise.errors import ConfigError
from scheduler_adapters.simulator.links import Fabric, HostCopies, HostLink, Transfers


def transfers(**changes) -> Transfers:
    return Transfers(Fabric(kv_bytes_per_token=1, bytes_per_s=100.0, **changes))


def landings(links: Transfers) -> list[tuple[float, int]]:
    found = []
    while (at_s := links.next_landing_s) < inf:
        found += [(at_s, number) for number in links.land(at_s)]
    return found


def test_a_transfer_alone_takes_bytes_over_bandwidth_and_latency():
    links = transfers(latency_s=0.5)
    links.start(2.0, 1, 0, 1, 300)
    assert links.next_landing_s == 5.5
    assert links.land(5.4) == []
    assert links.land(5.5) == [1]
    assert links.next_landing_s == inf


def test_both_directions_share_an_endpoint_and_slow_no_others():
    links = transfers()
    links.start(0.0, 1, 0, 1, 100)  # alone until 0.5 s: 50 bytes left, then half the rate
    links.start(0.5, 2, 2, 0, 100)
    links.start(0.5, 3, 3, 4, 100)
    # 1 ends at 1.5 with 50 of 100 bytes of 2 gone; 3 had its endpoints to itself.
    assert landings(links) == [(1.5, 1), (1.5, 3), (2.0, 2)]


def test_the_rate_is_the_lesser_share_of_the_two_ends():
    links = transfers()
    for number, destination in enumerate((1, 2, 3)):
        links.start(0.0, number, 0, destination, 100)
    links.start(0.0, 9, 4, 3, 200)  # half of 3's endpoint, though 0's share is a third
    assert landings(links) == [(3.0, 0), (3.0, 1), (3.0, 2), (3.5, 9)]


def test_a_cancelled_transfer_never_lands_and_frees_its_share():
    links = transfers(latency_s=1.0)
    links.start(0.0, 1, 0, 1, 100)
    links.start(0.0, 2, 0, 2, 100)
    links.cancel(1.0, 1)
    assert links.next_landing_s == 2.5
    links.cancel(2.0, 2)  # its last byte has come, and it cannot be used yet
    assert landings(links) == []


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([0.0, 0.1, 0.7]),
            st.integers(0, 3),
            st.integers(1, 3),
            st.integers(1, 300),
        ),
        min_size=1,
        max_size=12,
    )
)
def test_reading_changes_nothing_and_no_transfer_beats_the_link(plan):
    def run(*, reads: bool) -> list[tuple[float, int]]:
        links, now_s, found = transfers(), 0.0, []
        for number, (gap_s, source, step, num_bytes) in enumerate(plan):
            now_s += gap_s
            while links.next_landing_s <= now_s:
                at_s = links.next_landing_s
                found += [(at_s, one) for one in links.land(at_s)]
            links.start(now_s, number, source, (source + step) % 4, num_bytes)
            if reads:
                links.land(now_s - 1e-3)
        return found + landings(links)

    found = run(reads=False)
    assert run(reads=True) == found
    assert sorted(number for _, number in found) == list(range(len(plan)))
    assert [at_s for at_s, _ in found] == sorted(at_s for at_s, _ in found)
    start_s = 0.0
    ends = dict((number, at_s) for at_s, number in found)
    for number, (gap_s, _, _, num_bytes) in enumerate(plan):
        start_s += gap_s
        assert ends[number] >= start_s + num_bytes / 100 - 1e-6
    assert max(ends.values()) <= start_s + sum(one[3] for one in plan) / 100 + 1e-6


LINK = HostLink(kv_bytes_per_token=1, bytes_per_s=100.0)

starts = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 500)), min_size=1, max_size=8).map(
    sorted
)
"""(time, bytes) of copies."""


def host_landings(link: HostLink, *starts: tuple[float, int]) -> dict[int, float]:
    """Times at which copies of (start, bytes) land, by their number from 1 on."""
    copies, landed = HostCopies(link, block_tokens=1), {}
    for start_s, size in starts:
        while (at_s := copies.next_landing_s) <= start_s:
            landed |= dict.fromkeys(copies.land(at_s), at_s)
        copies.start(start_s, size)
    while (at_s := copies.next_landing_s) < inf:
        landed |= dict.fromkeys(copies.land(at_s), at_s)
    return landed


def test_copies_share_the_link_equally():
    # 100 bytes alone for .5 s, then at half the rate; the second has 50 left when the first ends.
    assert host_landings(LINK, (0.0, 100), (0.5, 100)) == {1: 1.5, 2: 2.0}


def test_latency_comes_after_the_last_byte_and_holds_nobody_up():
    assert host_landings(replace(LINK, latency_s=3.0), (0.0, 100), (1.0, 100)) == {1: 4.0, 2: 5.0}


@given(starts)
def test_how_often_one_asks_does_not_matter(starts):
    (seldom, often), landed = (HostCopies(LINK, block_tokens=1) for _ in range(2)), []
    ends_s = [*(start_s for start_s, _ in starts[1:]), 1000.0]
    for (start_s, size), end_s in zip(starts, ends_s, strict=True):
        seldom.start(start_s, size)
        often.start(start_s, size)
        for at_s in np.linspace(start_s, end_s, 7).tolist():
            landed += often.land(at_s)
    assert seldom.land(1000.0) == landed


@pytest.mark.parametrize("link", [HostLink, Fabric])
def test_the_link_of_a_model_has_its_kv_or_the_model_is_refused(link):
    assert link.of_model("mistral-7b").kv_bytes_per_token == 131_072
    with pytest.raises(ConfigError, match=r"no model named 'nobody'.*llama-3-8b"):
        link.of_model("nobody")
