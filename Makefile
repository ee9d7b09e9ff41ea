PYTHON ?= python3
WORKERS ?= 2
BIN := .venv/bin
STAMP := .venv/.credo-installed

# One thread a process: the test workers and small networks are faster that way.
export OMP_NUM_THREADS ?= 1

# Each worker keeps to neighboring tests, so that a fixture of a module is rarely made twice.
PARALLEL := -n $(WORKERS) --dist worksteal

.PHONY: setup demo test test-extras slow coverage lint format docs docs-translations peers clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

demo: setup
	$(BIN)/credo demo --out demo

test: setup
	scripts/setup-browser
	$(BIN)/python -m pytest $(PARALLEL)

# What optional libraries do: export, serving, tracking, other frameworks, several machines.
EXTRAS_STAMP := .venv/.credo-extras-installed

$(EXTRAS_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev,extras]"
	touch $@

test-extras: $(EXTRAS_STAMP)
	scripts/setup-browser
	$(BIN)/python -m pytest $(PARALLEL) -m "extras and not slow"

slow: setup
	$(BIN)/python -m pytest $(PARALLEL) -m slow

coverage: setup
	scripts/setup-browser
	$(BIN)/python -m pytest $(PARALLEL) --cov --cov-report=term --cov-report=html

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict src

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The site: docs/_build/html, and in Korean docs/_build/html/ko. Examples are run once until they change.
DOCS_STAMP := .venv/.credo-docs-installed
SPHINX := $(BIN)/python -m sphinx -b html -W --keep-going -j $(WORKERS)

$(DOCS_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev,docs]"
	touch $@

docs: $(DOCS_STAMP)
	DOCS_WORKERS=$(WORKERS) $(SPHINX) -d docs/_build/doctrees/en docs docs/_build/html
	DOCS_WORKERS=$(WORKERS) $(SPHINX) -d docs/_build/doctrees/ko -D language=ko docs docs/_build/html/ko
	$(BIN)/python docs/translations.py check

# Bring the Korean catalogues, docs/locale/ko, in step with the English pages; new strings are empty, changed ones fuzzy.
docs-translations: $(DOCS_STAMP)
	$(BIN)/python docs/translations.py update

# The libraries of benchmarks/peers.py, in a folder for each Python: peers/cp311, peers/cp312. Never in the environment,
# and never with torch. torchvision's wheels are built for CUDA; 0.16.2 is the last that can be imported without its
# compiled part, beside a torch for CPUs, and only torch-uncertainty asks for it. Python 3.12 is that of a machine with a
# GPU, where torchvision is installed.
PEERS := --quiet --disable-pip-version-check --no-deps --no-compile --only-binary=:all: -r benchmarks/peers-requirements.txt
peers: setup
	rm -rf peers
	$(BIN)/python -m pip install $(PEERS) --python-version 3.11 --target peers/cp311 torchvision==0.16.2
	$(BIN)/python -m pip install $(PEERS) --python-version 3.12 --target peers/cp312
	du -sm peers/cp311 peers/cp312

clean:
	rm -rf docs/_build docs/auto_examples docs/results docs/api/generated docs/api/backreferences
	rm -rf .venv build dist demo htmlcov .coverage .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
