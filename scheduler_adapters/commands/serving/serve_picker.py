"""`serve-picker`: the endpoint picker for Envoy and gateways of the Gateway API."""

import asyncio
import logging
import signal
from dataclasses import field
from pathlib import Path
from typing import Annotated

from lengthwise.command_line.options import common_options
from lengthwise.errors import ConfigError, require
from lengthwise.settings import Range, settings
from scheduler_adapters.routers.endpoint_picker.endpoints import endpoint_lists
from scheduler_adapters.routers.endpoint_picker.engine_scrape import EngineScrape
from scheduler_adapters.routers.endpoint_picker.picker import EndpointPicker, PickerLimits
from scheduler_adapters.routers.endpoint_picker.server import serving
from scheduler_adapters.routers.prompt_scores import RoutingScores
from scheduler_adapters.routers.routing import Routing, RoutingConfig

log = logging.getLogger(__name__)


@settings
class PickerConfig(RoutingConfig):
    """Endpoints, placement and telemetry of an endpoint picker."""

    endpoints: Path | None = None
    """File with the endpoints, one IP:PORT per line; read again every two seconds."""
    dns: str | None = None
    """HOST:PORT instead of a file; all addresses of the host are endpoints."""
    address: str = "127.0.0.1:9002"
    """HOST:PORT for the gateway."""
    scorer: str | None = None
    """service:HOST:PORT or bundle:PATH; none: placements decide without scores."""
    deadline_s: float = 0.02
    """Most seconds that a choice waits for a score; without one it is made all the same."""
    scrape_every_s: Annotated[float, Range(least=0.05)] = 0.5
    """Time between two scrapes of an engine's /metrics, seconds."""
    limits: PickerLimits = field(default_factory=PickerLimits)
    """Limits on what the picker holds."""

    def __post_init__(self) -> None:
        if (self.endpoints is None) == (self.dns is None):
            raise ConfigError("it is not clear what to choose from; give --endpoints or --dns")
        is_right = self.address.rpartition(":")[2].isdigit()
        require("address", repr(self.address), is_right, "HOST:PORT")


@common_options(
    *("endpoints", "dns", "placement", "settings", "address", "scorer", "deadline_s"),
    *("scrape_every_s", "max_stale_s"),
)
def run(config: PickerConfig) -> None:
    """Choose an engine for each request of an Envoy gateway, until SIGTERM or SIGINT.

    The picker speaks Envoy's ext_proc. It decides on vLLM's or SGLang's own metrics, scraped apart
    from any request, and on its own choices since. Only listed endpoints are chosen, whatever a
    client's headers say. Beside this code `routers/endpoint_picker/envoy.yaml` configures an Envoy
    that serves on if the picker fails.

    Examples:
      python -m scheduler_adapters serve-picker --endpoints engines.txt
      python -m scheduler_adapters serve-picker --dns engines.default.svc:8000 --placement pascal
    """
    logging.getLogger("httpx").setLevel(logging.WARNING)  # a line for each scrape
    asyncio.run(_serve(config))


async def _serve(config: PickerConfig) -> None:
    placement, max_stale_s = config.load(), config.max_stale_s
    scores = RoutingScores(config.scorer, config.deadline_s) if config.scorer else None
    routing = Routing(placement, max_stale_s=max_stale_s)
    picker = EndpointPicker(routing, scores, config.limits)
    endpoints = endpoint_lists(config.endpoints or config.dns or "")
    begins, every_s = lambda: routing.num_routed, config.scrape_every_s
    scrape = EngineScrape(begins, picker.received, every_s=every_s, timeout_s=max_stale_s)
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    async with serving(picker, endpoints, scrape, address=config.address) as port:
        host = config.address.rpartition(":")[0]
        print(f"choosing by {placement.name} on {host}:{port}", flush=True)
        await ended.wait()
    log.info("choices by decider: %s", dict(picker.counts))
    log.info("scores by outcome: %s", dict(scores.counts if scores else {}))
