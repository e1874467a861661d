PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# One more than cores: some tests wait for processes and clocks.
PARALLEL ?= -n 3 --dist worksteal
CHAOS_ROUNDS ?= 50
EXAMPLES ?= 300
ARGS ?=
TYPED := $(wildcard src tests bench examples)

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Tests start hundreds of processes, and each would compile every module again.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help run test check format attack hostile bench bench-instructions bench-paths bench-peers bench-durable pages postgres pgbouncer valkey chaos model mutations clean

help: ## List the targets
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' Makefile
	@echo
	@echo '  PYTHON=python3.12   the interpreter to build .venv with'
	@echo '  PARALLEL="-n 3"     how pytest spreads tests; "-n 0" for a debugger'
	@echo '  ARGS="..."          handed on to run, test, bench…, chaos and model'

run: $(VENV)/.installed ## Start everything with a sample app; sets it up first
	@$(BIN)/flowfabric dev --sample $(ARGS)

test: check ## Every check, then the tests on all stores; what CI runs
	$(BIN)/pytest $(PARALLEL) $(ARGS)

check: $(VENV)/.installed-dev ## Formatting, lint, types, import arrows and Lua syntax
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy $(TYPED)
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m tests.lua_syntax

format: $(VENV)/.installed-dev ## Format the code and apply the safe fixes
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

pages: $(VENV)/.installed-dev ## Write the reference pages that follow from the declarations
	$(BIN)/python -m tests.server.rest_page
	$(BIN)/python -m tests.operations_page
	$(BIN)/python -m tests.limits_page

bench: $(VENV)/.installed-dev ## Measure the stores against raw statements: a table and JSON
	@$(BIN)/python -m bench $(ARGS)

attack: $(VENV)/.installed-dev ## Attack a server with 100 clients, a minute in each way (ARGS="--seconds 5")
	@$(BIN)/python -m bench.attacks $(ARGS)

hostile: $(VENV)/.installed-dev ## Send a server far more hostile input, on every store (EXAMPLES=300 of each route)
	FF_TEST_EXAMPLES=$(EXAMPLES) $(BIN)/pytest --timeout=3600 --rotation=all $(PARALLEL) $(ARGS) \
		tests/server/test_contract.py tests/server/test_hostile_values.py tests/server/test_poison.py \
		tests/server/test_framing.py tests/server/test_hostile.py tests/server/test_malformed.py \
		tests/server/test_matrix.py

bench-instructions: $(VENV)/.installed-dev ## Count the instructions of Valkey for an execution (needs valgrind)
	@$(BIN)/python -m bench.instructions $(ARGS)

bench-paths: $(VENV)/.installed-dev ## Count the instructions of our processes on each hot path (needs valgrind)
	@$(BIN)/python -m bench.python_instructions $(ARGS)

bench-peers: $(VENV)/.installed-dev ## Drain no-op tasks beside other task queues (--store postgres for those on Postgres)
	@$(BIN)/python -m bench.peers $(ARGS)

bench-durable: $(VENV)/.installed-dev ## Durable programs beside Restate and DBOS (needs npm)
	@$(BIN)/python -m bench.durable $(ARGS)

postgres: $(VENV)/.installed-dev ## Every test on Postgres, but for chaos
	FF_TEST_STORES=postgres $(BIN)/pytest $(PARALLEL) \
		tests/conformance tests/model tests/sdk tests/server tests/cli tests/integration $(ARGS)

pgbouncer: $(VENV)/.installed-dev ## Conformance tests on Postgres behind PgBouncer (apt-get installs it)
	@command -v pgbouncer || test -x /usr/sbin/pgbouncer || apt-get install --yes pgbouncer
	FF_TEST_STORES=postgres-pooled $(BIN)/pytest $(PARALLEL) tests/conformance $(ARGS)

valkey: $(VENV)/.installed-dev ## Every test on Valkey, standalone and cluster, but for chaos
	FF_TEST_STORES=valkey,valkey-cluster $(BIN)/pytest $(PARALLEL) \
		tests/conformance tests/model tests/sdk tests/server tests/cli tests/integration $(ARGS)

chaos: $(VENV)/.installed-dev ## Kill processes for longer, on every store (CHAOS_ROUNDS=50)
	CHAOS_ROUNDS=$(CHAOS_ROUNDS) $(BIN)/pytest tests/chaos tests/sdk/test_endless_loops.py -m "" --timeout=3600 --rotation=all $(ARGS)

model: $(VENV)/.installed-dev ## Run the model tests with many more examples, on every store
	$(BIN)/pytest tests/model -m "" --timeout=3600 --hypothesis-profile=long --rotation=all \
		$(PARALLEL) $(ARGS)

mutations: $(VENV)/.installed-dev ## Change what Lua mirrors in Python alone; the golden vectors must notice
	$(BIN)/python -m tests.golden.mutations $(ARGS)

clean: ## Remove .venv, .venv-peers, .venv-durable, caches and build output
	rm -rf $(VENV) .venv-peers .venv-durable build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/pip:
	@command -v $(PYTHON) >/dev/null || \
		{ echo "'$(PYTHON)' was not found. Name a Python 3.11 or newer: make PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "FlowFabric needs Python 3.11 or newer; '$(PYTHON)' is `$(PYTHON) -V 2>&1`." \
			"Name another: make PYTHON=python3.12"; exit 1; }
	@echo "Creating $(VENV)"
	@$(PYTHON) -m venv $(VENV) >/dev/null 2>&1 || { \
		$(PYTHON) -m venv --clear --without-pip $(VENV) && \
		$(PYTHON) -m pip --python $(BIN)/python install --quiet pip; }

$(VENV)/.installed: pyproject.toml | $(BIN)/pip
	@echo "Installing flowfabric"
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[all]'
	@touch $@

$(VENV)/.installed-dev: pyproject.toml | $(BIN)/pip
	@echo "Installing flowfabric and its development tools"
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[all,dev]'
	@touch $@ $(VENV)/.installed
