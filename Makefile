# Exact text K/V for Cosmos3 in TensorRT-LLM VisualGen. `make help` lists the targets.
SHELL := /bin/bash
.DEFAULT_GOAL := help

# Set PYTHON to use an interpreter that has the packages already; nothing is installed then.
PYTHON ?= .venv/bin/python
BOOTSTRAP_PYTHON ?= python3
TRTLLM_DIR ?=
CONFIG ?=
MODEL ?=
RESULT ?=
ARGS ?=
export PYTHONPATH := scripts$(if $(PYTHONPATH),:$(PYTHONPATH))

ifeq ($(PYTHON),.venv/bin/python)
ENV := .venv/.installed
endif

##@ The main job
.PHONY: parity report probe
parity: $(ENV) ## Run two requests on one rank and on several, fixed and unfixed; ARGS="--ranks 4 --help"
	$(PYTHON) -m parity $(if $(TRTLLM_DIR),--trtllm-dir "$(TRTLLM_DIR)") $(ARGS)
report: $(ENV) ## Draw the page of a result again, into build/report: RESULT=results/parity-cpu.json
	@test -n "$(RESULT)" || { echo "make report RESULT=file.json" >&2; exit 2; }
	@$(PYTHON) -m parity.show "$(RESULT)" $(ARGS)
probe: $(ENV) ## Say which matrix products round by their number of rows on this GPU; ARGS="--model nano --tp 1"
	@$(PYTHON) -m row_products $(ARGS)

.PHONY: preflight
preflight: export CONFIG := $(CONFIG)
preflight: export MODEL := $(MODEL)
preflight: $(ENV) ## Say what a VisualGen YAML would fail on, or 1.3.0rc25 to rc29 compute wrongly: CONFIG=file.yaml
	@test -n "$$CONFIG" || { echo "make preflight CONFIG=file.yaml [MODEL=nano|super|edge|config.json]" >&2; exit 2; }
	@$(PYTHON) -m preflight --config "$$CONFIG" $${MODEL:+--model "$$MODEL"} $(ARGS)

.PHONY: deviation train
deviation: $(ENV) ## Measure what the bug does to a tiny model's videos, in minutes; ARGS="--axis gap"
	$(PYTHON) -m deviation $(ARGS)
train: $(ENV) ## Train this tiny model again, into build/learned; ARGS="--seconds 3600"
	$(PYTHON) -m deviation.train $(ARGS)

.PHONY: bench readme
bench: $(ENV) ## Time attention, a layer and a step beside the unfixed path and a loop; ARGS="--parts attention"
	$(PYTHON) -m bench $(ARGS)
readme: $(ENV) ## Make the README's tables anew from results/
	$(PYTHON) -m bench.readme $(ARGS)

.PHONY: test
test: $(ENV) ## Run all tests that this machine can run, cheapest first
	$(PYTHON) -m pytest tests/static tests/cpu tests/patchset tests/gloo tests/gpu $(ARGS)

##@ The patch set
.PHONY: check apply unapply check-upstream wheel overlay overlay-status pr export
# Quoted, because a folder's name may have spaces.
DIR = $(if $(TRTLLM_DIR),--dir "$(TRTLLM_DIR)")
check: ## Check the patches of every base offline against its line hashes (no torch needed)
	$(BOOTSTRAP_PYTHON) -m patchset check $(ARGS)
apply: ## Apply the patches of the base that TRTLLM_DIR has, or of the pin to a fresh sparse clone
	$(BOOTSTRAP_PYTHON) -m patchset apply $(DIR) $(ARGS)
unapply: ## Restore the checkout that apply changed
	$(BOOTSTRAP_PYTHON) -m patchset unapply $(DIR) $(ARGS)
check-upstream: ## Tell which base a commit has, and hunk by hunk whether its patches fit: REF=main
	$(BOOTSTRAP_PYTHON) -m patchset check-upstream $(if $(REF),--ref "$(REF)") $(DIR) $(ARGS)
wheel: ## Build a wheel of ours that patches an installed TensorRT-LLM on import, never on disk
	$(BOOTSTRAP_PYTHON) -m patchset wheel $(ARGS)
overlay: ## Make the same as a folder for PYTHONPATH, where nothing may be installed
	$(BOOTSTRAP_PYTHON) -m patchset overlay $(ARGS)
overlay-status: ## Say which processes the wheel or folder reaches, for which file and digest
	$(BOOTSTRAP_PYTHON) -m patchset overlay-status $(ARGS)
pr: $(ENV) ## Prepare branch and cover text of an upstream pull request: [PR=name], the first if none
	$(PYTHON) -m patchset pr $(if $(PR),--pr "$(PR)") $(DIR) $(ARGS)
export: ## Bring what was edited in overlay/ into the patches of every base
	$(BOOTSTRAP_PYTHON) -m patchset export $(ARGS)

##@ Housekeeping
.PHONY: env lint clean help
env: $(ENV) ## Install the locked packages into .venv (done by parity and test too)
lint: $(ENV) ## Check and format-check with ruff
	$(PYTHON) -m ruff check . && $(PYTHON) -m ruff format --check .
clean: ## Remove build/ and caches, but not .venv
	rm -rf build .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +

.venv/.installed: requirements.lock
	@$(BOOTSTRAP_PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and \
	  "python3 is %d.%d; set BOOTSTRAP_PYTHON to 3.10 or newer" % sys.version_info[:2])'
	@$(BOOTSTRAP_PYTHON) -m venv .venv || { echo "no venv module: install python3-venv, or set PYTHON" >&2; exit 2; }
	.venv/bin/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	@touch $@

help: ## Show this list
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} \
	  /^[a-z-]+:.*## / {printf "  %-16s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))
