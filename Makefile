# Every target makes its own .venv from python3 alone, and is quick when nothing changed.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# Two OpenMP threads collapse when anything else uses a core; tests run one process per core instead.
export OMP_NUM_THREADS ?= 1
# Compiled once, for the many processes of the tests, and beside nobody's sources.
export PYTHONDONTWRITEBYTECODE :=
export PYTHONPYCACHEPREFIX := $(CURDIR)/$(VENV)/pycache
# Processes of the tests; each imports every trainer, which takes one gigabyte.
WORKERS ?= 2
# Tests write thousands of small databases: where a disk takes 20 to 60 ms for each, memory takes one. Not where it is short.
MEMORY := $(shell [ -w /dev/shm ] && [ "$$(df -Pk /dev/shm | awk 'NR==2 {print $$4}')" -gt 6000000 ] && echo /dev/shm)
IN_MEMORY = room=$$(mktemp -d $(if $(MEMORY),$(MEMORY)/gradiometer.XXXXXX)) && chmod 755 "$$room"; trap 'rm -rf "$$room"' EXIT INT TERM; TMPDIR="$$room"

.PHONY: help setup demo test proofs check bench learn clinic soak pins docs clean
help:
	@echo "make demo    set up, train a broken and a healthy CartPole, print what the gradients say"
	@echo "make test    set up, run the tests"
	@echo "make proofs  the long forms of some tests"
	@echo "make check   ruff, ruff format, mypy --strict, fast tests"
	@echo "make bench   measure speed side by side with the alternatives, write docs/benchmarks.md; twenty minutes"
	@echo "make learn   the whole trainings of the labs, with verdicts; three quarters of an hour"
	@echo "make clinic  break real trainings and score the doctor; hours on two cores"
	@echo "make soak    train for half an hour with doctor, pages and sinks; kill it twenty times; nothing may be lost"
	@echo "make pins    write the hashes of the pinned packages, constraints-hashed.txt"
	@echo "make docs    write the generated reference pages and build the site, site/index.html"
	@echo "make clean   remove .venv and caches"

# Nothing is compiled ahead: of 27,000 files the tests import a tenth, and Python keeps what it compiled.
$(VENV)/.torch: constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt torch==2.13.0 uv
	@touch $@

# uv refuses a file whose hash is not in the list.
$(STAMP): $(VENV)/.torch constraints-hashed.txt pyproject.toml labs/pyproject.toml
	$(BIN)/uv pip install --quiet --python $(BIN)/python --constraint constraints-hashed.txt --editable '.[dev]' --editable labs
	@touch $@

$(VENV)/.bench: $(STAMP)
	$(BIN)/uv pip install --quiet --python $(BIN)/python --constraint constraints-hashed.txt --editable '.[bench]' --editable labs
	@touch $@

# The tests of the dashboard look at it in a real browser; Debian's, since nothing else may be downloaded everywhere.
$(VENV)/.chromium: $(STAMP)
	@command -v chromium > /dev/null || { \
	  as_root=$$([ "$$(id -u)" = 0 ] || echo "sudo -n"); \
	  $$as_root apt-get install -y -qq --no-install-recommends chromium > /dev/null 2>&1 || \
	  { $$as_root apt-get update -qq && $$as_root apt-get install -y -qq --no-install-recommends chromium > /dev/null; }; \
	} || { echo "The tests of the dashboard need Chromium: apt-get install -y chromium" >&2; exit 1; }
	@touch $@

# Tests of the PostgreSQL sink start a server of their own; without one they are skipped and say so.
$(VENV)/.postgres: $(STAMP)
	@ls /usr/lib/postgresql/*/bin/initdb > /dev/null 2>&1 || command -v initdb > /dev/null || { \
	  as_root=$$([ "$$(id -u)" = 0 ] || echo "sudo -n"); \
	  $$as_root apt-get install -y -qq --no-install-recommends postgresql > /dev/null 2>&1 || \
	  { $$as_root apt-get update -qq && $$as_root apt-get install -y -qq --no-install-recommends postgresql > /dev/null 2>&1; }; \
	} || echo "PostgreSQL could not be installed (apt-get install -y postgresql): its tests are skipped" >&2
	@touch $@

# The accessibility check of the dashboard's tests; without npm those tests are skipped and say so.
build/axe/package/axe.min.js:
	@mkdir -p build/axe
	@cd build/axe && { command -v npm > /dev/null && npm pack --silent axe-core@4.14.0 > /dev/null && tar xzf axe-core-*.tgz && rm axe-core-*.tgz; } \
	  || echo "axe-core could not be fetched (it needs npm): its tests are skipped" >&2

setup: $(STAMP)

demo: $(STAMP)
	$(BIN)/gradiometer demo

test: $(STAMP) $(VENV)/.chromium $(VENV)/.postgres build/axe/package/axe.min.js
	@$(IN_MEMORY) $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not proof"

proofs: $(STAMP)
	@$(IN_MEMORY) $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "proof or hypothesis" --hypothesis-profile proofs

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	@$(IN_MEMORY) $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not slow and not proof" --durations=5

bench: $(VENV)/.bench $(VENV)/.chromium
	$(BIN)/python -m benchmarks --write docs/benchmarks.md

learn: $(VENV)/.bench
	$(BIN)/python -m benchmarks.sokoban_learns
	$(BIN)/python -m benchmarks.tsp_learns
	$(BIN)/python -m benchmarks.prismatic_learns
	$(BIN)/python -m benchmarks.sparsify_learns

# What is in runs/wards and runs/clinic already is not trained again; remove it to begin anew.
clinic: $(STAMP)
	$(BIN)/gradiometer clinic --wards all --seeds 3 --controls 10 --out runs/wards --report docs/clinic.md
	$(BIN)/gradiometer clinic --out runs/clinic --report docs/clinic-labs.md
	$(BIN)/python docs/precision.py runs/clinic/clinic.json

soak: $(STAMP)
	$(BIN)/python -m benchmarks.soak

# After a change of constraints.txt; the two first lines say what it is.
pins: $(STAMP)
	head -2 constraints-hashed.txt > constraints-hashed.new
	$(BIN)/uv pip compile --quiet --no-deps --generate-hashes --no-emit-index-url --no-header --no-annotate constraints.txt \
	  | sed '/^torch==/,/[0-9a-f]$$/{/^torch==/!d;s/ .*//;}' >> constraints-hashed.new
	mv constraints-hashed.new constraints-hashed.txt

docs: $(STAMP)
	$(BIN)/python docs/generate.py
	$(BIN)/python docs/licences.py
	$(BIN)/python docs/notebook.py
	PYTHONPATH=docs NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

clean:
	rm -rf $(VENV) site .mypy_cache .pytest_cache .ruff_cache
