"""Late scores inside the real vLLM: a burst of 200 on 16 seats, scores over a second."""

import pytest

from scheduler_adapters.engines.engine_clock import make_clock
from scheduler_adapters.engines.engine_sockets import SHARED_FOLDER
from scheduler_adapters.engines.vllm_v1 import in_process
from tests.scheduler_adapters.late_burst import SEATS, ByRank, late_burst

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shared")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(SHARED_FOLDER, str(folder))
        config = in_process.OfflineConfig(scheduler="pars", max_num_seqs=SEATS)
        with in_process.open_engine(config, max_model_len=512) as engine:
            yield engine
        assert not list(folder.glob("*.sock"))


def test_those_that_start_after_their_score_came_start_by_rank(engine):
    scheduler = in_process.scheduler_of(engine)
    by_rank = ByRank(lambda: (each.lengthwise.rank for each in scheduler.waiting.queue))
    requests = late_burst(over_s=0.5)
    timeline = in_process.VllmDriver(engine).serve(
        requests, clock=make_clock("cpu"), seed=0, observers=[by_rank]
    )
    assert [len(timeline.token_s(row)) for row in range(200)] == requests.output_tokens.tolist()
    counts = scheduler.lengthwise.annotation_counts
    assert (counts.scored, counts.unscored, counts.invalid) == (0, 200, 0)
    assert counts.late == by_rank.num_scored > 50
    assert by_rank.num_scored + by_rank.num_unscored == 200
    assert by_rank.num_unscored >= SEATS  # the first that ran had none yet
