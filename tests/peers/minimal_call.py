"""CPU of a call beside the least that a gRPC call with a score can cost in Python.

    python tests/peers/minimal_call.py BUNDLE

The other server is ours with another handler of `Score`: it parses the prompt, scores it on the
thread that polls gRPC, and answers. It has no deadline, no turns of clients, no cache, no metrics.
Both take turns.
"""

import statistics
import sys
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from lengthwise.child_processes import started
from scoring_service.__main__ import main as run_service
from scoring_service.bench.measures import BenchConfig, Subject, median_ratio, taking_turns
from scoring_service.bench.peers import Peer, ours
from scoring_service.proto import scoring_pb2 as pb
from scoring_service.server.call_lifecycle import CallLifecycle

usual = CallLifecycle.handler


def handler(lifecycle, name, method):
    def take(direct, serialized):
        prompt = pb.ScoreRequest.FromString(serialized).prompt
        (score,) = lifecycle.service.model.score_texts([prompt])
        scored = pb.ScoredPrompt(score=score, prompt_tokens=1)
        direct.respond(pb.ScoreResponse(scored=scored, revision="-").SerializeToString())

    return take if name == "Score" else usual(lifecycle, name, method)


@contextmanager
def minimal(bundle):
    command = [sys.executable, __file__, "serve", "--bundle", bundle, "--address", "127.0.0.1:0"]
    with started(command, ready="serving ") as (process, line):
        yield Peer("minimal", process.pid, line.split()[-1])


def main(bundle):
    subject = Subject.load(BenchConfig(bundle=bundle))
    with ours(Path(bundle), "auto") as us, minimal(bundle) as other:
        turns = taking_turns(subject, [us, other])
        for _ in range(subject.config.rounds):
            cpu_ms = next(turns)
    for name, values in cpu_ms.items():
        ratio = median_ratio(values, cpu_ms[f"floor/{name.split('/')[1]}"])
        print(f"{name:12} {statistics.median(values):.3f} ms, {ratio:.3f} of the floor")


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        CallLifecycle.handler = handler
        sys.exit(run_service(sys.argv[1:]))
    main(sys.argv[1])
