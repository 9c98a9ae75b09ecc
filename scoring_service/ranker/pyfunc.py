"""A bundle as a model of MLflow: the loader that its `MLmodel` file names. MLflow is not imported.

model = mlflow.pyfunc.load_model("models:/alpaca-vicuna7b@champion")
model.predict(pandas.DataFrame({"prompt": ["Write a poem.", "Say yes."]}))     # a column score
"""

from typing import Any, Self

from lengthwise.bundle import ModelBundle
from scoring_service.ranker.scorer import OnnxScorer
from scoring_service.tokenizing import PromptTokenizer

PROMPT, SCORE = "prompt", "score"
"""Columns of what is given and of what comes back."""


class BundleModel:
    """Scores prompts as the service does, one at a time."""

    def __init__(self, tokenizer: PromptTokenizer, scorer: OnnxScorer) -> None:
        self.tokenizer = tokenizer
        self.scorer = scorer

    @classmethod
    def load(cls, path: str) -> Self:
        """Load the bundle in a folder."""
        bundle = ModelBundle.load(path)
        tokenizer = PromptTokenizer(bundle.tokenizer_path, bundle.manifest.max_prompt_tokens)
        return cls(tokenizer, OnnxScorer(bundle.model_path("auto"), pad_id=tokenizer.pad_id))

    def predict(self, prompts: Any, params: dict[str, Any] | None = None) -> Any:
        """Return a frame with the score of each prompt of a frame, higher = longer.

        `params` is there because MLflow gives it.
        """
        import pandas as pd

        found = self.tokenizer.tokenize([str(prompt) for prompt in prompts[PROMPT]])
        scores = [float(self.scorer.score([each.ids])[0]) for each in found]
        return pd.DataFrame({SCORE: scores}, index=prompts.index)


def _load_pyfunc(path: str) -> BundleModel:
    """Load a model; MLflow calls it by this name."""
    return BundleModel.load(path)
