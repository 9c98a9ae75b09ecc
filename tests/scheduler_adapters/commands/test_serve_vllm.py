"""`serve-vllm` refuses at the start what would fail later, and passes the rest to vLLM."""

import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from lengthwise.child_processes import free_port
from scheduler_adapters.__main__ import main
from scheduler_adapters.commands import serve_vllm as vllm_serve
from scheduler_adapters.engines.engine_sockets import SHARED_FOLDER
from scheduler_adapters.engines.vllm_v1.middleware import VARIABLE, MiddlewareConfig, hash_of
from scoring_service.ranker.model import RankerModel
from scoring_service.server.server import ScoringServer
from scoring_service.service.config import ServerConfig

TOKEN = "/proc/sys/kernel/ostype"
"""A file of one word on every Linux."""


class Started(Exception):
    """Raised in place of becoming vLLM; holds its command line."""


@pytest.fixture(autouse=True)
def no_vllm(monkeypatch):
    """vLLM takes ten seconds to import; what needs it is tested with the real server."""

    def exec_instead(program: str, command: list[str]) -> None:
        raise Started(command)

    monkeypatch.setattr(os, "execv", exec_instead)
    monkeypatch.setattr(signal, "pthread_sigmask", lambda *_: None)
    monkeypatch.setattr(vllm_serve, "_require_engine", lambda policy, options: None)
    monkeypatch.setenv(VARIABLE, "")
    monkeypatch.setenv(SHARED_FOLDER, "/somewhere")


def start(*arguments: str) -> list[str]:
    """The command line of vLLM for model m on a free port."""
    with pytest.raises(Started) as started:
        main(["serve-vllm", "m", f"--port={free_port()}", *arguments])
    command: list[str] = started.value.args[0]
    return command


def told() -> MiddlewareConfig:
    return MiddlewareConfig.from_json(os.environ[VARIABLE])


@pytest.fixture
def refusal(capsys):
    """Runs what is refused for model m; the error line."""

    def run(*arguments: str) -> str:
        assert main(["serve-vllm", "m", *arguments]) == 2
        lines = capsys.readouterr().err.splitlines()
        (error,) = [line for line in lines if line.startswith("error: ")]
        return error

    return run


def test_vllm_is_told_policy_settings_address_and_own_options():
    port = free_port()
    given = ("--settings", json.dumps({"starve_after_s": 60}), "--guard", "waiting")
    command = start("--port", str(port), *given, "--", "--max-num-seqs", "4")
    assert command[:2] == [sys.executable, "-c"]
    assert "m" in command
    assert command[-2:] == ["--max-num-seqs", "4"]
    options = dict(option[2:].split("=", 1) for option in command if "=" in option)
    assert json.loads(options["additional-config"]) == {
        "lengthwise": {"policy": "pars", "starve_after_s": 60, "guard": "waiting", "shares": {}}
    }
    assert options["scheduler-cls"] == "scheduler_adapters.engines.vllm_v1.scheduler"
    assert options["port"] == str(port)


@pytest.fixture
def service(tiny_bundle):
    config = ServerConfig(address="127.0.0.1:0", drain_grace_s=0)
    server = ScoringServer(RankerModel.load(tiny_bundle), config)
    server.start()
    yield server
    server.stop()


def test_the_middleware_gets_the_address_of_the_service(service, tmp_path, monkeypatch):
    (tmp_path / "classes.json").write_text('{"classes": {"chat": {}}}')
    monkeypatch.chdir(tmp_path)
    start("--scorer", service.target, "--classes", "classes.json")
    assert told().scorer == service.target
    assert told().classes == str(tmp_path / "classes.json")


def test_a_bundle_is_scored_in_the_engine_and_needs_no_service(tiny_bundle, tmp_path, monkeypatch):
    monkeypatch.chdir(tiny_bundle.path.parent)
    (tmp_path / "chat.jinja").write_text("{{ messages }}")
    own = ("--bundle", tiny_bundle.path.name, "--deadline-s=0.2", "--target-model=tiny-llm")
    command = start(*own, "--", "--chat-template", str(tmp_path / "chat.jinja"))
    options = dict(option[2:].split("=", 1) for option in command if "=" in option)
    assert json.loads(options["additional-config"])["lengthwise"] == {
        "policy": "pars",
        "shares": {},
        "bundle": str(tiny_bundle.path),
        "deadline_s": 0.2,
        "score_all": False,
        "target_model": "tiny-llm",
        "unscored_last": True,
        "chat_template": str(tmp_path / "chat.jinja"),
    }
    assert told().scores_in_engine


