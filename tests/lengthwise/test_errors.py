"""One tree of errors, each also a built-in type."""

import pytest

from lengthwise import errors


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        (errors.ConfigError, ValueError),
        (errors.DataError, ValueError),
        (errors.BundleError, RuntimeError),
        (errors.InvalidPrompt, RuntimeError),
        (errors.ScoringTimeout, TimeoutError),
        (errors.UnsupportedByEngine, RuntimeError),
    ],
)
def test_each_error_is_a_lengthwise_error_and_a_built_in_one(kind, builtin):
    assert issubclass(kind, errors.LengthwiseError)
    assert issubclass(kind, builtin)


def test_the_tree_at_the_top_of_the_file_is_the_tree():
    kinds = {name for name, value in vars(errors).items() if isinstance(value, type)}
    kinds = {name for name in kinds if issubclass(getattr(errors, name), errors.LengthwiseError)}
    assert all(name in errors.__doc__ for name in kinds)


def test_a_data_error_says_where():
    assert str(errors.DataError("bad", path="t.csv", row=3)) == "t.csv, row 3: bad"
    assert str(errors.DataError("bad", path="t.csv")) == "t.csv: bad"
    assert str(errors.DataError("bad")) == "bad"
