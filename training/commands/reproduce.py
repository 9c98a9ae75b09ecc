"""`python -m training reproduce`: the paper's tables, and its cost, on the data at hand."""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from scoring_service.errors import ConfigError, DataError
from training.command_line import configure_logging, make_parser, without_nan
from training.config import LossConfig, Objective, TrainConfig
from training.data.labels import observed, targets
from training.data.prepared import Prepared, prepare
from training.evaluation.baselines import tfidf_ridge
from training.evaluation.metrics import ceiling, tau_b, tau_b_ci
from training.recipes import recipe

DESCRIPTION: Final = """Print the tables of PARS (Kendall tau_b) with ours beside the paper's.

Every row of ours is trained here, on the same prompts, with the same number of encoder passes, and
tested on the same held-out prompts; its MLflow run is named. The paper's columns are its own data
(Alpaca prompts answered by GPT-4, Llama 3.1 and DeepSeek-R1), which is not public: compare orders
and gains, not values. With --seeds a row is the mean over that many trainings.

`cost` trains all pairs by our settings and explicit pairs by the paper's protocol (pooler, constant
2e-5, batches of 128 pairs, every prompt padded to 128 tokens) on as many prompts, and says when
each reaches the best validation tau_b of the second, which takes three times the CPU of the first.

examples:
  python -m training reproduce tables --data-dir DIR --prompts 3000 --epochs 2 --seeds 3
  python -m training reproduce cost --data-dir DIR --prompts 3000 --epochs 2
"""

PAPER_MODELS: Final = ("GPT-4", "Llama 3.1", "DeepSeek-R1")
PAPER_METHODS: Final[Mapping[str, tuple[float, float, float]]] = {
    "pairs": (0.96, 0.75, 0.61),
    "listmle": (0.69, 0.67, 0.50),
    "l1": (0.70, 0.64, 0.30),
}
PAPER_UNFILTERED: Final = (0.93, 0.71, 0.57)
METHODS: Final[Mapping[str, Objective]] = {
    "pointwise L1": "l1",
    "pointwise L1 on the log": "log-l1",
    "listwise ListMLE": "listmle",
    "RankNet": "ranknet",
    "explicit pairs (PARS)": "pairs",
    "in-batch all pairs (ours)": "all-pairs",
}

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One trained ranker of a table."""

    method: str
    objective: str
    delta: float
    backbone: str
    tau_b: float
    """Mean over the seeds."""
    tau_b_ci: tuple[float, float]
    """Over prompts, of the first seed."""
    paper: Sequence[float] | None
    """tau_b of the paper on its three models; None where it has no such row."""
    encoder_passes: int
    cpu_s: float
    history: Sequence[Mapping[str, float]]
    """Of the first seed."""
    mlflow_run_id: str
    """The same."""
    tau_b_by_seed: tuple[float, ...]


def main(argv: Sequence[str]) -> int:
    """Entry point of the command."""
    parser = make_parser("reproduce", "tables|cost [options]", DESCRIPTION)
    parser.add_argument("what", type=str, help="tables or cost")
    parser.add_argument("--data-dir", type=str | None, help="folder that holds the data sets")
    parser.add_argument("--mlruns-dir", type=str, default="mlruns", help="the MLflow store")
    parser.add_argument("--dataset", type=str, default="alpaca-vicuna7b")
    parser.add_argument("--prompts", type=int, default=3000, help="training prompts per row")
    parser.add_argument("--test-prompts", type=int | None, help="at most so many; default: all")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=1, help="trainings per row, from seed 0")
    parser.add_argument("--threads", type=int | None)
    parser.add_argument(
        "--backbones",
        type=str,
        nargs="+",
        default=["auto"],
        help="all-pairs is trained on each; the first one is used for the other tables",
    )
    parser.add_argument("--json", action="store_true", help="print the result as one JSON line")
    arguments = parser.parse_args(list(argv))
    if arguments.what not in ("tables", "cost"):
        raise ConfigError(f"cannot reproduce {arguments.what!r}; use tables or cost")
    if arguments.seeds < 1:
        raise ConfigError(f"seeds is {arguments.seeds}; use 1 or more")
    configure_logging()
    if arguments.what == "tables":
        reproduce, show = reproduce_tables, _print
    else:
        reproduce, show = reproduce_cost, _print_cost
    result = reproduce(_protocol(arguments), arguments)
    if arguments.json:
        print(json.dumps(without_nan(result), allow_nan=False))
    else:
        show(result)
    return 0


def reproduce_tables(protocol: TrainConfig, arguments: Any) -> dict[str, Any]:
    """Train every row and return the tables, the protocol and the bounds that go with them."""
    prepared = prepare(protocol, arguments.data_dir)
    first, *others = arguments.backbones

    def train(method: str, backbone: str = first, **changes: Any) -> Row:
        loss = replace(protocol.loss, **changes)
        encoder = replace(protocol.encoder, backbone=backbone)
        config = replace(protocol, loss=loss, encoder=encoder, name=f"table: {method}")
        return train_seeds(method, config, prepared, arguments)

    methods = [train(method, objective=objective) for method, objective in METHODS.items()]
    unfiltered = [
        train(f"{row.method}, delta 0", objective=row.objective, delta=0.0) for row in methods[-2:]
    ]
    backbones = [methods[-1]] + [
        train(f"all pairs on {name}", backbone=name, objective="all-pairs") for name in others
    ]
    test = prepared.splits.test
    lengths = observed(test)
    train_lengths = targets(prepared.splits.train, protocol.data.repeats)
    texts = [[item.prompt for item in part] for part in (prepared.splits.train, test)]
    return {
        "methods": [asdict(row) for row in methods],
        "delta": [asdict(row) for row in [*methods[-2:], *unfiltered]],
        "backbones": [asdict(row) for row in backbones],
        "tau_b_tfidf_ridge": tau_b(tfidf_ridge(texts[0], train_lengths, texts[1]), lengths),
        "ceiling": ceiling([item.lengths[:2] for item in test]),
        "gpt4_twice": gpt4_twice(arguments.data_dir),
        "cpu_s_to_pairs_tau_b": cpu_to_reach(methods[-1], methods[-2]),
        "gain_of_all_pairs": methods[-1].tau_b - methods[-2].tau_b,
        "protocol": asdict(protocol),
        "dataset": prepared.describe(),
    }


def reproduce_cost(protocol: TrainConfig, arguments: Any) -> dict[str, Any]:
    """Train by our settings and by the paper's protocol on as many prompts, and time both."""
    prepared = prepare(protocol, arguments.data_dir)
    backbone = arguments.backbones[0]
    config = replace(protocol, encoder=replace(protocol.encoder, backbone=backbone))
    ours = train_seeds("in-batch all pairs (ours)", config, prepared, arguments)
    config = paper_protocol(protocol, backbone)
    paper = train_seeds("the paper's protocol", config, prepared, arguments)
    return {
        "rows": [asdict(row) for row in (ours, paper)],
        "cpu_s_to_paper_tau_b": cpu_to_reach(ours, paper),
        "protocol": asdict(protocol),
        "dataset": prepared.describe(),
    }


