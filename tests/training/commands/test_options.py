"""The result of a command: one line of strict JSON, or words."""

import json

from training.commands.options import OutputOptions, print_result


def test_a_result_is_one_json_line_without_nan_or_words(capsys):
    result = {"tau_b": float("nan"), "rows": [(1, float("inf"))]}
    print_result(result, OutputOptions(json=True), lambda: print("words"))
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line) == {"tau_b": None, "rows": [[1, None]]}
    print_result(result, OutputOptions(), lambda: print("words"))
    assert capsys.readouterr().out == "words\n"
