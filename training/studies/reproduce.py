"""`python -m training reproduce`: the paper's tables, and its cost, on the data at hand."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from lengthwise.agreement import tau_b
from lengthwise.command_line.options import POSITIONAL
from lengthwise.errors import ConfigError, DataError, at_least
from training.commands.options import OutputOptions, StoreOptions, print_result
from training.config import LossConfig, TrainConfig
from training.data.cards import load_data
from training.data.labelled_splits import LabelledSplits, load_splits
from training.data.labels import observed
from training.evaluation.baselines import tfidf_ridge
from training.evaluation.ranking_metrics import ceiling
from training.recipes import recipe
from training.studies.table_rows import PAPER_MODELS, Row, cpu_to_reach, train_seeds

METHODS: Final[Mapping[str, str]] = {
    "pointwise L1": "l1",
    "pointwise L1 on the log": "log-l1",
    "listwise ListMLE": "listmle",
    "RankNet": "ranknet",
    "explicit pairs (PARS)": "pairs",
    "in-batch all pairs (ours)": "all-pairs",
}

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ReproduceOptions:
    """The study, and the size of its rows."""

    what: str = field(metadata=POSITIONAL)
    """tables or cost."""
    data_dir: str | None = None
    """Folder that holds the data sets."""
    dataset: str = "alpaca-vicuna7b"
    prompts: int = 3000
    """Training prompts per row."""
    test_prompts: int | None = None
    """At most so many; default: all."""
    epochs: int = 2
    seeds: int = 1
    """Trainings per row, from seed 0."""
    threads: int | None = None
    """CPU threads of torch."""
    backbones: tuple[str, ...] = ("auto",)
    """Explicit pairs are trained on each; the first one is used for the other tables."""

    def __post_init__(self) -> None:
        if self.what not in ("tables", "cost"):
            raise ConfigError(f"cannot reproduce {self.what!r}; use tables or cost")
        at_least("seeds", self.seeds, 1)


def main(options: ReproduceOptions, store: StoreOptions, output: OutputOptions) -> None:
    """Print the tables of PARS (Kendall tau_b) with ours beside the paper's.

    Every row of ours is trained here, on the same prompts, with the same number of encoder passes,
    and tested on the same held-out prompts; its MLflow run is named. The paper's columns are its
    own data (Alpaca prompts answered by GPT-4, Llama 3.1 and DeepSeek-R1), which is not public:
    compare orders and gains, not values. With --seeds a row is the mean over that many trainings.

    `cost` trains all pairs by our settings and explicit pairs by the paper's protocol (pooler,
    constant 2e-5, batches of 128 pairs, every prompt padded to 128 tokens) on as many prompts, and
    prints when each reaches the best validation tau_b of the second, which takes three times the
    CPU of the first.

    examples:
      python -m training reproduce tables --data-dir DIR --prompts 3000 --epochs 2 --seeds 3
      python -m training reproduce cost --data-dir DIR --prompts 3000 --epochs 2
    """
    study, show = {"tables": (_tables, _print), "cost": (_cost, _print_cost)}[options.what]
    protocol = _protocol(options)
    labelled = load_splits(protocol, options.data_dir)
    result = study(options, protocol, labelled, store.mlruns_dir) | {
        "protocol": asdict(protocol),
        "dataset": labelled.describe(),
        "banner": labelled.banner,
    }
    print_result(result, output, lambda: show(result))


def _tables(
    options: ReproduceOptions, protocol: TrainConfig, labelled: LabelledSplits, mlruns_dir: str
) -> dict[str, Any]:
    first, *others = options.backbones

    def train(method: str, backbone: str = first, **changes: Any) -> Row:
        loss = replace(protocol.loss, **changes)
        encoder = replace(protocol.encoder, backbone=backbone)
        config = replace(protocol, loss=loss, encoder=encoder, name=f"table: {method}")
        return train_seeds(method, config, labelled, mlruns_dir, options.seeds)

    methods = [train(method, objective=objective) for method, objective in METHODS.items()]
    unfiltered = [
        train(f"{row['method']}, delta 0", objective=row["objective"], delta=0.0)
        for row in methods[-2:]
    ]
    backbones = [methods[-2]] + [
        train(f"explicit pairs on {name}", backbone=name, objective="pairs") for name in others
    ]
    test = labelled.splits.test
    ridge = tfidf_ridge(labelled.splits.train, protocol.data.repeats, test)
    return {
        "methods": methods,
        "delta": [*methods[-2:], *unfiltered],
        "backbones": backbones,
        "tau_b_tfidf_ridge": tau_b(ridge, observed(test)),
        "ceiling": ceiling([item.lengths[:2] for item in test]),
        "gpt4_twice": gpt4_twice(options.data_dir),
        "cpu_s_to_pairs_tau_b": cpu_to_reach(methods[-1], methods[-2]),
        "gain_of_all_pairs": methods[-1]["tau_b"] - methods[-2]["tau_b"],
    }


def _cost(
    options: ReproduceOptions, protocol: TrainConfig, labelled: LabelledSplits, mlruns_dir: str
) -> dict[str, Any]:
    backbone = options.backbones[0]
    config = replace(protocol, encoder=replace(protocol.encoder, backbone=backbone))
    where = labelled, mlruns_dir, options.seeds
    ours = train_seeds("in-batch all pairs (ours)", config, *where)
    paper = train_seeds("the paper's protocol", paper_protocol(protocol, backbone), *where)
    return {
        "rows": [ours, paper],
        "cpu_s_to_paper_tau_b": cpu_to_reach(ours, paper),
    }


def paper_protocol(protocol: TrainConfig, backbone: str) -> TrainConfig:
    """Return the recipe `pars` with the prompts, backbone and encoder passes of the tables."""
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


def gpt4_twice(data_dir: str | None) -> float | None:
    """Return tau_b between two releases of GPT-4 on AlpacaEval, its noise ceiling."""
    try:
        records = load_data("alpaca-eval", data_dir).records
    except DataError as error:
        logger.warning("the ceiling of GPT-4 cannot be computed: %s", error)
        return None
    first, second = (
        {record.prompt: record.output_tokens for record in records if record.model == name}
        for name in ("gpt4", "gpt4_0314")
    )
    shared = [prompt for prompt in first if prompt in second]
    return tau_b([first[p] for p in shared], [second[p] for p in shared]) if shared else None


def _protocol(options: ReproduceOptions) -> TrainConfig:
    base = recipe("demo")
    return replace(
        base,
        data=replace(base.data, dataset=options.dataset),
        split=replace(base.split, train_prompts=options.prompts, test_prompts=options.test_prompts),
        loss=LossConfig(log_length_weight=0),
        epochs=options.epochs,
        threads=options.threads,
    )


def _print(result: Mapping[str, Any]) -> None:
    titles = {
        "methods": "Table II: ranking methods",
        "backbones": "Table III: backbones, trained with explicit pairs",
        "delta": "Table IV: the delta filter",
    }
    for name, title in titles.items():
        _print_table(title, result[name], "backbone" if name == "backbones" else "method")
    _print_data(result)
    print(f"TF-IDF + ridge on the same prompts      {result['tau_b_tfidf_ridge']:.3f}")
    print(f"all pairs over explicit pairs          {result['gain_of_all_pairs']:+.3f}")
    _print_reach("explicit pairs", result["cpu_s_to_pairs_tau_b"])
    print(f"noise ceiling, another sample           {result['ceiling']:.3f}")
    if result["gpt4_twice"] is not None:
        print(
            f"two releases of GPT-4, AlpacaEval       {result['gpt4_twice']:.3f}: the paper's .96 "
            "is above GPT-4's own agreement with its next answer"
        )


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


def _print_reach(name: str, reach: Mapping[str, float]) -> None:
    print(
        f"CPU seconds to validation tau_b {reach['val_tau_b']:.3f}   "
        f"all pairs {reach['ours']:.0f}, {name} {reach['theirs']:.0f}"
    )