def paper_protocol(protocol: TrainConfig, backbone: str) -> TrainConfig:
    """The recipe `pars` on the prompts, backbone and number of encoder passes of the tables."""
    pars = recipe("pars")
    return replace(
        pars,
        name="table: the paper's protocol",
        data=replace(pars.data, dataset=protocol.data.dataset),
        split=protocol.split,
        encoder=replace(pars.encoder, backbone=backbone),
        loss=replace(pars.loss, pairs_per_prompt=0.5),
        epochs=protocol.epochs,
        seed=protocol.seed,
        threads=protocol.threads,
    )


def train_seeds(method: str, config: TrainConfig, prepared: Prepared, arguments: Any) -> Row:
    """One row: the same training with each seed."""
    rows = [
        train_row(method, replace(config, seed=seed), prepared, arguments.mlruns_dir)
        for seed in range(arguments.seeds)
    ]
    taus = tuple(row.tau_b for row in rows)
    cpu_s = float(np.mean([row.cpu_s for row in rows]))
    return replace(rows[0], tau_b=float(np.mean(taus)), tau_b_by_seed=taus, cpu_s=cpu_s)


def train_row(method: str, config: TrainConfig, prepared: Prepared, mlruns_dir: str) -> Row:
    """Train one ranker as its own MLflow run and test it."""
    from training.export.onnx_models import torch_scores
    from training.ranker.data_module import tokenize
    from training.ranker.learning import learn, load_encoder
    from training.release.tracking import Tracker

    logger.info("training %s", method)
    encoder = load_encoder(config, 1)
    with Tracker(mlruns_dir, run_name=config.name) as tracker:
        tracker.log_params(asdict(config))
        with tempfile.TemporaryDirectory(prefix="lengthwise-row-") as folder:
            trained = learn(
                config, encoder, [prepared.splits], Path(folder), tracker.lightning_logger()
            )
        test = prepared.splits.test
        ids = tokenize(trained.tokenizer, [item.prompt for item in test]).ids
        scores, lengths = torch_scores(trained.scorer, ids), observed(test)
        value, cpu_s = tau_b(scores, lengths), round(trained.train_cpu_s, 3)
        tracker.log_metrics({"tau_b": value, "train_cpu_s": cpu_s})
    return Row(
        method=method,
        objective=config.loss.objective,
        delta=config.loss.delta,
        backbone=config.encoder.backbone,
        tau_b=value,
        tau_b_by_seed=(value,),
        tau_b_ci=tau_b_ci(scores, lengths),
        paper=_paper(config.loss),
        encoder_passes=trained.num_encoded,
        cpu_s=cpu_s,
        history=trained.history,
        mlflow_run_id=tracker.run_id,
    )


