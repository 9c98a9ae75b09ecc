"""Loader that the `MLmodel` file of a bundle names. MLflow itself is not imported.

model = mlflow.pyfunc.load_model("models:/alpaca-vicuna7b@champion")
model.predict(pandas.DataFrame({"prompt": ["Write a poem.", "Say yes."]}))     # a column score
"""

from typing import Any

from lengthwise.bundle import ModelBundle
from scoring_service.ranker.scorer import OnnxScorer
from scoring_service.tokenizing import PromptTokenizer

PROMPT, SCORE = "prompt", "score"


class BundleModel:
    """Scores prompts as the service does, one at a time; `path` is the bundle's folder."""

    def __init__(self, path: str) -> None:
        bundle = ModelBundle.load(path)
        self._tokenizer = PromptTokenizer.of(bundle)
        self._scorer = OnnxScorer(bundle.model_path("auto"), pad_id=self._tokenizer.pad_id)

    def predict(self, prompts: Any, params: dict[str, Any] | None = None) -> Any:
        """Return a frame with the score of each prompt of a frame, higher = longer.

        MLflow passes `params`, which have no effect.
        """
        import pandas as pd

        found = self._tokenizer.tokenize([str(prompt) for prompt in prompts[PROMPT]])
        scores = [self._scorer.score([each.ids])[0] for each in found]
        return pd.DataFrame({SCORE: scores}, index=prompts.index)


_load_pyfunc = BundleModel
"""MLflow's name for the loader of a model."""
