"""Ray that takes its time."""

from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def patient_ray():
    """Return a patch of the environment in which Ray waits five minutes for its own processes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_gcs_server_port_wait_time_s", "300")
        for name in ("READY", "HEALTH"):
            patch.setenv(f"RAY_SERVE_PROXY_{name}_CHECK_TIMEOUT_S", "300")
        for module in ("api", "client"):
            patch.setattr(f"ray.serve._private.{module}.HTTP_PROXY_TIMEOUT", 300)
        patch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[3]))
        yield patch
