"""`serve-ray`: many vLLM replicas on Ray Serve behind one OpenAI endpoint, placed by us."""

import logging
import os
import signal
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from secrets import token_hex
from threading import Event
from typing import Any

import yaml

from lengthwise.bundle import ModelBundle
from lengthwise.command_line.options import common_options
from lengthwise.errors import ConfigError, SchedulingError, UnsupportedByEngine
from lengthwise.settings import Port, settings
from scheduler_adapters.commands.serve_vllm import require_free_port
from scheduler_adapters.commands.serving import ray_application
from scheduler_adapters.commands.serving.ray_application import RayServeConfig

log = logging.getLogger(__name__)


@settings
class RayPlaceConfig:
    """The ranker of the application, and where it runs."""

    bundle: Path | None = None
    """Folder of a trained ranker, which scores each prompt in the gateway before it is routed."""
    address: str | None = None
    """HOST:PORT of a Ray cluster, or auto for that of this machine; none: one is started here."""
    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 for all."""
    port: Port = 8000
    """Port to listen on."""
    write_config: Path | None = None
    """Write a config file for `serve run` and KubeRay here, and start nothing."""


@common_options(
    *("model", "replicas", "placement", "policy", "bundle", "think_end"),
    *("engine", "port", "address", "write_config"),
)
def run(config: RayServeConfig, place: RayPlaceConfig) -> None:
    """Serve a model by many vLLM replicas on Ray, until SIGTERM or SIGINT.

    The gateway scores each prompt, the placement chooses its replica, and the policy orders the
    requests inside it. Each replica is `ray.serve.llm` with stock vLLM.

    Examples:
      lengthwise serve-ray MODEL --replicas 2 --placement pascal --policy pascal --think-end 151668
      lengthwise serve-ray MODEL --replicas 2 --bundle BUNDLE --engine '{"max_num_seqs": 64}'
      lengthwise serve-ray MODEL --replicas 8 --write-config serve.yaml && serve run serve.yaml
    """
    if (folder := Path(config.model)).is_dir():
        config = replace(config, model=str(folder.resolve()))
    if place.bundle is not None:
        if config.scorer is not None:
            raise ConfigError("there are --bundle and --scorer; give one source of scores")
        scorer = f"bundle:{ModelBundle.load(place.bundle).path.resolve()}"
        config = replace(config, scorer=scorer)
    content = ray_application.serve_file(config, place.host, place.port)
    if place.write_config is not None:
        place.write_config.write_text(yaml.safe_dump(content, sort_keys=False))
        print(f"wrote {place.write_config}; start it with: serve run {place.write_config}")
    elif find_spec("vllm") is None:
        raise UnsupportedByEngine("vLLM is not installed; pip install 'lengthwise[vllm]'")
    else:
        _serve(config, place, content["applications"][0]["args"])


def _serve(config: RayServeConfig, place: RayPlaceConfig, settings: dict[str, Any]) -> None:
    import ray
    from ray import serve
    from ray.serve.config import HTTPOptions

    from scheduler_adapters.routers.text_stream import TransformersCodec

    TransformersCodec(config.model)  # refused here, not in a process of the cluster
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S", "60")  # 5 are few under load
    if place.address is None:
        require_free_port(place.host, place.port)
        num_cpus = max(os.cpu_count() or 1, config.replicas)
        if "RAY_AUTH_MODE" not in os.environ:  # which Ray reads as it is imported
            # Whoever reaches Ray's ports runs code. By the second setting a node is on loopback;
            # the port of Serve's replicas is on all addresses, and requires the token.
            os.environ |= {"RAY_AUTH_MODE": "token", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
            os.environ["RAY_AUTH_TOKEN"] = token_hex(32)
            os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
        own = {"include_dashboard": False, "_node_ip_address": "127.0.0.1"}
        ray.init("local", num_cpus=num_cpus, log_to_driver=False, **own)
    else:
        ray.init(place.address, log_to_driver=False)
    try:
        serve.start(http_options=HTTPOptions(host=place.host, port=place.port))
        log.info("starting %d replicas; vLLM needs about a minute", config.replicas)
        serve.run(ray_application.build(settings), name=ray_application.NAME, route_prefix="/")
        print(f"serving {config.model} on http://{place.host}:{place.port}/v1", flush=True)
        ended = Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: ended.set())
        ended.wait()
    except (RuntimeError, ray.exceptions.RayError) as error:
        logs = "/tmp/ray/session_latest/logs/serve"
        raise SchedulingError(f"the application did not start ({error}); see {logs}") from error
    finally:
        if place.address is None:
            serve.shutdown()
        else:
            serve.delete(ray_application.NAME)
        ray.shutdown()
