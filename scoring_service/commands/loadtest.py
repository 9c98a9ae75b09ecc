"""`loadtest`: requests at a fixed rate to a running service."""

from lengthwise.errors import ServiceUnavailable
from lengthwise.strict_json import to_json
from scoring_service.bench.loadtest import LoadtestConfig, format_loadtest, run_loadtest
from scoring_service.client.channel import ClientSecurity


def loadtest(config: LoadtestConfig, security: ClientSecurity) -> None:
    """Load a running service at a fixed rate and print what became of the requests.

    With --seconds 600 --pid PID it is a soak that also measures the server's memory. Ctrl-C ends it
    early and prints the requests sent until then. The exit code is 2 if no request was answered, or
    if that process ended meanwhile.

    Example:
      python -m scoring_service loadtest --target 127.0.0.1:50051 --rate 200 --seconds 10
    """
    result = run_loadtest(config, security)
    print(to_json(result) if config.json else format_loadtest(result))
    if result["interrupted"]:
        raise KeyboardInterrupt
    if config.pid is not None and result["rss_growth_fraction"] is None:
        raise ServiceUnavailable(f"process {config.pid} ended during the load test; see its log")
    if not result["answered"]:
        raise ServiceUnavailable(
            f"{config.target} answered none of {result['sent']} requests; look there, or give "
            "them a lower --rate or a longer --timeout-s"
        )
