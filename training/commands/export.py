"""`python -m training export`: write the bundle of a run into a folder."""

from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from lengthwise.errors import ConfigError
from training.commands.options import OutputOptions, StoreOptions, print_result
from training.release.rebuild import export, rebuild
from training.release.registry import figures_of, open_store


@dataclass(frozen=True, kw_only=True)
class ExportOptions(StoreOptions):
    """A run, and the folder for its bundle."""

    run: str
    """MLflow run; `list` shows them."""
    out: Path
    """Folder of the bundle; an older bundle there is replaced."""
    rebuild: bool = False
    """Export the run's checkpoint again."""
    dataset: str | None = None
    """With --rebuild: the run's table or card, if it moved."""
    data_dir: str | None = None
    """With --rebuild: folder that holds the run's data set."""

    def __post_init__(self) -> None:
        if not self.rebuild and (self.dataset or self.data_dir):
            raise ConfigError("--dataset and --data-dir are read by --rebuild only; add it")


def main(options: ExportOptions, output: OutputOptions) -> None:
    """Write the bundle of a run into a folder, verified; of several lengths, the first.

    --rebuild makes it again from the run's checkpoint, by the export of this version, without
    training. It is measured on the run's own prompts, found again in its data set; no others will
    do, because INT8 takes its scales from training prompts.

    examples:
      python -m training export --run 1e0fe0bcf2f9495ba1af7db95f5aa149 --out ranker
      python -m training export --run 1e0fe0bcf2f9495ba1af7db95f5aa149 --out ranker --rebuild
    """
    with open_store(options.mlruns_dir) as store:
        if options.rebuild:
            bundle = rebuild(store, options.run, options.out, options.dataset, options.data_dir)
        else:
            bundle = export(store, options.run, options.out)
    line = f"{bundle.path}: {bundle.manifest.name} revision {bundle.manifest.revision}"
    result = figures_of(bundle.manifest) | {"bundle": str(bundle.path)}
    serve = f"python -m scoring_service serve --bundle {quote(str(bundle.path))}"
    print_result(result, output, lambda: print(line), serve)
