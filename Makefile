# make demo      the benchmark end to end: four models, every suite, leaderboards
# make test      the tests
# make lint      style, types, import directions
# make weights   train the shipped weights anew
#
# PYTHON   the interpreter that makes the environment    VENV  where the environment lies
# WORKERS  how many processes run the tests
# The environment is made when it is missing, and again when pyproject.toml has changed.

PYTHON ?= python3
VENV ?= .venv
WORKERS ?= 2
BIN := $(VENV)/bin
# The folder counts too: an environment that another copy of the project made runs that copy.
SUM := $(shell (echo $(CURDIR); cat pyproject.toml) | (sha256sum 2>/dev/null || shasum -a 256) \
	| cut -c1-16)
STAMP := $(VENV)/.installed-$(SUM)
MODELS := baseline jem hdge hdge-masked hdge-eq13 hdge-jem

.DEFAULT_GOAL := help
.PHONY: help demo test lint weights clean

help:
	@sed -n 's/^# \{0,1\}//p' Makefile | head -9

# torchattacks pins an old `requests` that it never imports, so it is installed without its pins.
$(STAMP):
	@echo "installing into $(VENV): PyTorch is a download of gigabytes, this takes minutes"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	$(BIN)/python -m pip install --quiet --no-deps torchattacks tqdm
	@rm -f $(VENV)/.installed-*
	@touch $@

demo: $(STAMP)
	$(BIN)/bench run --executor local:2

test: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder \
		-m "not slow and not gpu and not network"

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

weights: $(STAMP)
	for model in $(MODELS); do \
		$(BIN)/bench train --model $$model --dataset digits --seed 0 --fresh --out baselines/weights || exit 1; \
	done

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
