"""`serve`: a ranker behind gRPC."""

import gc
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal

from lengthwise.bundle import ModelBundle, bundle_folder
from lengthwise.command_line.logs import configure_logs
from lengthwise.command_line.options import common_options
from lengthwise.errors import ConfigError
from lengthwise.settings import settings
from scoring_service.server import worker
from scoring_service.service.config import ServerConfig
from scoring_service.service.registry import RegistrySource


@settings
class ServeOptions:
    """The model to serve, and the form of the log."""

    bundle: str | None = None
    """Folder of the model bundle."""
    registry_model: str | None = None
    """Model behind an MLflow alias, NAME@ALIAS, instead of a folder."""
    mlruns_dir: str = "mlruns"
    """Folder of that MLflow store, or http(s) address of an MLflow server."""
    log_format: Literal["text", "json"] = "text"
    """Lines of the log; json: one object per line."""

    def __post_init__(self) -> None:
        if (self.bundle is None) == (self.registry_model is None):
            raise ConfigError(
                "it is not clear what to serve; give one of --bundle and --registry-model"
            )

    def source(self) -> Callable[[], Path]:
        """Return the function that finds the folder of the present bundle."""
        if self.registry_model is None:
            return partial(bundle_folder, self.bundle or "")
        return RegistrySource(self.registry_model, self.mlruns_dir).locate


@common_options(
    *("bundle", "registry_model", "address", "precision", "num_runners", "cache_entries"),
    *("metrics_address", "tls_certificate_file", "tls_key_file", "token_file"),
)
def serve(options: ServeOptions, config: ServerConfig) -> None:
    """Serve a ranker over gRPC until SIGTERM or SIGINT, then drain and exit 0.

    A new version in the bundle's folder, or behind the registry's alias, takes over once it is
    verified. A damaged or wrong one is refused, and the old one serves on.

    Example:
      python -m scoring_service serve --bundle mlruns/demo/bundle --address 127.0.0.1:50051
    """
    configure_logs(options.log_format)
    worker.return_free_memory()
    worker.use_all_file_numbers()
    worker.use_short_slices()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from scoring_service.ranker.model import RankerModel
    from scoring_service.server.server import ScoringServer

    locate = options.source()
    model = RankerModel.load(ModelBundle.load(locate()), config.precision)
    server = ScoringServer(model, config, locate)
    with worker.EndRequest() as end:
        server.start()
        # The present objects stay for good: the collector can skip them.
        gc.collect()
        gc.freeze()
        name = f"{model.manifest.name} revision {model.revision}"
        print(f"serving {name} on {server.target}", flush=True)
        end.wait()
    worker.end_for_sure(config.drain_notice_s + config.drain_grace_s + worker.END_S)
    server.stop()