def cpu_to_reach(ours: Row, theirs: Row) -> dict[str, float]:
    """CPU seconds of each to the best validation tau_b of `theirs`; NaN where never reached."""
    goal = max(point["val/tau_b"] for point in theirs.history)
    reached = [p["cpu_s"] for p in ours.history if p["val/tau_b"] >= goal]
    needed = [p["cpu_s"] for p in theirs.history if p["val/tau_b"] >= goal]
    return {"val_tau_b": goal, "ours": reached[0] if reached else float("nan"), "theirs": needed[0]}


def gpt4_twice(data_dir: str | None) -> float | None:
    """tau_b between two releases of GPT-4 on AlpacaEval: how well it predicts itself."""
    from training.data.cards import load_data

    try:
        records = load_data("alpaca-eval", data_dir).records
    except DataError as error:
        logger.warning("the ceiling of GPT-4 cannot be had: %s", error)
        return None
    lengths: dict[str, dict[str, int]] = {"gpt4": {}, "gpt4_0314": {}}
    for record in records:
        if record.model in lengths:
            lengths[record.model][record.prompt] = record.output_tokens
    first, second = lengths.values()
    shared = [prompt for prompt in first if prompt in second]
    value = tau_b([first[p] for p in shared], [second[p] for p in shared])
    return value if shared else None


def _protocol(arguments: Any) -> TrainConfig:
    """The same for every row: no second head, so that a row is its objective and nothing else."""
    base = recipe("demo")
    return replace(
        base,
        data=replace(base.data, dataset=arguments.dataset),
        split=replace(
            base.split, train_prompts=arguments.prompts, test_prompts=arguments.test_prompts
        ),
        loss=LossConfig(log_length_weight=0),
        epochs=arguments.epochs,
        threads=arguments.threads,
    )


def _paper(loss: LossConfig) -> Sequence[float] | None:
    if loss.objective == "pairs" and loss.delta == 0:
        return PAPER_UNFILTERED
    return PAPER_METHODS.get(loss.objective)


def _print(result: Mapping[str, Any]) -> None:
    titles = {
        "methods": "Table II: ranking methods",
        "backbones": "Table III: backbones, trained with all pairs",
        "delta": "Table IV: the delta filter",
    }
    for name, title in titles.items():
        _print_table(title, result[name], "backbone" if name == "backbones" else "method")
    _print_conditions(result)


def _print_table(title: str, rows: Sequence[Mapping[str, Any]], label: str) -> None:
    print(f"{title}: tau_b\n{'':34}{'ours':>7}  95% interval   passes   CPU-s  paper, by model")
    for row in rows:
        low, high = row["tau_b_ci"]
        paper = " ".join(f"{value:.2f}" for value in row["paper"] or ()) or "-"
        print(
            f"{row[label]:34}{row['tau_b']:7.3f}  {low:.3f} to {high:.3f}"
            f"{row['encoder_passes']:9}{row['cpu_s']:8.0f}  {paper}"
        )
        if len(row["tau_b_by_seed"]) > 1:
            print(f"{'':34}by seed {' '.join(f'{value:.3f}' for value in row['tau_b_by_seed'])}")
    print()


def _print_cost(result: Mapping[str, Any]) -> None:
    _print_table("Cost of training", result["rows"], "method")
    _print_data(result)
    reach = result["cpu_s_to_paper_tau_b"]
    _print_reach("the paper's protocol", reach)
    print(f"the paper's protocol takes {reach['theirs'] / reach['ours']:.1f} times the CPU")


def _print_data(result: Mapping[str, Any]) -> None:
    dataset, protocol = result["dataset"], result["protocol"]
    print(
        f"ours: {dataset['id']}, {dataset['train_prompts']} training prompts, "
        f"{protocol['epochs']} epochs, {dataset['test_prompts']} test prompts, seeds from "
        f"{protocol['seed']}; the paper: Alpaca answered by {', '.join(PAPER_MODELS)}"
    )


def _print_conditions(result: Mapping[str, Any]) -> None:
    _print_data(result)
    print(f"TF-IDF + ridge on the same prompts      {result['tau_b_tfidf_ridge']:.3f}")
    print(f"all pairs over explicit pairs          {result['gain_of_all_pairs']:+.3f}")
    _print_reach("explicit pairs", result["cpu_s_to_pairs_tau_b"])
    print(f"noise ceiling, another sample           {result['ceiling']:.3f}")
    if result["gpt4_twice"] is not None:
        print(
            f"two releases of GPT-4, AlpacaEval       {result['gpt4_twice']:.3f}: the paper's .96 "
            "is above what GPT-4 itself can tell about its next answer"
        )


def _print_reach(name: str, reach: Mapping[str, float]) -> None:
    print(
        f"CPU seconds to validation tau_b {reach['val_tau_b']:.3f}   "
        f"all pairs {reach['ours']:.0f}, {name} {reach['theirs']:.0f}"
    )
