"""The files that make a bundle's folder a model of MLflow: MLmodel, signature, example."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pandas as pd

from scoring_service.ranker import pyfunc

REQUIREMENTS: Final = ["lengthwise[serve]", "pandas"]


def write_model_files(folder: Path, prompts: Sequence[str]) -> None:
    """Write into an absent folder what must lie beside the files of a bundle.

    `prompts` are an example of what the model is given.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # MLflow warns of its own type hints while it is imported
        import mlflow.pyfunc
        from mlflow.models import ModelSignature
        from mlflow.types import ColSpec, DataType, Schema

        mlflow.pyfunc.save_model(
            folder,
            loader_module=pyfunc.__name__,
            signature=ModelSignature(
                inputs=Schema([ColSpec(DataType.string, pyfunc.PROMPT)]),
                outputs=Schema([ColSpec(DataType.double, pyfunc.SCORE)]),
            ),
            input_example=pd.DataFrame({pyfunc.PROMPT: list(prompts)}),
            pip_requirements=REQUIREMENTS,
        )
