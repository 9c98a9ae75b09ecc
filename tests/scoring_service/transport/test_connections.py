"""Connections are limited for each address, and those that are silent make room for new ones."""

import os
import socket
import time
from contextlib import ExitStack

import pytest

from lengthwise.addresses import network_of
from scoring_service.transport.connections import end_excess


@pytest.fixture
def accepted():
    """A function that connects from an address; it returns both ends."""
    with ExitStack() as opened, socket.create_server(("127.0.0.1", 0), backlog=64) as listening:

        def connect(host):
            source, port = (host, 0), listening.getsockname()[1]
            theirs = socket.create_connection(("127.0.0.1", port), 60, source)
            return opened.enter_context(listening.accept()[0]), opened.enter_context(theirs)

        connect.port = listening.getsockname()[1]
        yield connect


def is_open(pair):
    pair[1].setblocking(False)
    try:
        return pair[1].recv(1) != b""
    except BlockingIOError:
        return True


def test_silent_connections_beyond_an_address_limit_are_ended(accepted):
    old, others = [accepted("127.0.0.2") for _ in range(3)], [accepted("127.0.0.3")]
    time.sleep(0.05)
    old[0][1].sendall(b"x")
    new = [accepted("127.0.0.2") for _ in range(2)]
    files = len(os.listdir("/proc/self/fd"))
    assert end_excess(accepted.port + 1, 9, 1) == 0
    assert end_excess(accepted.port, 9, 3) == 2
    assert [is_open(pair) for pair in old + new + others] == [True, False, False, True, True, True]
    assert len(os.listdir("/proc/self/fd")) == files


def test_of_all_connections_an_eighth_stays_free_for_newcomers(accepted):
    pairs = [accepted(f"127.0.0.{number}") for number in range(2, 10)]
    assert end_excess(accepted.port, 8, 8) == 1
    assert sum(map(is_open, pairs)) == 7


def test_an_ipv6_client_is_its_network_and_mapped_ones_are_ipv4():
    assert network_of("2001:db8::1") == network_of("2001:db8::2:3%eth0") == "2001:db8::"
    assert network_of("::ffff:10.0.0.1") == "10.0.0.1"
    assert network_of("10.0.0.1") == "10.0.0.1"
    assert network_of("") == ""
