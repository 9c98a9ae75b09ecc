# make demo    set up, train a ranker on real prompts, serve it, and watch a real engine answer sooner
# make play    after the demo: its ranker, vLLM and MLflow on loopback, and commands to try, until Ctrl-C
# make check   lint, types and the fast tests: three minutes, for the daily loop
# make test    set up, then lint, types and the whole CPU test suite, on a machine without data too
# make test-data  the tests that need the data folder (.ci/run calls both)
# make setup   only build .venv (repaired when broken; quick when it is ready)
# make lint    ruff and mypy; versions of packages as pinned
# make docs    the site of docs/ into site/; every link is checked
# make soak    ten minutes of hostile clients against the scoring service (see benchmarks/soak/service.py), then
#              serve-vllm with full disks, an absent scorer and stops (see benchmarks/soak/engine.py; root),
#              three thousand streams through gateways that are killed (benchmarks/soak/cluster.py),
#              floods of one client, and places of long tasks in frames by the demo's ranker
# make mutants MODULE=FILE  small faults in a file that the tests of its room do not notice (Cosmic Ray)
# make bench   the benchmarks behind the README's speed figures
# make dist    wheel, source archive and list of parts (CycloneDX) in dist/
# make pins    write .ci/constraints.txt from what .venv holds
# make clean   remove what the demo and the tests made, and .venv
#
# Data: LENGTHWISE_DATA, else the folder beside the checkout, else smollm2-instruct, a part of the
# checkout; the commands say which they took. VLLM=cpu|gpu|none
# chooses the engine build, JOBS how many processes test beside each other (6).

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup demo play check test test-data docs lint soak mutants bench clean dist pins

export LENGTHWISE_DATA ?= $(abspath $(wildcard ../shared/data))
export OMP_WAIT_POLICY ?= PASSIVE
export TOKENIZERS_PARALLELISM ?= false
PY := .venv/bin/python
JOBS ?= 6
MODULE ?= scheduler_adapters/planner/residents.py

help:
	@sed -n 's/^# make /make /p' Makefile

setup:
	@.ci/setup

# Without a data folder the demo trains on the lengths of the chat model that it serves. By group: on no
# wording that it is tested on.
demo: setup
	@$(PY) -m training fit demo --out mlruns/demo $$( [ -n "$$LENGTHWISE_DATA" ] || \
		echo --data.dataset smollm2-instruct --split.by-group true --split.test-fraction 0.3 --split.val-fraction 0.1 --split.train-prompts 1200 --split.test-prompts 800 --epochs 1 )
	@$(PY) -m scheduler_adapters demo --trained mlruns/demo

play: setup
	@$(PY) -m scheduler_adapters play --trained mlruns/demo

lint: setup
	@.ci/pins
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check .
	@.venv/bin/mypy

# Compiled bytecode is kept, whatever the shell says: these are hundreds of short processes.
check test test-data: export OMP_NUM_THREADS = 1
check test test-data: export PYTHONDONTWRITEBYTECODE =
check: lint
	@$(PY) tests/suite.py --only fast
test: lint
	@$(PY) tests/suite.py --jobs $(JOBS)
test-data: setup
	@$(PY) tests/suite.py --only data

docs: setup
	@NO_MKDOCS_2_WARNING=true $(PY) -m mkdocs build --strict --quiet
	@echo "docs: open site/index.html"

# The list of parts is of the set-up that the tests ran in.
dist: setup
	@$(PY) -m pip install --disable-pip-version-check -qq -c .ci/constraints.txt -e ".[release]"
	@$(PY) -m build --outdir dist .
	@.venv/bin/cyclonedx-py environment .venv/bin/python --pyproject pyproject.toml \
		--mc-type library --output-reproducible --of JSON -o dist/lengthwise.cdx.json

pins:
	@.ci/pins --write

soak: setup
	@$(PY) -m benchmarks soak-service
	@LENGTHWISE_FLOOD_S=60 $(PY) -m pytest -q tests/scoring_service/deploy/test_envoy.py
	@LENGTHWISE_ROWS=1000000 $(PY) -m pytest -q -m slow -k bounded_memory tests/training/ranker/test_data_module.py
	@$(PY) -m benchmarks soak-engine
	@$(PY) -m benchmarks soak-cluster --streams 3000 --rounds 0 --gateways 2
	@$(PY) tests/scheduler_adapters/policies/floods.py
	@$(PY) -m pytest -q -s -m vllm tests/scheduler_adapters/commands/test_serve_vllm_live.py -k flood
	@[ ! -e mlruns/demo ] || $(PY) -m benchmarks frames mlruns/demo

mutants: setup
	@$(PY) -m pip install --disable-pip-version-check -qq -c .ci/constraints.txt -e ".[mutants]"
	@rm -f mlruns/mutants.*
	@sed "s|MODULE|$(MODULE)|; s|TESTS|tests/$(dir $(MODULE))|" .ci/mutants.toml > mlruns/mutants.toml
	@.venv/bin/cosmic-ray init mlruns/mutants.toml mlruns/mutants.sqlite
	@.venv/bin/cr-filter-operators mlruns/mutants.sqlite mlruns/mutants.toml
	@.venv/bin/cosmic-ray exec mlruns/mutants.toml mlruns/mutants.sqlite
	@.venv/bin/cr-report --surviving-only --show-diff mlruns/mutants.sqlite

bench: setup
	@$(PY) -m benchmarks service
	@$(PY) -m benchmarks simulator

clean:
	rm -rf .venv .venv-gateways site .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info
	find mlruns -mindepth 1 ! -name README.md -delete
