"""From prompts and the lengths of their responses to a ranker that a scheduler can ask.

Start with `records.py` (what one observation is), then `labels.py` (one label per prompt) and
`cards.py` (where data comes from); then `data.py` (batches), `encoder.py` (prompt -> score),
`losses.py` and `module.py` (how it learns); last `fit.py`, which joins them and ends in a model
bundle (`export.py`) and an MLflow run (`tracking.py`). `recipes.py` names the experiments.
"""
