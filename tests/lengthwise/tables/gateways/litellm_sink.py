"""Callback of LiteLLM's proxy: posts the rows that LiteLLM makes of a request to LENGTHWISE_SINK.

Runs in .venv-gateways. `standard` is LiteLLM's payload for callbacks, `spend` its row of the table
LiteLLM_SpendLogs, which needs no database to be made.
"""

import json
import os
from typing import Any
from urllib.request import urlopen

from litellm.integrations.custom_logger import CustomLogger
from litellm.proxy.spend_tracking.spend_tracking_utils import get_logging_payload


class Sink(CustomLogger):
    """Posts both rows of an ended call."""

    async def async_log_success_event(self, **call: Any) -> None:
        standard = call["kwargs"]["standard_logging_object"]
        rows = {"standard": standard, "spend": get_logging_payload(**call)}
        text = {name: json.dumps(row, default=str) for name, row in rows.items()}
        urlopen(os.environ["LENGTHWISE_SINK"], json.dumps(text).encode()).close()

    async def async_log_failure_event(self, **call: Any) -> None:
        # What the proxy's own hook fills in before it makes the row of the table.
        call["kwargs"]["completion_start_time"] = call["end_time"]
        call["kwargs"]["litellm_params"]["metadata"]["status"] = "failure"
        await self.async_log_success_event(**call)


sink = Sink()
