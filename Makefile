# One-line aliases of documented commands. Every target makes the virtual environment it needs; a second run skips
# what is unchanged. Options: PYTHON, VENV, TORCH (what pip is asked for as torch; README), DEMO_STEPS, DEMO_OUT, DEMO_ARGS,
# BENCH_ARGS.

PYTHON ?= python3
VENV ?= .venv
TORCH ?= torch==2.13.0
DEMO_STEPS ?= 30
DEMO_OUT ?= runs/demo
DEMO_ARGS ?=
BENCH_ARGS ?=
PYTEST_ARGS ?=

BIN := $(VENV)/bin
STARTED := $(shell date +%s)
# One thread a process: a run has several, and two busy threads each on two cores are slower than one (docs/cpu.md).
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM ?= false
export PATH := $(abspath $(BIN)):$(PATH)

.PHONY: demo test test-all lint bench clean FORCE

demo: $(VENV)/demo.stamp
	$(BIN)/python -m verl_agentic.demo run --out $(DEMO_OUT) --steps $(DEMO_STEPS) --started $(STARTED) $(DEMO_ARGS)

test: $(VENV)/all.stamp
	$(BIN)/python -m pytest -m "not slow" $(PYTEST_ARGS)
	$(MAKE) demo DEMO_STEPS=2 DEMO_OUT=runs/test-demo DEMO_ARGS="--cold-start-steps 40"

test-all: $(VENV)/all.stamp
	$(BIN)/python -m pytest -m "" $(PYTEST_ARGS)

lint: $(VENV)/all.stamp
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports

bench: $(VENV)/all.stamp
	$(BIN)/python benchmarks/rollout.py --output benchmarks/results/rollout.json
	$(BIN)/python benchmarks/import_cost.py

# The training runs of a method on the demo world, `make bench-METHOD` runs benchmarks/METHOD.py: hours on two cores; finished runs
# are kept, so an interrupted one goes on. Writes benchmarks/results/METHOD_cpu.{json,png,html}.
bench-%: $(VENV)/all.stamp
	$(BIN)/python benchmarks/$*.py $(BENCH_ARGS)

# Remembers what TORCH was, so that another choice installs anew.
$(VENV)/torch.choice: FORCE
	@mkdir -p $(VENV)
	@echo '$(TORCH)' | cmp -s - $@ || echo '$(TORCH)' > $@

# torch comes first and alone, so that nothing that asks for it decides which build is taken.
$(VENV)/torch.stamp: $(VENV)/torch.choice
	@$(PYTHON) verl_agentic/startup/machine_check.py
	@echo "making $(VENV) and installing $(TORCH) (the largest download)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet $(TORCH)
	@touch $@

$(VENV)/demo.stamp: setup.py $(VENV)/torch.stamp
	@echo "installing verl and what the demo needs (about two minutes)"
	$(BIN)/python -m pip install --quiet -e '.[train,retriever,report]'
	@touch $@

$(VENV)/all.stamp: setup.py $(VENV)/torch.stamp
	@echo "installing verl and what the tests need (two to three minutes)"
	$(BIN)/python -m pip install --quiet -e '.[all]'
	$(BIN)/python -m pip install --quiet -e '.[ray]'
	@touch $@ $(VENV)/demo.stamp

clean:
	rm -rf build *.egg-info .pytest_cache .ruff_cache .mypy_cache outputs
