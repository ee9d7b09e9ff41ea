PYTHON ?= python3
WORKERS ?= 2
BIN := .venv/bin
STAMP := .venv/.credo-installed

# One thread a process: the test workers and small networks are faster that way.
export OMP_NUM_THREADS ?= 1

.PHONY: setup demo test slow coverage lint format clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

demo: setup
	$(BIN)/credo demo --out demo

test: setup
	scripts/setup-browser
	$(BIN)/python -m pytest -n $(WORKERS)

slow: setup
	$(BIN)/python -m pytest -n $(WORKERS) -m slow

coverage: setup
	scripts/setup-browser
	$(BIN)/python -m pytest -n $(WORKERS) --cov --cov-report=term --cov-report=html

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict src

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv build dist demo htmlcov .coverage .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