def test_a_wrong_bundle_is_refused_before_vllm_is_loaded(tiny_bundle, tmp_path, refusal):
    assert "is not a model bundle" in refusal("--bundle", str(tmp_path))
    given = ("--bundle", str(tiny_bundle.path))
    assert "it knows tiny-llm" in refusal(*given, "--target-model=other")
    assert "give one source of scores" in refusal(*given, "--scorer=127.0.0.1:1")
    other = Path(shutil.copytree(tiny_bundle.path, tmp_path / "other"))
    tokenizer, manifest = other / "tokenizer.json", other / "manifest.json"
    before = tokenizer.read_bytes()
    tokenizer.write_bytes(before.replace(b'"##9":', b'"more": 900, "##9":'))
    hashes = [hashlib.sha256(each).hexdigest() for each in (before, tokenizer.read_bytes())]
    manifest.write_text(manifest.read_text().replace(*hashes))
    assert "cannot score its tokenizer's" in refusal("--bundle", str(other))


def test_a_target_model_without_calibration_is_refused(service, refusal):
    given = (f"--port={free_port()}", "--scorer", service.target, "--target_model")
    assert "it knows tiny-llm" in refusal(*given, "unknown")
    start(*given, "tiny-llm")
    assert told().target_model == "tiny-llm"


def test_help_shows_a_file_of_classes(capsys):
    with pytest.raises(SystemExit):
        main(["serve-vllm", "--help-all"])
    shown = capsys.readouterr().out
    start_at = shown.index('{"classes"')
    example, _ = json.JSONDecoder().raw_decode(shown[start_at:])
    assert example["api_keys"] == {"sk-3f9c": "chat"}


def test_vllms_processes_get_a_folder_to_share_metrics_in(monkeypatch, tmp_path):
    monkeypatch.delenv(SHARED_FOLDER)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    made = start()[3]
    assert Path(made).parent == tmp_path
    assert os.environ[SHARED_FOLDER] == made
    # A folder that is set already is left alone.
    monkeypatch.setenv(SHARED_FOLDER, "/somewhere")
    assert start()[3] == ""
    assert os.environ[SHARED_FOLDER] == "/somewhere"


def test_a_scoring_service_that_does_not_answer_is_refused(refusal):
    said = refusal(f"--port={free_port()}", "--scorer", "127.0.0.1:1")
    assert "no scoring service answers at 127.0.0.1:1" in said
    assert "--start-without-scorer true" in said
    start("--scorer", "127.0.0.1:1", "--start_without_scorer", "true")


def test_a_policy_of_phases_needs_to_know_what_ends_thinking(refusal):
    assert "--reasoning-parser" in refusal("--policy", "pascal")
    start("--policy", "pascal", "--settings", '{"think_end": [5]}')
    start("--policy", "pascal", "--", "--reasoning-parser", "deepseek_r1")


def test_a_port_in_use_is_refused(refusal):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        assert f"cannot listen on 127.0.0.1:{taken}" in refusal(f"--port={taken}")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--policy", "parsley"], "'parsley'; use one of fcfs"),
        (["--settings", '{"no_such": 1}'], "'no_such'"),
        (["--port=0"], "port is 0"),
        (["--port=65002", "--host", "192.0.2.1"], "cannot listen"),
        (["--", "--scheduler-cls=x.Y"], "before the --"),
        (["--", "--port"], "before the --"),
        (["--", "--additional_config={}"], "before the --"),
        (["--timeline", "t.csv"], "ends in .jsonl"),
        (["--timeline", "/no/such/t.jsonl"], "folder that exists"),
        (["--classes", "/no/such.json"], "give a class file"),
        (["--deadline_s=0", "--port=65000"], "deadline_s is 0"),
        ([f"--scorer_token_file={TOKEN}", "--scorer=192.0.2.1:5", "--port=65001"], "in the clear"),
        (["--api-key-file=/no/such/keys"], "/no/such/keys cannot be read"),
        (["--max-scores-per-key=0"], "max_scores_per_key is 0"),
    ],
)
def test_wrong_settings_are_refused(refusal, arguments, said):
    assert said in refusal(*arguments)


@pytest.mark.parametrize("how", ["options", "file"])
@pytest.mark.parametrize(
    "keys", [["sk-1"], ["sk-1", "sk-2"], [f"sk-{n:060}" for n in range(2500)]], ids=len
)
def test_no_secret_stands_in_the_list_of_processes_or_in_the_log(
    keys, how, tmp_path, monkeypatch, caplog
):
    caplog.set_level("INFO")
    monkeypatch.setenv("VLLM_API_KEY", "")
    monkeypatch.setenv(vllm_serve._KEYS, "")
    (tmp_path / "keys").write_text("\n".join(keys))
    (tmp_path / "token").write_text("sk-scorer\n")
    monkeypatch.chdir(tmp_path)
    ours = ["--api-key-file", "keys"] if how == "file" else []
    theirs = ["--api-key", *keys] if how == "options" else []
    command = start("--scorer-token-file=token", *ours, "--", "--seed", "1", *theirs)
    assert not any("sk-" in word for word in command)
    assert "starting vllm" in caplog.text
    assert "sk-" not in caplog.text
    assert command[-2:] == ["--seed", "1"]
    assert told().key_hashes == [hash_of(key) for key in keys]
    assert told().security.metadata == (("authorization", "Bearer sk-scorer"),)
    assert "sk-" not in os.environ[VARIABLE]
    assert max(map(len, os.environ.values())) < 1 << 17  # more fails in `exec`
    assert json.loads(Path(os.environ[vllm_serve._KEYS]).read_text()) == keys


