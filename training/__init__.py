"""Prompts and observed response lengths -> trained length rankers in model bundles.

Start with `config.py` and `recipes.py` (the settings of a run), then `data/` (records, labels and
splits), `ranker/` (the network and its training), `export/` (ONNX), `evaluation/` (figures) and
`release/` (bundles, MLflow, the champion). `collection/` measures lengths at a live endpoint and
`prefill/` the cost of a prompt's prefill. `commands/fit.py` joins the rooms.
Wrong input raises an error of `lengthwise.errors`, which a command prints as one line.
"""
