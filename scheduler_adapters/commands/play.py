"""`play`: vLLM with a trained ranker in its engine, and MLflow, on loopback until Ctrl-C."""

import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import Final
from urllib.request import urlopen

from lengthwise.bundle import ModelBundle
from lengthwise.child_processes import end_processes, free_port
from lengthwise.errors import SchedulingError
from lengthwise.mlflow_store import MlflowStore, quiet_mlflow
from lengthwise.tables.reading import read_table
from scheduler_adapters.engines.chat_model import find_chat_model
from scheduler_adapters.engines.random_model import VOCABULARY, make_tiny_model
from scheduler_adapters.engines.vllm_v1.in_process import ENVIRONMENT

log = logging.getLogger(__name__)

_VLLM: Final = (
    *("--dtype=bfloat16", "--block-size=32", "--max-model-len=2048", "--max-num-seqs=4"),
    *("--enforce-eager", f"--kv-cache-memory-bytes={512 << 20}", "--served-model-name=chat"),
    "--distributed-executor-backend=uni",  # a worker would be one more process to start
)
_WELCOME: Final = """\
vLLM under PARS     {vllm}/v1   metrics: {vllm}/metrics
MLflow              {mlflow}/#/experiments?workflowType=machine_learning
the ranker          {mlflow}/#/models/{ranker}
logs                {logs}

try in another terminal: a question; what became of scores; the ranker in the registry; the queue
  curl -sS {vllm}/v1/chat/completions -H 'Content-Type: application/json' -d {body}
  curl -sS {vllm}/metrics | grep ^lengthwise_engine_requests_total
  curl -sS '{mlflow}/api/2.0/mlflow/registered-models/get?name={ranker}'
  watch -n 1 "curl -sS {vllm}/metrics | grep ^vllm:num_requests_[rw]"

Ctrl-C ends all of them."""


@dataclass(frozen=True, kw_only=True)
class PlayConfig:
    """The training run whose ranker is served."""

    trained: Path = Path("mlruns/demo")
    """Folder of the training run (`python -m training fit RECIPE --out`); its folder play gets the
    logs."""
    mlruns_dir: Path = Path("mlruns")
    """Folder of the MLflow store of that run."""


def play(config: PlayConfig) -> None:
    """Serve vLLM with a trained ranker in its engine, and MLflow's pages, until Ctrl-C.

    All listen on free ports of 127.0.0.1; their addresses are printed, and three commands to try.
    vLLM runs SmolLM2-135M-Instruct. Where that cannot be had it runs a random Llama: only the order
    of its answers has a meaning.
    If one process ends, the others are ended and the last lines of its log are shown.

    Example:
      python -m scheduler_adapters play --trained mlruns/demo
    """
    bundle, store = ModelBundle.load(config.trained / "bundle"), MlflowStore(config.mlruns_dir)
    prompts = read_table(config.trained / "test.parquet", ["prompt"])["prompt"].tolist()
    store.require()
    quiet_mlflow()
    vllm, mlflow = (f"127.0.0.1:{free_port()}" for _ in range(2))
    logs = config.trained / "play"
    with tempfile.TemporaryDirectory() as folder, open_servers(logs) as servers:
        pages = [
            *("mlflow", "server", "--backend-store-uri", store.uri, "--workers=1"),
            *("--host=127.0.0.1", f"--port={mlflow.rpartition(':')[2]}"),
        ]
        servers.start("mlflow", pages, MLFLOW_SERVER_ENABLE_JOB_EXECUTION="false")
        log.info("starting MLflow and vLLM; that takes half a minute")
        model = find_chat_model() or write_model(Path(folder, "model"), prompts)
        own = [
            *("scheduler_adapters", "serve-vllm", str(model), f"--bundle={bundle.path}"),
            *("--score-all=true", f"--port={vllm.rpartition(':')[2]}", "--", *_VLLM),
        ]
        servers.start("vllm", own, **ENVIRONMENT)
        urls = {"vllm": f"http://{vllm}", "mlflow": f"http://{mlflow}"}
        servers.watch(lambda: all(_answers(f"{url}/health") for url in urls.values()))
        request = {
            **{"model": "chat", "max_tokens": 256},
            "messages": [{"role": "user", "content": "Write a short poem about rain."}],
        }
        ranker, body = bundle.manifest.name, quote(json.dumps(request))
        print(_WELCOME.format(**urls, ranker=ranker, logs=logs, body=body), flush=True)
        servers.watch(lambda: False)


@dataclass(frozen=True)
class Servers:
    """Running processes by name, each with a log and the leader of a session of its own."""

    logs: Path
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, name: str, command: Iterable[str], **environment: str) -> None:
        """Run a Python module with its arguments."""
        with (self.logs / f"{name}.log").open("wb") as written:
            self.running[name] = subprocess.Popen(
                [sys.executable, "-m", *command],
                stdin=subprocess.DEVNULL,
                stdout=written,
                stderr=written,
                env={**os.environ, **environment},
                start_new_session=True,
            )

    def watch(self, until: Callable[[], bool]) -> None:
        """Block until `until` holds; SchedulingError if a process ends before."""
        while not until():
            for name, process in self.running.items():
                if (code := process.poll()) is not None:
                    path = self.logs / f"{name}.log"
                    tail = path.read_text(errors="replace").splitlines()[-15:]
                    title = f"{name} ended with {code}; the end of {path}:"
                    raise SchedulingError("\n  ".join([title, *tail]))
            time.sleep(0.2)


@contextmanager
def open_servers(logs: Path) -> Iterator[Servers]:
    """Yield an empty set of servers; SIGTERM to each at the end, then SIGKILL to its session."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    logs.mkdir(exist_ok=True)
    servers = Servers(logs)
    try:
        with suppress(KeyboardInterrupt):
            yield servers
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # A second Ctrl-C would leave some behind.
        end_processes(list(servers.running.values()), timeout_s=20)
        for process in servers.running.values():
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def _answers(url: str) -> bool:
    with suppress(OSError), urlopen(url, timeout=5):
        return True
    return False


def write_model(folder: Path, texts: Iterable[str]) -> Path:
    """Write a tiny random Llama, and a tokenizer with the tokens of `texts`."""
    from tokenizers import ByteLevelBPETokenizer
    from transformers import PreTrainedTokenizerFast

    folder.mkdir()
    tokenizer, path = ByteLevelBPETokenizer(), str(folder / "tokenizer.json")
    tokenizer.train_from_iterator(
        texts, vocab_size=VOCABULARY, special_tokens=["</s>"], show_progress=False
    )
    tokenizer.save(path)
    fast = PreTrainedTokenizerFast(tokenizer_file=path, eos_token="</s>")
    fast.chat_template = "{% for m in messages %}{{ m['content'] }}\n{% endfor %}"
    fast.save_pretrained(folder)
    return make_tiny_model(folder)
