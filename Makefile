# Every target prepares .venv first; when nothing changed since, that takes well under a second.
.DEFAULT_GOAL := help
SHELL := bash

SYSTEM_PYTHON ?= python3
PYTHON := .venv/bin/python
SETUP := $(SYSTEM_PYTHON) scripts/setup.py
PYTEST_ARGS ?=
# Two workers: one has the tests that start a server, the other the rest (tests/conftest.py).
PYTEST := $(PYTHON) -m pytest -n 2 --dist loadgroup --durations=10
PORT ?= 8000

.PHONY: help
help: ## Show this list.
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: setup
setup: ## Create .venv with vLLM (GPU build where there is one), the plugin and the demo's tools.
	@$(SETUP) demo

.PHONY: setup-dev
setup-dev: ## The same, with the audit's tools, the tests' and the linters'.
	@$(SETUP) demo eval dev

.PHONY: setup-eval
setup-eval: ## The same, with lm-eval, statistics and plots: calibrate, audit and bench.
	@$(SETUP) demo eval

.PHONY: demo
demo: setup ## See strict and approximate verification side by side on a small model.
	@$(PYTHON) -m vllm_asd.tools.demo

.PHONY: serve
serve: setup ## Serve SmolLM2-135M with n-gram drafts and ASD until Ctrl-C (PORT=8001 for another port).
	@$(PYTHON) -m vllm_asd.tools.server --port $(PORT)

.PHONY: test
test: setup-dev ## Run every test that this machine can run (PYTEST_ARGS="-k ledger" narrows it).
	@$(PYTEST) $(PYTEST_ARGS)

.PHONY: quality
quality: setup-dev ## Lint, check formatting and types.
	@$(PYTHON) -m ruff check .
	@$(PYTHON) -m ruff format --check .
	@$(PYTHON) -m mypy

.PHONY: check
check: quality ## Lint, types, and every test that starts no engine: minutes.
	@$(PYTEST) -q tests/unit tests/property tests/contract $(PYTEST_ARGS)

.PHONY: format
format: setup-dev ## Rewrite the sources the way `make quality` wants them.
	@$(PYTHON) -m ruff check --fix-only --quiet .
	@$(PYTHON) -m ruff format .

.PHONY: docs
docs: ## Build the docs as a site in build/site; a broken link or heading fails.
	@$(SETUP) docs
	@NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build --strict --quiet
	@echo "build/site/index.html"

.PHONY: docs-pages
docs-pages: setup-dev ## Write the pages of docs/ that are made from the code: settings, metrics, options, patches.
	@$(PYTHON) scripts/generate_docs.py
	@$(PYTHON) -m tests.contract.table > docs/patches.md

.PHONY: package
package: setup-dev ## Build wheel and sdist into dist/, install the wheel into an empty environment and ask it.
	@$(PYTHON) scripts/check_package.py

.PHONY: clean
clean: ## Remove .venv and every cache inside this folder (models in the user cache stay).
	@rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis ./*.egg-info
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
