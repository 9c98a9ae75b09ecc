import asyncio

import pytest

from lengthwise.errors import ConfigError, DataError
from scheduler_adapters.routers.endpoint_picker import endpoints


@pytest.mark.parametrize("line", ["engine-1:8000", "10.0.0.1", "10.0.0.1:0", "10.0.0.1:99999"])
def test_a_file_lists_addresses_once_and_other_lines_are_named(tmp_path, line):
    path = tmp_path / "engines.txt"
    path.write_text("# pool\n10.0.0.2:80\n\n  10.0.0.1:80\n[2001:db8::1]:80\n10.0.0.2:80\n")
    assert endpoints.read_endpoints(path) == ["10.0.0.2:80", "10.0.0.1:80", "[2001:db8::1]:80"]
    path.write_text(f"10.0.0.2:8000\n{line}\n")
    with pytest.raises(DataError, match=rf"row 1: '{line}' is no endpoint.*write one IP:PORT"):
        endpoints.read_endpoints(path)


def test_a_name_resolves_to_its_addresses():
    assert "127.0.0.1:8000" in asyncio.run(endpoints.resolve("localhost:8000"))
    for name in ("localhost", "localhost:99999", "nothing.invalid:8000"):
        with pytest.raises(ConfigError, match=f"dns is '{name}'.*use HOST:PORT"):
            asyncio.run(endpoints.resolve(name))
