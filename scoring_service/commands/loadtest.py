"""`loadtest`: requests at a fixed rate to a running service."""

from lengthwise.errors import ServiceUnavailable
from lengthwise.strict_json import to_json
from scoring_service.bench.loadtest import LoadtestConfig, format_loadtest, run_loadtest
from scoring_service.client.channel import ClientSecurity


def loadtest(config: LoadtestConfig, security: ClientSecurity) -> None:
    """Load a running service at a fixed rate and print the outcomes of the requests.

    Ctrl-C ends it early and prints the requests sent until then. The exit code is 2 if no request
    was answered.

    Example:
      python -m scoring_service loadtest --target 127.0.0.1:50051 --rate 200 --seconds 10
    """
    result = run_loadtest(config, security)
    print(to_json(result) if config.json else format_loadtest(result))
    if result["interrupted"]:
        raise KeyboardInterrupt
    if not result["answered"]:
        raise ServiceUnavailable(
            f"{config.target} answered none of {result['sent']} requests; look there, or give "
            "them a lower --rate or a longer --timeout-s"
        )
