"""One printable line per record."""

import logging

from lengthwise.command_line.logs import configure_logs


def test_what_a_client_sends_is_no_line_of_the_log(capsys):
    configure_logs(of_service=True)
    forged = "id\n2026-11-23 ERROR all is lost\r\x1b[2J\u2028\x85\x7f"
    try:
        raise ValueError(forged)
    except ValueError:
        logging.getLogger("x").exception("no target %s", forged)
    first, *trace = capsys.readouterr().err.splitlines()
    assert first.isprintable()
    assert trace
    assert all(line.startswith("  ") and line.isprintable() for line in trace)