@pytest.fixture
def becomes(tmp_path):
    """Starts what serve-vllm becomes, with a module in the place of vLLM's server."""

    def start(code: str, *options: str, **environment: str) -> subprocess.Popen[str]:
        (tmp_path / "served.py").write_text(code)
        (tmp_path / "made").mkdir()
        return subprocess.Popen(
            [sys.executable, "-c", vllm_serve._SERVER, str(tmp_path / "made"), "served", *options],
            env=os.environ | environment,
            cwd=tmp_path,
            start_new_session=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


def test_a_server_gets_its_keys_and_its_listing_has_none(becomes, tmp_path):
    (tmp_path / "keys").write_text('["sk-1", "sk-2"]')
    code = (
        "import os, sys\n"
        "listed = open('/proc/self/cmdline').read()\n"
        "print(__name__, sys.argv[1:], 'sk-' in listed, 'LENGTHWISE_API_KEYS' in os.environ)\n"
    )
    process = becomes(code, "--seed", "1", **{vllm_serve._KEYS: str(tmp_path / "keys")})
    keys = ["--seed", "1", "--api-key", "sk-1", "sk-2"]
    assert process.communicate(timeout=60)[0] == f"__main__ {keys} False False\n"
    assert not (tmp_path / "made").exists()


LOADS = """\
import signal, subprocess, sys, time
child = subprocess.Popen(["sh", "-c", "echo loads; exec sleep 600"])
"""
SERVES = """\
signal.signal(signal.SIGINT, print)
signal.signal(signal.SIGTERM, lambda *_: (child.kill(), sys.exit(7)))
"""


@pytest.mark.parametrize(
    ("code", "exit_code", "said"), [(LOADS, 130, "interrupted\n"), (LOADS + SERVES, 7, "")]
)
def test_ctrl_c_ends_a_server_that_loads_or_serves(becomes, tmp_path, code, exit_code, said):
    # A signal just before a sleep does not end it, so one sleep is short.
    process = becomes(code + "print('ready', flush=True)\nwhile True:\n    time.sleep(1)")
    assert process.stdout is not None
    assert sorted(process.stdout.readline() for _ in range(2)) == ["loads\n", "ready\n"]
    children = psutil.Process(process.pid).children()
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    assert process.communicate(timeout=60) == ("", said)
    assert process.returncode == exit_code
    assert not psutil.wait_procs(children, 60)[1]
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("arguments", "is_said"),
    [
        (["--", "--scheduling-policy", "priority"], True),
        (["--", "--scheduling_policy=priority"], True),
        (["--client-hints", "true", "--", "--scheduling-policy", "priority"], False),
        (["--", "--scheduling-policy", "fcfs"], False),
    ],
)
def test_it_says_whose_priorities_count(arguments, is_said, caplog):
    start(*arguments)
    assert ("trusted_keys" in caplog.text) == is_said


@pytest.mark.parametrize(
    ("options", "variable", "expected"),
    [
        ([], "", []),
        ([], "sk-0", ["sk-0"]),
        (["--api-key", "sk-1", "sk-2", "--port", "1"], "sk-0", ["sk-1", "sk-2"]),
        (["--api-key=sk-3", "--seed=1", "--api_key=sk-4"], "", ["sk-3", "sk-4"]),
        (["--api-key-file", "x"], "", []),
        (["--config", "api-key: sk-1"], "", ["sk-1"]),
        (["--config", "api_key: [sk-1, sk-2]"], "", ["sk-1", "sk-2"]),
        (["--config", "- a"], "", []),
        (["--config", ""], "", []),
        (["--config"], "", []),
    ],
)
def test_the_middleware_knows_vllms_keys_by_their_hashes(
    options, variable, expected, monkeypatch, tmp_path
):
    monkeypatch.setenv("VLLM_API_KEY", variable)
    if options[:-1] == ["--config"]:
        (tmp_path / "vllm.yaml").write_text(options[1])
        options = ["--config", str(tmp_path / "vllm.yaml")]
    config = vllm_serve.ServeConfig(model="m", vllm=options)
    assert config.middleware.key_hashes == [hash_of(key) for key in expected]
    assert not any(key in config.middleware.to_json() for key in expected)
