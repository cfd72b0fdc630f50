# make demo      a real training on this machine that loses a node and goes on
# make cluster   a kind cluster with KubeRay, a bucket, the operator and a sample run, to try things on
# make test      everything that needs no cluster
# make test-ray  what touches Ray, on another version of it (RAY=2.58.0, the lowest, by default); writes docs/compatibility.md
# make test-torch  what touches PyTorch, on another version of it (PYTORCH=2.9.0, the lowest, by default); writes docs/compatibility.md
# make test-kubernetes  the operator on another API server (KUBERNETES=1.37.2); writes docs/compatibility.md
# make test-kuberay  what touches KubeRay, on another version of it (KUBERAY=1.7.0); writes docs/compatibility.md
# make test-kueue  queues, quota and preemption with Kueue's own controller (KUEUE=0.17.0); writes docs/compatibility.md
# make test-python  unit tests and trainings on another Python (PYTHON=python3.13); writes docs/compatibility.md
# make test-pythons  whether the locked packages have wheels for each Python; writes docs/compatibility.md
# make test-slow the tests on a real Ray that make test leaves out
# make test-browser  the page of a run, and those of trainingrun ui, in a real Chromium
# make test-stores  what a run needs of its bucket, on object stores of several makers; writes docs/stores.md
# make test-gpu  ranks on an NVIDIA GPU, with a PyTorch that has CUDA
# make test-frameworks  other frameworks on a real Ray: each killed, each preempted
# make test-all  make test, test-slow, test-browser, test-ray, test-frameworks, many more of the fuzzer's sequences, and outages of ten minutes
# make e2e       the common losses, on a kind cluster with real Ray (KEEP=1 leaves it running)
# make e2e-full  make e2e, further losses and outages, a sweep, other frameworks, what newcomers meet, ten minutes of make chaos
# make chaos     every scenario of tests/chaos at random times, on a kind cluster: three hours (CHAOS_SEED=… CHAOS_MINUTES=60 CHAOS_ONLY=text)
# make docs      the documents as a site, in build/site; every link is checked
# make publish-images  both images, for amd64 and arm64, into the registry of .ci/release.env; see docs/releasing.md
# make release   what else is published of a tagged commit, into dist/
# make bench     training beside torchrun and Ray Train alone (ONLY=stall: one part); writes docs/benchmarks.md
#
# pip's own settings (PIP_FIND_LINKS, PIP_INDEX_URL …) reach every pip that is called here.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
HELM = $$(PYTHONPATH=tests $(BIN)/python -m support.tools helm)
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
REVISION := $(shell git rev-parse --short HEAD 2>/dev/null || echo unknown)

