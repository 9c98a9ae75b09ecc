"""From prompts and the lengths of their responses to a ranker that a scheduler can ask.

Start with `records.py` (what one observation is), then `labels.py` (one label per prompt) and
`cards.py` (where data comes from); then `data.py` (batches), `encoder.py` (prompt -> score),
`losses.py` and `module.py` (how it learns); last `fit.py`, which joins them and ends in a model
bundle (`export.py`, `publish.py`) and an MLflow run (`tracking.py`). `recipes.py` names the
experiments.

Around them: `evaluate.py` and `calibration.py` say what a bundle is worth and what its scores mean
in tokens; `cross_model.py` and `reproduce.py` are the studies; `registry.py` and `champion.py`
decide which model serves; `collect.py` and `monitor.py` work on live endpoints and logs. Apart from
all rankers, `prefill_cost.py` says what a prompt costs a router's prefill instances.
"""
