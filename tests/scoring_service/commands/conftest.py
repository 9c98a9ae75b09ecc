import pytest

from scoring_service.__main__ import main


@pytest.fixture
def fails(capsys):
    """A function that runs a command which must fail, and returns its one line of error."""

    def run(*arguments: str) -> str:
        assert main(arguments) == 2
        output = capsys.readouterr()
        assert output.out == ""
        assert output.err.startswith("error: ")
        assert output.err.count("\n") == 1
        return output.err

    return run
