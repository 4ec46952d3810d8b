# One truth for every check: people and CI run these targets. `make` alone is `make check`,
# `make help` lists them all. Needs nothing but Python 3.11+ and make (GNU make 3.81 will do).

VENV := .venv
BIN := $(VENV)/bin
PROMPT := Write one short sentence about the sea.
ARGS ?=

# What MLX runs on: metal (macOS), cuda (an NVIDIA driver is there) or cpu. `make BACKEND=cuda` overrides.
ifndef BACKEND
BACKEND := $(shell if [ "$$(uname -s)" = Darwin ]; then echo metal; \
	elif command -v nvidia-smi >/dev/null 2>&1 || [ -e /proc/driver/nvidia/version ]; then echo cuda; \
	else echo cpu; fi)
endif
RUN_metal := .
RUN_cuda := .[cuda]
RUN_cpu := .[cpu]
DEV_metal := .[dev]
DEV_cuda := .[cuda,dev]
DEV_cpu := .[cpu,dev]
ifndef RUN_$(BACKEND)
$(error BACKEND is metal, cuda or cpu, not "$(BACKEND)")
endif

# Stamps: what is installed in the environment. A changed pyproject.toml installs again.
INSTALLED := $(VENV)/.installed-$(BACKEND)
DEVELOPED := $(VENV)/.developed-$(BACKEND)
PIP := $(BIN)/python -m pip --disable-pip-version-check install
# Two BLAS threads that spin on a busy machine run ten times slower than one.
PYTEST := OPENBLAS_NUM_THREADS=$${OPENBLAS_NUM_THREADS:-1} $(BIN)/python -m pytest

export PROMPT
ifdef PYTHON
export PYTHON
endif

.PHONY: check
check: lint types arch test ## everything CI checks: lint, types, arch, test

.PHONY: help
help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1	\2/p' Makefile | expand -t 12

.PHONY: try
try: $(INSTALLED) ## install, bring the starter model, answer a prompt: make try PROMPT="..."
	@$(BIN)/mlxcel generate --max-tokens 48 "$$PROMPT"

.PHONY: setup
setup: $(DEVELOPED) ## .venv with the right backend and the development tools

.PHONY: fmt
fmt: $(DEVELOPED) ## format, and fix what ruff can fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

.PHONY: lint
lint: $(DEVELOPED) ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

.PHONY: types
types: $(DEVELOPED) ## mypy, strict
	$(BIN)/mypy

.PHONY: arch
arch: $(DEVELOPED) ## import contracts: who may import whom
	$(BIN)/lint-imports

.PHONY: test
test: $(DEVELOPED) ## pytest: make test ARGS="tests/engine -x"
	$(PYTEST) $(ARGS)

.PHONY: check-gpu
check-gpu: $(DEVELOPED) ## the tests that must also pass on Metal or CUDA
	@if $(BIN)/python -c 'import mlx.core as mx; raise SystemExit(mx.default_device() == mx.Device(mx.cpu))'; \
	then $(PYTEST) -m gpu $(ARGS) && $(BIN)/python -m benchmarks.generate --smoke; \
	else echo "check-gpu: skipped, MLX has no Metal or CUDA device here"; fi

.PHONY: snap
snap: $(DEVELOPED) ## write snapshots anew; then read: git diff snapshots/
	$(PYTEST) --snapshot-update $(ARGS)

.PHONY: generated
generated: $(DEVELOPED) ## write completions/ and docs/cli.md from the code
	$(BIN)/python -m tests.rules.generated

.PHONY: picture
picture: $(DEVELOPED) ## draw docs/chat.svg, the README's picture of the chat, anew
	$(BIN)/python -m tests.tui.picture

.PHONY: bench
bench: $(DEVELOPED) ## speed against mlx-lm, as a table
	$(BIN)/python -m benchmarks.generate $(ARGS)

.PHONY: clean
clean: ## remove what make made here; models stay in their cache
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find engine mlxcel_cli tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

$(INSTALLED): pyproject.toml
	@sh .ci/venv "$(VENV)" "$(BACKEND)"
	$(PIP) -e "$(RUN_$(BACKEND))"
	@touch $@

$(DEVELOPED): $(INSTALLED)
	$(PIP) -e "$(DEV_$(BACKEND))"
	@touch $@
