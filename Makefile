# make demo    set up, train a ranker on real prompts, serve it, and watch a real engine answer sooner
# make test    set up, then lint, types and the whole CPU test suite (what .ci/run calls)
# make setup   only build .venv (repaired when broken; quick when it is ready)
# make lint    ruff and mypy
# make mutants share of small faults that the fast tests notice (an hour; see tests/mutants.py)
# make bench   the benchmarks behind the README's speed figures
# make clean   remove what the demo and the tests made, and .venv
#
# Data: LENGTHWISE_DATA, else the folder beside the checkout, else the Hugging Face hub, else a small
# synthetic set; the commands say which they took. VLLM=cpu|gpu|none chooses the engine build.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup demo test lint mutants bench clean

export LENGTHWISE_DATA ?= $(abspath $(wildcard ../shared/data))
export OMP_WAIT_POLICY ?= PASSIVE
export TOKENIZERS_PARALLELISM ?= false
PY := .venv/bin/python

help:
	@sed -n 's/^# make /make /p' Makefile

setup:
	@.ci/setup

demo: setup
	@$(PY) -m training fit demo --out mlruns/demo
	@$(PY) -m scheduler_adapters demo --trained mlruns/demo

lint: setup
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check .
	@.venv/bin/mypy

# Engine tests get a process per file: a second engine in one process breaks the first one's groups.
test: export OMP_NUM_THREADS = 1
test: lint
	@$(PY) -m pytest -q
	@$(PY) -m pytest -q -m slow
	@for file in $$(grep -rl 'mark\.vllm' tests --include='test_*.py' | sort); do \
		$(PY) -m pytest -q -m vllm $$file; done

mutants: setup
	@$(PY) -m pip install --disable-pip-version-check -qq -c .ci/constraints.txt -e ".[mutants]"
	@$(PY) tests/mutants.py

bench: setup
	@$(PY) -m scoring_service bench
	@$(PY) -m scheduler_adapters bench

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info
	find mlruns -mindepth 1 ! -name README.md -delete
