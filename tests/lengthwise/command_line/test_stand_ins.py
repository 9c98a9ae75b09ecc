"""Stand-ins for absent libraries: for our modules, and while options are read."""

import pytest

from lengthwise.command_line.stand_ins import absent_libraries_stood_in

MODULE = """
import not_there.deep as n
from not_there.part import Base, mark
class Model(Base): ...
@mark(fast=True)
def f(x: n.Frame | None, y: list[n.Row]) -> None: ...
"""


def test_our_modules_get_stand_ins_and_others_do_not():
    ours, theirs = {"__name__": "training.x"}, {"__name__": "pandas.x"}
    with absent_libraries_stood_in():
        exec(MODULE, ours)
        for code, scope in ((MODULE, theirs), ("import training.not_there", ours)):
            with pytest.raises(ModuleNotFoundError):
                exec(code, scope)
    assert ours["Model"].__bases__ == (object,)
    with pytest.raises(ModuleNotFoundError):
        exec(MODULE, ours)
