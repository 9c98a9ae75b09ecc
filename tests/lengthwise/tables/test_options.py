"""Options of reading are the same in every command that reads a log."""

from dataclasses import fields

import pytest

from lengthwise.command_line.inspect_log import InspectOptions
from lengthwise.tables.options import RecordOptions, TraceOptions
from scheduler_adapters.commands.advise.command import AdviseConfig
from scheduler_adapters.commands.experiment_settings import Setup
from training.config import DataConfig
from training.data.labels import TableOptions


@pytest.mark.parametrize("kind", [DataConfig, TableOptions])
def test_commands_of_training_read_prompts_and_lengths(kind):
    assert {field.name for field in fields(RecordOptions)} <= {f.name for f in fields(kind)}


@pytest.mark.parametrize("kind", [AdviseConfig, Setup, InspectOptions])
def test_commands_that_replay_read_times_too(kind):
    assert {field.name for field in fields(TraceOptions)} <= {f.name for f in fields(kind)}
