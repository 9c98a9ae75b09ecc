"""`serve-vllm`: vLLM's OpenAI server with one of our schedulers, and scores for all its clients.

The command checks its settings, then becomes vLLM (`exec`) with its signals, exit code and log.
"""

import importlib.metadata
import json
import logging
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import field, fields
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Literal

from lengthwise.bundle import bundle_folder
from lengthwise.command_line.options import common_options
from lengthwise.command_line.program import exit_code_of, run_command
from lengthwise.errors import ConfigError, ScoringError, UnsupportedByEngine
from lengthwise.settings import Port, settings
from scheduler_adapters.commands.vllm_options import (
    api_key_words,
    chat_template,
    configured_keys,
    require_model,
    require_own,
)
from scheduler_adapters.engines.engine_sockets import SHARED_FOLDER
from scheduler_adapters.engines.user_classes import read_user_classes
from scheduler_adapters.engines.vllm_v1 import TESTED
from scheduler_adapters.engines.vllm_v1.additional_config import (
    SETTINGS,
    configured_bundle,
    configured_policy,
    configured_think_end,
)
from scheduler_adapters.engines.vllm_v1.features import read_configuration, require_features
from scheduler_adapters.engines.vllm_v1.middleware import (
    ALLOWED_PROXIES,
    VARIABLE,
    MiddlewareConfig,
    hash_of,
)
from scheduler_adapters.engines.vllm_v1.request_scores import ScoreConfig
from scheduler_adapters.planner.capabilities import require_capabilities, require_think_end
from scheduler_adapters.policies.shortest_predicted import GuardKind
from scheduler_adapters.policy import Policy
from scheduler_adapters.timeline import live_log as timeline_log
from scoring_service.client import ScoringClient
from scoring_service.client.channel import ClientSecurity, read_secrets

log = logging.getLogger(__name__)

SCHEDULER: Final = "scheduler_adapters.engines.vllm_v1.scheduler"
MIDDLEWARE: Final = "scheduler_adapters.engines.vllm_v1.middleware.VllmScores"
_PROBE_S: Final = 5.0
_KEYS: Final = "LENGTHWISE_API_KEYS"
_SERVER: Final = f"""\
import json, os, runpy, shutil, signal, sys
from multiprocessing.resource_tracker import ensure_running
from threading import Thread

def watch():
    # Once vLLM serves it has a handler of its own, and ends as by SIGTERM.
    while signal.sigwait([signal.SIGINT]) and signal.getsignal(signal.SIGINT) is not loads:
        os.kill(os.getpid(), signal.SIGTERM)
    import psutil
    for child in psutil.Process().children(recursive=True):
        try:
            child.kill()
        except psutil.NoSuchProcess:
            pass
    shutil.rmtree(folder, ignore_errors=True)
    os.write(2, b"interrupted\\n")
    os._exit(130)

folder, module, *options = sys.argv[1:]
if keys := os.environ.pop({_KEYS!r}, None):
    options += ["--api-key", *json.load(open(keys))]
sys.argv[1:] = options
ensure_running()  # later it would unblock the signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
signal.signal(signal.SIGINT, loads := lambda *_: None)
Thread(target=watch, daemon=True).start()
try:
    runpy.run_module(module, run_name="__main__", alter_sys=True)
finally:
    shutil.rmtree(folder, ignore_errors=True)
"""
"""Program that runs vLLM's server and removes a folder at its end. The list of processes shows no
API keys, as it shows no words that a process adds to its own command line. Ctrl-C while the model
loads ends all without a traceback: its signal is blocked here, and so in processes of vLLM's."""