# REGISTRY and SOURCE: where a release is.
include .ci/release.env
OPERATOR_IMAGE ?= trainingrun-operator:dev
TRAINING_IMAGE ?= trainingrun-torch:dev
# For development the local image of that name; a release is built on what the Dockerfiles name by digest.
BASE_IMAGE ?= python:3.11-slim-bookworm
RELEASE_BASE_IMAGE ?= $(shell sed -n 's/^ARG BASE_IMAGE=//p' training_images/Dockerfile)
# Frameworks in the training image: "lightning xgboost"; see docs/frameworks.md.
EXTRAS ?=
# What development and the image install where there is no PyTorch yet; the lock cannot name it by hash.
TORCH ?= torch==2.13.0
# The host's network, for registries that only the host reaches.
DOCKER_BUILD ?= docker build --network host
# A folder of this machine is unknown inside a build; an address is handed on.
PIP_ARGUMENTS = $(foreach name,PIP_FIND_LINKS PIP_INDEX_URL PIP_EXTRA_INDEX_URL,\
  $(if $(findstring ://,$($(name))),--build-arg $(name)))
BUILD_ARGUMENTS = --build-arg BASE_IMAGE='$(BASE_IMAGE)' --build-arg VERSION=$(VERSION) \
  --build-arg REVISION=$(REVISION) $(PIP_ARGUMENTS)

.PHONY: help venv demo cluster test test-slow test-browser test-gpu test-ray test-torch test-stores test-kubernetes test-kuberay test-kueue test-python .test-python test-pythons test-frameworks test-all test-unit lint format generate verify images release-images publish-images publish-framework-images release e2e e2e-full chaos bench docs lock clean
help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

venv: $(VENV)/.installed
$(VENV)/.installed: pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "$(PYTHON) must be Python 3.11 or newer: make PYTHON=/path/to/python3.11 …" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { \
	  echo "Python's venv module is missing (Debian: apt install python3-venv)" >&2; exit 1; }
	$(BIN)/pip install --quiet --require-hashes --no-deps --requirement requirements.lock
	$(BIN)/pip install --quiet '$(TORCH)'
	$(BIN)/pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

demo: venv
	$(BIN)/trainingrun run manifests/demo.yaml --local --preempt-after 8s

CLUSTER ?= trainingrun
cluster: venv
	PYTHONPATH=tests $(BIN)/python -m e2e.make_cluster $(CLUSTER)

# One file at a time in each, which has what its tests share.
TEST_PROCESSES ?= 2
test: lint verify
	$(BIN)/python -m pytest tests --ignore=tests/e2e --ignore=tests/benchmarks --ignore=tests/browser \
	  --ignore=tests/frameworks --ignore=tests/gpu --ignore=tests/kuberay --ignore=tests/kueue \
	  -m 'not slow' -n $(TEST_PROCESSES) --dist loadfile

# Two files at a time, each on a Ray of its own: what tests wait for takes more of the time than the CPUs.
test-slow: venv
	$(BIN)/python -m pytest tests/local -m slow -n $(TEST_PROCESSES) --dist loadfile

# A browser of the machine is needed: $CHROMIUM, or chromium on PATH (Debian: apt install chromium).
test-browser: venv
	$(BIN)/python -m pytest tests/browser

# One GPU is enough. PyTorch's wheels for Linux have CUDA, unless pip is told where others are.
test-gpu: venv
	$(BIN)/python -m pytest tests/gpu

# Servers are had once below ~/.cache by pip, Go, npm, Maven and apt-get; SeaweedFS compiles for some minutes.
test-stores: venv
	$(BIN)/python -m pytest tests/stores

test-unit: venv
	$(BIN)/python -m pytest tests/unit tests/image

COMPATIBILITY := PYTHONPATH=tests $(BIN)/python -m support.compatibility
# TESTS are the files or folders, for a part of it; the row counts what has passed in all calls on one commit.

# The lowest versions that pyproject.toml allows; the highest are those in requirements.lock and $(TORCH).
RAY ?= 2.58.0
PYTORCH ?= 2.9.0
RUNTIME_TESTS := $(wildcard tests/unit/test_runtime_*.py) $(patsubst %,tests/local/test_%.py,\
  real_loops prestarted_worker scripts storage_outages)
STATE_TESTS := $(wildcard tests/unit/test_runtime_*.py) $(patsubst %,tests/local/test_%.py,\
  real_loops large_state sharded survivors)
test-ray: .venv-ray-$(RAY)/.installed
	PYTHONPATH=tests .venv-ray-$(RAY)/bin/python -m support.compatibility Ray '$(RAY)' \
	  'make test-ray RAY=$(RAY)' $(or $(TESTS),$(RUNTIME_TESTS))
test-torch: .venv-torch-$(PYTORCH)/.installed
	PYTHONPATH=tests .venv-torch-$(PYTORCH)/bin/python -m support.compatibility PyTorch '$(PYTORCH)' \
	  'make test-torch PYTORCH=$(PYTORCH)' $(or $(TESTS),$(STATE_TESTS))

.venv-ray-%/.installed .venv-torch-%/.installed: $(VENV)/.installed .ci/version_venv.py
	$(BIN)/python .ci/version_venv.py $(@D) $(subst -,==,$(patsubst .venv-%,%,$(@D)))
	@touch $@

KUBERNETES ?= 1.30.14
test-kubernetes: venv
	KUBERNETES_VERSION='$(KUBERNETES)' $(COMPATIBILITY) Kubernetes '$(KUBERNETES)' \
	  'make test-kubernetes KUBERNETES=$(KUBERNETES)' $(or $(TESTS),tests/apiserver)

# $KUBERAY_CRDS, a folder, else the Go module; $KUBERAY_OPERATOR, else kuberay-operator in $KUBEBUILDER_ASSETS or on PATH.
KUBERAY ?= 1.6.0
test-kuberay: venv
	KUBERAY_VERSION='$(KUBERAY)' $(COMPATIBILITY) KubeRay '$(KUBERAY)' 'make test-kuberay KUBERAY=$(KUBERAY)' \
	  $(or $(TESTS),tests/kuberay tests/apiserver/test_rendered.py tests/apiserver/test_cluster_kuberay.py)

# Kueue is compiled from its Go module, once; KubeRay is had as above.
KUEUE ?= 0.17.0
test-kueue: venv
	KUEUE_VERSION='$(KUEUE)' $(COMPATIBILITY) Kueue '$(KUEUE)' 'make test-kueue KUEUE=$(KUEUE)' $(or $(TESTS),tests/kueue)

# On another Python than that of .venv: make test-python PYTHON=python3.13
test-python:
	$(MAKE) VENV='.venv-$(notdir $(PYTHON))' PYTHON='$(PYTHON)' .test-python
.test-python: venv
	$(COMPATIBILITY) Python "$$($(BIN)/python -c 'import sys; print("%d.%d" % sys.version_info[:2])')" \
	  'make test-python PYTHON=$(notdir $(PYTHON))' $(or $(TESTS),tests/unit $(patsubst %,tests/local/test_%.py,\
	  run_local real_loops scripts))

# The lock's own Python is the one that everything runs on.
PYTHONS ?= 3.12 3.13 3.14
test-pythons: venv
	TORCH='$(TORCH)' $(COMPATIBILITY) pythons 'make test-pythons' $(PYTHONS)

# The frameworks are in an environment of their own, which `make test` does not need.
FRAMEWORKS_VENV := .venv-frameworks
FRAMEWORK_LOCKS := $(wildcard training_images/frameworks/*.lock)
test-frameworks: $(FRAMEWORKS_VENV)/.installed
	$(FRAMEWORKS_VENV)/bin/python -m pytest -s tests/frameworks

$(FRAMEWORKS_VENV)/.installed: $(VENV)/.installed .ci/version_venv.py $(FRAMEWORK_LOCKS)
	$(BIN)/python .ci/version_venv.py $(FRAMEWORKS_VENV) $(FRAMEWORK_LOCKS)
	@touch $@

# Fifty times the sequences of `make test`, and other ones at each run: a failure prints its sequence. Then
# an outage of ten minutes at each place where one can hurt, several at a time.
test-all: test test-slow test-browser test-ray test-frameworks
	TRAININGRUN_FUZZ_STORIES=5000 TRAININGRUN_FUZZ_RANDOM=1 \
	  $(BIN)/python -m pytest tests/unit/test_fuzz_reconciling.py tests/apiserver/test_untrusted.py
	TEST_OUTAGE_SECONDS=600 $(BIN)/python -m pytest tests/local/test_storage_outages.py -n 3

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
	$(BIN)/python .ci/layers.py
	$(BIN)/python .ci/release_names.py
	helm=$(HELM) && $(BIN)/python .ci/install_manifest.py "$$helm" > manifests/.install.yaml
	mv manifests/.install.yaml manifests/install.yaml

verify: venv
	$(BIN)/python -m trainingrun.api.generate --check
	$(BIN)/python .ci/layers.py --check
	$(BIN)/python .ci/release_names.py --check
	$(BIN)/python -m pytest -q tests/chart/test_installing.py -k generate

images:
	$(DOCKER_BUILD) $(BUILD_ARGUMENTS) --file operator/Dockerfile --tag $(OPERATOR_IMAGE) .
	$(DOCKER_BUILD) $(BUILD_ARGUMENTS) --build-arg TORCH='$(TORCH)' --build-arg EXTRAS='$(EXTRAS)' \
	  --file training_images/Dockerfile --tag $(TRAINING_IMAGE) .

# A tag may be moved to another image; a digest names one image for ever.
.PHONY: .named-base .of-a-tag
.named-base:
	@case '$(RELEASE_BASE_IMAGE)' in *@sha256:*) ;; *) \
	  echo "RELEASE_BASE_IMAGE is $(RELEASE_BASE_IMAGE); name a release's base by digest: NAME:TAG@sha256:..." >&2; \
	  exit 1;; esac
release-images: .named-base
	$(MAKE) images BASE_IMAGE='$(RELEASE_BASE_IMAGE)'

# Each image lists its packages and says how it was built (SBOM and provenance), and is pushed; what it was pushed
# as is noted in build/images, from where `make release` takes its digest. No address of a package registry is
# handed on, as for `make images`: the provenance would show it.
PLATFORMS ?= linux/amd64,linux/arm64
PUBLISH = docker buildx build --platform '$(PLATFORMS)' --sbom=true --provenance=mode=max --push \
  --build-arg BASE_IMAGE='$(RELEASE_BASE_IMAGE)' --build-arg VERSION=$(VERSION) --build-arg REVISION=$(REVISION)
PUBLISH_TRAINING = $(PUBLISH) --build-arg TORCH='$(TORCH)' --file training_images/Dockerfile
.of-a-tag: venv
	@$(BIN)/python .ci/release.py --check
publish-images: .named-base .of-a-tag
	mkdir -p build/images
	$(PUBLISH) --file operator/Dockerfile --metadata-file build/images/operator.json \
	  --tag $(REGISTRY)/trainingrun-operator:$(VERSION) .
	$(PUBLISH_TRAINING) --metadata-file build/images/torch.json --tag $(REGISTRY)/trainingrun-torch:$(VERSION) .

# The training image with one framework more. DeepSpeed has no wheel, and the base no compiler.
FRAMEWORK_IMAGES ?= $(filter-out deepspeed,$(basename $(notdir $(FRAMEWORK_LOCKS))))
publish-framework-images: $(FRAMEWORK_IMAGES:%=.publish-%)
.publish-%: .named-base .of-a-tag
	$(PUBLISH_TRAINING) --build-arg EXTRAS=$* --tag $(REGISTRY)/trainingrun-$*:$(VERSION) .

pushed_digest = $(shell sed -n 's/.*"containerd.image.digest": *"\([^"]*\)".*/\1/p' build/images/$(1).json 2>/dev/null)
OPERATOR_DIGEST ?= $(call pushed_digest,operator)
TRAINING_DIGEST ?= $(call pushed_digest,torch)
release: venv
	helm=$(HELM) && $(BIN)/python .ci/release.py "$$helm" '$(OPERATOR_DIGEST)' '$(TRAINING_DIGEST)'

e2e: venv
	$(BIN)/python -m pytest -s tests/e2e --ignore=tests/e2e/full

e2e-full: venv
	$(BIN)/python -m pytest -s tests/e2e/test_*.py tests/e2e/full

chaos: venv
	CHAOS_MINUTES=$(or $(CHAOS_MINUTES),all) $(BIN)/python -m pytest -s tests/e2e/full/test_chaos.py

ONLY ?=
bench: venv
	$(BIN)/python tests/benchmarks/bench.py $(if $(ONLY),--only $(ONLY))

DOCS_VENV := .venv-docs
docs: $(DOCS_VENV)/.installed
	$(DOCS_VENV)/bin/python .ci/site.py

$(DOCS_VENV)/.installed: .ci/docs.lock
	$(PYTHON) -m venv $(DOCS_VENV)
	$(DOCS_VENV)/bin/pip install --quiet --require-hashes --no-deps --requirement .ci/docs.lock
	@touch $@

# The pin is what development uses; the library itself takes any torch from pyproject.toml's range.
lock: venv
	$(BIN)/python .ci/lock.py '$(TORCH)'

clean:
	rm -rf $(VENV) .venv-ray-* .venv-torch-* .venv-python* .venv-frameworks .venv-docs build dist tests/.artifacts .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
