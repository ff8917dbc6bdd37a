# `make demo` and `make test` work on a fresh clone; .venv is made once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Errors only: what an index warns of would hide what the demo prints.
PIP := $(BIN)/pip install -qq --disable-pip-version-check

.PHONY: install demo growth test lint docs bench errors experiments readme

install: $(VENV)/.installed

# torch first and by itself: a CPU build. Then all the rest without dependencies, because
# laplace-torch and BackPACK declare torchvision, which neither imports and whose CUDA
# build breaks beside a CPU torch.
$(VENV)/.installed: requirements.lock pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch==2.13.0
	$(PIP) --no-deps -r requirements.lock
	$(PIP) --no-deps --no-build-isolation -e .
	touch $@

demo: install
	$(BIN)/python examples/demo/demo.py --out report

# What curvature costs from 16x16 to 256x256 pixels.
growth: install
	$(BIN)/python examples/benchmarks/growth.py --out report

# One process for each core, and one thread for each process: small tensors gain nothing
# from more.
test: install
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --dist worksteal

lint: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright

docs: install
	$(BIN)/python -m sphinx -E -W --keep-going -q docs docs/_build/html
	$(BIN)/python docs/check_links.py docs/_build/html
	@echo "docs/_build/html/index.html"

bench: install
	$(BIN)/python examples/benchmarks/engine.py
	$(BIN)/python examples/benchmarks/posterior.py
	$(BIN)/python examples/benchmarks/cost.py

# How wrong every diagonal is, against its cost, and what that does to answers; LAE_DATA
# says where MNIST is. The first run trains nets for half an hour.
errors: install
	$(BIN)/python examples/benchmarks/error.py
	$(BIN)/python examples/benchmarks/pareto.py
	$(BIN)/python examples/benchmarks/answers.py

# The paper's experiments, as far as their results are not there; hours, on two cores.
experiments: install
	$(BIN)/python examples/experiments/paper_set.py

# Writes measured numbers and the list of supported layers into README.md, the list of
# bad inputs into its page, and draws.
readme: install
	$(BIN)/python docs/drawing.py
	$(BIN)/python docs/readme_table.py --write
	$(BIN)/python docs/supported_layers.py --write
	$(BIN)/python docs/bad_inputs.py --write
	$(BIN)/python docs/scaling_table.py --write
	$(BIN)/python docs/results_page.py --write
	$(BIN)/python docs/codes_page.py --write