@settings
class ServeConfig(ScoreConfig):
    """The model, the policy, and the source of its scores."""

    model: str
    """Folder or hub name of the model; may stand first, without --model."""
    bundle: Path | None = None
    """Folder of a trained ranker (`python -m training fit`), which scores every prompt inside the
    engine. Then no scoring service is needed."""
    keep_order: bool = False
    """With --bundle: scores order requests even while their quality does not support it."""
    score_all: bool = False
    """With --bundle: hold and score the requests that could start at once as well."""
    policy: str = "pars"
    """Name of a policy (fcfs, pars, ...) or import path package.module:callable."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings of the policy, e.g. {"times": 3} for the guard overtaking."""
    guard: GuardKind | None = None
    """Guard of PARS. overtaking (the default) limits the later arrivals started before a request;
    waiting ranks requests by arrival once they have waited for 120 s."""
    shares: dict[str, int] | Literal["none"] = field(default_factory=dict)
    """Fair shares of clients (by API key, else address) and weights of their classes, e.g.
    {"paying": 3}; other classes have weight 1. none: the policy orders all requests together."""
    start_without_scorer: bool = False
    """Start without an answer of the scoring service; until it answers, requests are served in
    order of arrival."""
    classes: Path | None = None
    """JSON file of user classes with TBT targets, and of the API keys and the header of each;
    `serve-vllm --help-all` has an example."""
    client_hints: bool = False
    """Let every client send its own score, class and target; else only trusted keys may."""
    timeline: Path | None = None
    """Write every finished request with its token times to this .jsonl file; for read_timeline."""
    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 for all."""
    port: Port = 8000
    """Port to listen on."""
    scorer_ca_file: str | None = None
    """PEM certificates of the authorities for the scoring service; set it to use TLS."""
    scorer_certificate_file: str | None = None
    """PEM certificate of this client, for a scoring service that requires one."""
    scorer_key_file: str | None = None
    """PEM private key of that certificate."""
    scorer_token_file: str | None = None
    """File whose first line is the bearer token for the scoring service."""
    api_key_file: str | None = None
    """File of the API keys that vLLM accepts, one per line. The list of processes shows none of
    them, nor those of VLLM_API_KEY and of vLLM's own --api-key."""
    vllm: list[str] = field(default_factory=list)
    """vLLM's own options; easier to write behind a --."""

    def __post_init__(self) -> None:
        if self.bundle is not None and self.scorer is not None:
            raise ConfigError("there are --bundle and --scorer; give one source of scores")

    @property
    def middleware(self) -> MiddlewareConfig:
        """The settings of the API server process."""
        token_file = self.scorer_token_file
        return MiddlewareConfig(
            **{setting.name: getattr(self, setting.name) for setting in fields(ScoreConfig)},
            security=ClientSecurity(
                ca_file=self.scorer_ca_file,
                certificate_file=self.scorer_certificate_file,
                key_file=self.scorer_key_file,
                token_file=token_file and str(Path(token_file).resolve()),
            ),
            classes=None if self.classes is None else str(self.classes.resolve()),
            client_hints=self.client_hints,
            shares=self.shares != "none",
            scores_in_engine=self.bundle is not None,
            key_hashes=[hash_of(key) for key in self.api_keys],
        )

    @property
    def api_keys(self) -> list[str]:
        """API keys that vLLM will accept; empty: vLLM accepts every request."""
        if self.api_key_file is not None:
            return read_secrets(self.api_key_file)
        keys = api_key_words(self.vllm)[0] or configured_keys(self.vllm)
        return [key for key in keys or [os.environ.get("VLLM_API_KEY", "")] if key]

    @property
    def additional_config(self) -> dict[str, Any]:
        """The settings of the engine process."""
        guard = {} if self.guard is None else {"guard": self.guard}
        shares = {} if self.shares == "none" else {"shares": self.shares}
        ranker: dict[str, Any] = {}
        if self.bundle is not None:
            names = "keep_order", "score_all", *ScoreConfig.SHARED
            own = {name: getattr(self, name) for name in names}
            ranker = {"bundle": str(bundle_folder(self.bundle).resolve()), **own}
            if (template := chat_template(self.vllm)) is not None:
                ranker["chat_template"] = template
        return {SETTINGS: {**guard, **shares, **self.settings, **ranker, "policy": self.policy}}


