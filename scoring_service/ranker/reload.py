"""Hot reload: a verified new bundle replaces the served one, a bad one is refused.

A candidate is verified (checksums), loaded, run, timed and compared with its golden prompts before
it serves. The swap is one assignment: a call under way keeps its model.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from lengthwise.bundle import ModelBundle
from lengthwise.errors import BundleError, LengthwiseError
from scoring_service.ranker.model import RankerModel

_log = logging.getLogger(__name__)
POLL_S: Final = 5.0
"""Interval between polls, seconds."""
Locate: TypeAlias = Callable[[], Path]
"""Returns the folder of the bundle to serve now; raises BundleError if there is none."""


@dataclass(eq=False)
class ModelReloader:
    """Polls for a new bundle and swaps the `model` of a service, or of the ranker in an engine."""

    served: Any
    locate: Locate
    count: Callable[[str], object]
    """Called with "loaded" or "refused" after each attempt."""
    precision: str = "auto"
    verify: Callable[[Path], ModelBundle] = ModelBundle.load

    def __post_init__(self) -> None:
        self._seen: list[tuple[str, str, int, int]] = []
        self._trouble = ""
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="reload", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """Stop polling; wait at most `timeout_s` for a load under way."""
        self._stopped.set()
        self._thread.join(timeout_s)

    def poll(self) -> None:
        """Poll once. A bundle that cannot be loaded leaves the old model in service."""
        old: RankerModel = self.served.model
        try:
            folder = self.locate()
            fingerprint = _fingerprint(folder)
        except (LengthwiseError, OSError) as error:
            if str(error) != self._trouble:
                _log.warning("no bundle to reload, revision %s serves on: %s", old.revision, error)
            self._trouble = str(error)
            return
        if fingerprint == self._seen:
            return
        # Before the attempt: the same files would fail again.
        self._seen = fingerprint
        try:
            bundle = self.verify(folder)
            if bundle.manifest.revision == old.revision:
                return
            for name in ("name", "label"):
                new, present = getattr(bundle.manifest, name), getattr(old.manifest, name)
                if new != present:
                    raise BundleError(
                        f"{bundle.path} has {name} {new!r}, and {present!r} is served; "
                        "start another server for it"
                    )
            self.served.model = RankerModel.load(bundle, self.precision)
        except LengthwiseError as error:
            self.count("refused")
            _log.error("bundle refused, revision %s serves on: %s", old.revision, error)
            return
        self.count("loaded")
        _log.warning("revision %s took over from %s", bundle.manifest.revision, old.revision)

    def _watch(self) -> None:
        while not self._stopped.wait(POLL_S):
            try:
                self.poll()
            except Exception:
                _log.exception("looking for a new bundle failed; the old one serves")


def _fingerprint(folder: Path) -> list[tuple[str, str, int, int]]:
    """Return a value that changes with any file of the folder, also during a copy."""
    return sorted(
        (str(folder), path.name, path.stat().st_mtime_ns, path.stat().st_size)
        for path in folder.iterdir()
    )
