"""Ranges in the types of settings."""

import re
from dataclasses import replace
from math import inf, nan
from typing import Annotated, ClassVar, Literal

import pytest

from lengthwise.errors import ConfigError
from lengthwise.settings import (
    Count,
    Fraction,
    Natural,
    NonNegative,
    NonNegativeFinite,
    Part,
    Port,
    Positive,
    PositiveFinite,
    Range,
    checked,
    settings,
)
from tests.test_architecture import PACKAGES, sources


@settings
class Limits:
    section: ClassVar[str] = "limits."
    batch: Count = 8
    most: Count | None = None
    steps: tuple[Count, ...] = ()
    order: Literal["spf", "fcfs"] = "spf"


@pytest.mark.parametrize(
    ("kind", "right", "wrong", "words"),
    [
        (Count, (1, 9), (0, -1, 1.5, "2", None), "a whole number, 1 or more"),
        (Natural, (0, 9), (-1, 0.5), "a whole number, 0 or more"),
        (Port, (1, 65535), (0, 65536), "a whole number from 1 to 65535"),
        (Positive, (0.1, 3, inf), (0, -1, nan, "1"), "a number above 0"),
        (PositiveFinite, (0.1,), (0, inf), "a number above 0"),
        (NonNegative, (0, inf), (-0.1,), "a number, 0 or more"),
        (NonNegativeFinite, (0,), (inf, -1), "a number, 0 or more"),
        (Fraction, (0, 1), (-0.1, 1.1), "a number from 0 to 1"),
        (Part, (0, 0.9), (-0.1, 1), "a number, 0 or more and below 1"),
        (Annotated[float, Range(above=0, below=0.5)], (0.1,), (0.5,), "above 0 and below 0.5"),
    ],
)
def test_a_range_is_what_its_message_says(kind, right, wrong, words):
    def function(value):
        return value

    function.__annotations__ = {"value": kind}
    take = checked(function)
    assert [take(value) for value in right] == list(right)
    for value in wrong:
        with pytest.raises(ConfigError, match=re.escape(f"value is {value!r}; use ")) as error:
            take(value=value)
        assert str(error.value).endswith(words)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"batch": 0}, "limits.batch is 0; use a whole number, 1 or more"),
        ({"most": 0}, "limits.most is 0; use a whole number, 1 or more"),
        ({"steps": (4, 0)}, "limits.steps is 0; use a whole number, 1 or more"),
        ({"order": "last"}, "limits.order is 'last'; use one of spf, fcfs"),
    ],
)
def test_settings_outside_their_types_are_refused(wrong, message):
    for make in (Limits, lambda **given: replace(Limits(), **given)):
        with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
            make(**wrong)


def test_relations_are_checked_after_the_ranges_of_all_fields():
    @settings
    class Smaller(Limits):
        least: Count = 1

        def __post_init__(self) -> None:
            if self.least > self.batch:
                raise ConfigError("least is above batch")

    assert Smaller(least=8).batch == 8
    with pytest.raises(ConfigError, match="least is above batch"):
        Smaller(least=9)
    with pytest.raises(ConfigError, match="batch is -1"):
        Smaller(batch=-1)


def test_subclasses_of_settings_are_settings():
    """A plain dataclass below one would have a constructor without the check."""
    text = "\n".join(path.read_text() for package in PACKAGES for path in sources(package))
    classes = re.findall(r"^(@settings\n)?class (\w+)(?:\((.*?)\))?:", text, re.M | re.S)
    marked = {name for mark, name, _ in classes if mark}
    assert "ServerConfig" in marked
    below = {name for _, name, bases in classes if marked & set(re.findall(r"\w+", bases))}
    assert below
    assert below <= marked