@common_options(
    *("model", "bundle", "policy", "guard", "scorer", "classes", "timeline"),
    *("host", "port", "vllm"),
)
def run(config: ServeConfig) -> None:
    """Start vLLM's OpenAI server with one of our schedulers; clients need no change.

    With --bundle the engine scores each prompt itself, of every endpoint. With --scorer a scoring
    service scores completions, chats and responses on their way in, for several servers. A request
    without a score within the deadline is ranked by the median of the others, and counted
    (/metrics: lengthwise_*). A client's own entries in vllm_xargs (lengthwise_score,
    lengthwise_quantiles, lengthwise_class, lengthwise_tbt_s) and its priority are dropped and
    counted. They are kept for trusted_keys of --classes, or with --client-hints true for every
    client.

    Examples:
      python -m scheduler_adapters serve-vllm MODEL --bundle BUNDLE
      python -m scheduler_adapters serve-vllm MODEL --bundle BUNDLE -- --max-num-seqs 64
      python -m scheduler_adapters serve-vllm MODEL --policy pars --scorer HOST:PORT

    A --classes file; the class is that of the API key, else of the header of a trusted proxy, else
    the default:
      {"classes": {"chat": {"tbt_s": 0.05}, "batch": {}},
       "api_keys": {"sk-3f9c": "chat"}, "header": "X-User-Class", "trusted_proxies": ["10.0.0.0/8"],
       "default": "batch", "trusted_keys": ["sk-gate"]}

    GET /lengthwise/load returns the load of each engine as JSON, for a router. It needs an API key
    if there are keys (--open-load true: it needs none).

    Options behind -- are vLLM's own. Under --scheduling-policy priority the policy orders requests
    of equal priority. A scoring service that does not answer at the start is an error, unless
    --start-without-scorer true; later outages are no error.
    """
    check(config)
    module, folder, keys = server_module(config.model), "", config.api_keys
    log.info("starting %s", " ".join(module))  # options may hold secrets
    sys.stdout.flush()
    if SHARED_FOLDER not in os.environ:
        # Made here, so that all of vLLM's processes inherit it.
        try:
            os.environ[SHARED_FOLDER] = folder = tempfile.mkdtemp(prefix="lengthwise-")
        except OSError as error:
            log.warning("no metrics of the engine and no late scores: no folder (%s)", error)
    os.environ[VARIABLE] = _in_memory(config.middleware.to_json())
    if os.environ.get(ALLOWED_PROXIES):
        log.warning("%s is ignored; name gateways in trusted_proxies of --classes", ALLOWED_PROXIES)
    os.environ[ALLOWED_PROXIES] = ""
    if config.timeline is not None:
        os.environ[timeline_log.VARIABLE] = str(config.timeline.resolve())
    if keys:
        os.environ[_KEYS] = _in_memory(json.dumps(keys))
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    program = [sys.executable, "-c", _SERVER, folder]
    os.execv(sys.executable, [*program, *module, *server_options(config)])


def _in_memory(text: str) -> str:
    """Return the path of a file in memory, for processes of the same user while vLLM runs."""
    # One variable of the environment holds 128 KiB at most. The file outlives `exec`.
    file = os.memfd_create("lengthwise", flags=0)
    os.write(file, text.encode())
    return f"/proc/{os.getpid()}/fd/{file}"


