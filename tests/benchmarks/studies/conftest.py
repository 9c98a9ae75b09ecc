"""The data card and the encoder of training's tests."""

from tests.training.conftest import make_card, tiny_bert  # noqa: F401
