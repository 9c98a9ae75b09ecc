"""`serve`: a ranker behind gRPC."""

from __future__ import annotations

import gc
import os
import signal
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from lengthwise.bundle import ModelBundle
from lengthwise.command_line.logs import LOG_FORMATS, configure_logs
from lengthwise.command_line.options import common_options
from lengthwise.errors import ConfigError, require
from scoring_service.server.supervisor import as_options, supervise
from scoring_service.server.worker import (
    END_S,
    EndRequest,
    end_for_sure,
    end_with_parent,
    give_memory_back,
    wait,
)
from scoring_service.service.config import ServerConfig

if TYPE_CHECKING:
    from scoring_service.service.reload import Locate


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """The model to serve, and the form of the log."""

    bundle: str | None = None
    """Folder of the model bundle."""
    registry_model: str | None = None
    """Or the model behind an MLflow alias, NAME@ALIAS."""
    mlruns_dir: str = "mlruns"
    """Folder of that MLflow store, or http(s) address of an MLflow server."""
    log_format: str = "text"
    """text or json."""

    parent_pid: int | None = None
    """End when this process, the supervisor, does; `processes` sets it."""

    def __post_init__(self) -> None:
        is_known = self.log_format in LOG_FORMATS
        require("log_format", repr(self.log_format), is_known, f"one of {', '.join(LOG_FORMATS)}")


@common_options(
    *("bundle", "registry_model", "address", "precision", "processes", "cache_entries"),
    *("metrics_address", "tls_certificate_file", "tls_key_file", "token_file"),
)
def serve(options: ServeOptions, config: ServerConfig) -> None:
    """Serve a ranker over gRPC until SIGTERM or SIGINT, then drain and exit 0.

    A new version in the bundle's folder, or behind the registry's alias, takes over by itself once
    it is verified; a damaged or wrong one is refused and the old one serves on.

    Example:
      python -m scoring_service serve --bundle mlruns/demo/bundle --address 127.0.0.1:50051
    """
    configure_logs(options.log_format)
    if config.processes > 1:
        supervise(config, as_options(replace(options, parent_pid=os.getpid())))
        return
    if options.parent_pid is not None:
        end_with_parent(options.parent_pid)
    give_memory_back()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from scoring_service.ranker.model import RankerModel
    from scoring_service.server.server import ScoringServer
    from scoring_service.server.time_slices import ask_for_short_slices

    ask_for_short_slices()

    locate = _source(options)
    model = RankerModel.load(ModelBundle.load(locate()), config.precision)
    server = ScoringServer(model, config, locate)
    end = EndRequest()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end.make)
    server.start()
    # The objects there are by now stay: the collector need not look at them again.
    gc.collect()
    gc.freeze()
    print(f"serving {model.manifest.name} revision {model.revision} on {server.target}", flush=True)
    wait(end, options.parent_pid)
    end_for_sure(config.drain_notice_s + config.drain_grace_s + END_S)
    server.stop()


def _source(options: ServeOptions) -> Locate:
    from scoring_service.service.registry import RegistrySource

    if options.bundle is not None and options.registry_model is None:
        return partial(Path, options.bundle)
    if options.registry_model is not None and options.bundle is None:
        return RegistrySource(options.registry_model, options.mlruns_dir).locate
    raise ConfigError("it is not clear what to serve; give one of --bundle and --registry-model")