def check(config: ServeConfig) -> None:
    """Refuse settings that would fail later, or that vLLM would ignore."""
    require_model(config.model)
    policy, middleware = configured_policy(config.additional_config), config.middleware
    for option in config.vllm:
        name = option.partition("=")[0].replace("_", "-")
        if name in ("--model", "--host", "--port", "--scheduler-cls", "--additional-config"):
            raise ConfigError(f"{name} is given to vLLM itself; give it before the --, or not")
    if config.api_key_file is not None and api_key_words(config.vllm)[0]:
        raise ConfigError("there are --api-key-file and vLLM's own --api-key; give one of them")
    vllms = "=".join(config.vllm).replace("_", "-") + "="
    if not config.client_hints and "--scheduling-policy=priority=" in vllms:
        log.warning(
            "a request's own priority counts from the trusted_keys of --classes only, "
            "or from all clients with --client-hints true"
        )
    if config.timeline is not None:
        timeline_log.require_writable(config.timeline)
    if (ranker := configured_bundle(config.additional_config)) is not None:
        from scoring_service.ranker.model import RankerModel

        # A model that does not fit its tokenizer shows only in use: in one line here, in a
        # traceback of the engine's process later.
        RankerModel.load(ranker.verify())
    # The engine would refuse it, too, but minutes later.
    require_think_end(
        policy,
        "--reasoning-" in vllms or bool(configured_think_end(config.additional_config)),
        "add -- --reasoning-parser NAME, or think_end (token ids) to --settings",
    )
    if middleware.classes is not None:
        read_user_classes(Path(middleware.classes))
    require_free_port(config.host, config.port)
    if ranker is None:
        _require_scorer(middleware, config.start_without_scorer)
    _require_engine(policy, ["--model", config.model, *server_options(config)])


def server_module(model: str) -> list[str]:
    """Return vLLM's server module and its model; the CPU build has no `vllm serve`."""
    try:
        importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError:
        return ["vllm.entrypoints.openai.api_server", "--model", model]
    return ["vllm.entrypoints.cli.main", "serve", model]


def server_options(config: ServeConfig) -> list[str]:
    """Return the options of vLLM beside its model."""
    options = {
        "host": config.host,
        "port": config.port,
        "scheduler-cls": SCHEDULER,
        "additional-config": json.dumps(config.additional_config),
        "middleware": MIDDLEWARE,
    }
    return [f"--{name}={value}" for name, value in options.items()] + api_key_words(config.vllm)[1]


def require_free_port(host: str, port: int) -> None:
    """Raise ConfigError if no server can listen there."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host}:{port} ({error.strerror}); use another --port or --host"
        ) from error


def _require_scorer(config: MiddlewareConfig, start_without: bool) -> None:
    """Refuse a scoring service that does not answer, or is not calibrated for the model."""
    if config.scorer is None:
        log.warning("no --bundle: requests without a score of their own are served by arrival")
        return
    with ScoringClient(config.scorer, timeout_s=_PROBE_S, security=config.security) as client:
        try:
            info = client.info()
        except ScoringError as error:
            if not start_without:
                raise type(error)(
                    f"{error}, or serve by arrival until it is there: --start-without-scorer true"
                ) from error
            log.warning("%s: requests are served by arrival until it is there", error)
            return
    known = ", ".join(info.target_models) or "none"
    if config.target_model is not None and config.target_model not in info.target_models:
        raise ConfigError(
            f"the scoring service is not calibrated for target_model {config.target_model!r}; "
            f"it knows {known}; name one of these, or leave it out"
        )
    log.info("scores by %s, revision %s, at %s", info.name, info.revision, config.scorer)


def _require_engine(policy: Policy, options: Sequence[str]) -> None:
    if find_spec("vllm") is None:
        raise UnsupportedByEngine("vLLM is not installed; install vllm " + TESTED)
    from scheduler_adapters.engines.vllm_v1.rank_scheduler import (  # probes vLLM's layout
        CAPABILITIES,
        ENGINE,
    )

    require_capabilities(policy, CAPABILITIES, ENGINE)
    if (configuration := read_configuration(options)) is not None:
        require_features(configuration, policy)


def main(arguments: Sequence[str]) -> int:
    """Run the command line; returns the exit code, 2 for bad input."""
    ours, theirs = list(arguments), []
    if "--" in ours:
        at = ours.index("--")
        ours, theirs = ours[:at], ours[at + 1 :]
    if ours and not ours[0].startswith("-"):
        ours[0] = f"--model={ours[0]}"
    if unknown := exit_code_of(partial(require_own, ours, ServeConfig.__dataclass_fields__)):
        return unknown
    if theirs:
        ours.append(f"--vllm={json.dumps(theirs)}")
    return run_command("python -m scheduler_adapters serve-vllm", run, ours)
