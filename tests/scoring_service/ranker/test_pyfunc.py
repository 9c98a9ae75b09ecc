"""The loader of MLflow's flavour gives the scores that the service gives."""

import pandas as pd

from scoring_service.ranker.model import RankerModel
from scoring_service.ranker.pyfunc import _load_pyfunc

PROMPTS = ["write a long poem", "yes"]


def test_a_loaded_model_scores_like_the_service(tiny_bundle):
    frame = pd.DataFrame({"prompt": PROMPTS}, index=[7, 3])
    scores = _load_pyfunc(str(tiny_bundle.path)).predict(frame)
    served = RankerModel.load(tiny_bundle)
    expected = [served.scorer.score([t.ids])[0] for t in served.tokenizer.tokenize(PROMPTS)]
    assert scores.score.tolist() == expected
    assert list(scores.index) == [7, 3]
