"""Kept runs: results by their arguments, in a file of JSON lines that survives an interruption."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lengthwise.errors import DataError
from lengthwise.strict_json import parsed, to_json


class KeptRuns:
    """Results of a command's runs, in `found`; its file has the command, then a line for each run.

    Without a path there is no file. A damaged last line, as an interruption leaves it, is dropped.

    Raises:
        DataError: the file is of another command, is damaged further up, or cannot be used.
    """

    def __init__(self, path: Path | None, command: Mapping[str, Any]) -> None:
        self.path, self.found = path, dict[str, Any]()
        if path is None:
            return
        first = json.dumps(command, default=str).encode() + b"\n"
        try:
            with path.open("ab") as file:
                file.write(b"" if file.tell() else first)
            lines = path.read_bytes().splitlines(keepends=True)
            if lines[0] != first:
                raise ValueError(f"its first line is not {first.decode().strip()}")
            for number, line in enumerate(lines[1:], 2):
                try:
                    *run, result = parsed(line[:-1].decode())  # fails where its end is missing
                    self.found[to_json(run)] = result
                except (ValueError, TypeError):
                    if number < len(lines):
                        raise ValueError(f"line {number} is damaged") from None
                    os.truncate(path, path.stat().st_size - len(line))
        except (OSError, ValueError) as error:
            raise DataError(
                f"no kept runs ({error}); use a new file by --resume", path=path
            ) from error

    def keep(self, run: str, result: Any) -> None:
        """Add the result of a run, whose name and arguments are a list in JSON."""
        self.found[run] = result
        if self.path:
            with self.path.open("a", encoding="utf-8") as file:
                # Not strict: a figure may be undefined, and stays NaN.
                file.write(f"{run[:-1]}, {json.dumps(result)}]\n")
