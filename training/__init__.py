"""Prompts and observed response lengths -> trained length rankers in model bundles.

Start with `config.py` and `recipes.py`, the settings of a run. `data/` holds records, labels and
splits, `ranker/` the network and its training, `export/` ONNX, `evaluation/` figures, `release/`
bundles, MLflow and the champion. `collection/` measures lengths at a live endpoint, `prefill/` the
cost of a prompt's prefill. `commands/fit.py` joins the rooms.
Wrong input raises an error of `lengthwise.errors`, which a command prints as one line.
"""
