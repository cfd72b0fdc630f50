# make demo    a real training on this machine that loses a node and goes on
# make test    everything that needs no cluster
# make e2e     everything else, on a kind cluster with real Ray (KEEP=1 leaves it running)
#
# pip's own settings (PIP_FIND_LINKS, PIP_INDEX_URL …) reach every pip that is called here.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
HELM = $$(PYTHONPATH=tests $(BIN)/python -m support.tools helm)
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
REVISION := $(shell git rev-parse --short HEAD 2>/dev/null || echo unknown)

OPERATOR_IMAGE ?= trainingrun-operator:dev
TRAINING_IMAGE ?= trainingrun-torch:dev
BASE_IMAGE ?= python:3.11-slim-bookworm
# The host's network, for registries that only the host reaches.
DOCKER_BUILD ?= docker build --network host
# A folder of this machine is unknown inside a build; an address is handed on.
PIP_ARGUMENTS = $(foreach name,PIP_FIND_LINKS PIP_INDEX_URL PIP_EXTRA_INDEX_URL,\
  $(if $(findstring ://,$($(name))),--build-arg $(name)))
BUILD_ARGUMENTS = --build-arg BASE_IMAGE=$(BASE_IMAGE) --build-arg VERSION=$(VERSION) \
  --build-arg REVISION=$(REVISION) $(PIP_ARGUMENTS)

.PHONY: help venv demo test test-unit lint format generate verify images e2e lock clean
help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

venv: $(VENV)/.installed
$(VENV)/.installed: pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "$(PYTHON) must be Python 3.11 or newer: make PYTHON=/path/to/python3.11 …" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { \
	  echo "Python's venv module is missing (Debian: apt install python3-venv)" >&2; exit 1; }
	$(BIN)/pip install --quiet --editable '.[dev]' --constraint requirements.lock
	@touch $@

demo: venv
	$(BIN)/trainingrun run manifests/demo.yaml --local --preempt-after 8s

test: lint verify
	$(BIN)/python -m pytest tests --ignore=tests/e2e --ignore=tests/benchmarks

test-unit: venv
	$(BIN)/python -m pytest tests/unit tests/image

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: venv
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

generate: venv
	$(BIN)/python -m trainingrun.api.generate
	helm=$(HELM) && $(BIN)/python .ci/install_manifest.py "$$helm" > manifests/.install.yaml
	mv manifests/.install.yaml manifests/install.yaml

verify: venv
	$(BIN)/python -m trainingrun.api.generate --check
	$(BIN)/python -m pytest -q tests/chart/test_installing.py -k generate

images:
	$(DOCKER_BUILD) $(BUILD_ARGUMENTS) --file operator/Dockerfile --tag $(OPERATOR_IMAGE) .
	$(DOCKER_BUILD) $(BUILD_ARGUMENTS) --file training_images/Dockerfile --tag $(TRAINING_IMAGE) .

e2e: venv
	$(BIN)/python -m pytest -s tests/e2e

# The pin is what development uses; the library itself takes any torch from pyproject.toml's range.
lock: venv
	$(BIN)/python .ci/lock.py torch==2.13.0 > .requirements.lock && mv .requirements.lock requirements.lock

clean:
	rm -rf $(VENV) build dist tests/.artifacts .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
