# Each target works from nothing: it makes .venv, installs the exact versions of constraints.txt, and runs.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

# The settings of the official boards, a suite each.
SETTINGS := $(basename $(notdir $(wildcard leaderboard/suites/*.toml)))
# The suites that `make tuned` takes; SUITES=leaderboard/suites/small for those whose searches take minutes and not days.
SUITES ?= leaderboard/suites
# How the tuned boards are searched for, if not as their suites say, such as TUNING="--trials 12 --budget 5000".
TUNING ?=
# Where its trials run, such as EXECUTION="--executor dask --scheduler tcp://192.0.2.1:8786".
EXECUTION ?=
# What the page links to, such as LINKS="--repository https://example.org/bilevelbench --docs docs/index.html".
LINKS ?=
# Results of others, as they sent them in; a folder with any other name could be taken for a command.
SUBMITTED := $(shell ls leaderboard/results | grep -xE '[A-Za-z0-9][A-Za-z0-9_-]*' | grep -vx official | sed 's,^,leaderboard/results/,')

.PHONY: run test test-slow test-slow-again test-quick soak coverage install install-locked lock bench lint leaderboard tuned timed page docs clean

run: install
	$(BIN)/bilevelbench run --all

# A worker gets neighbouring tests, which share what is slow to make, and takes some of another's when it has done its own.
# Bytecode is kept: the suite starts hundreds of processes, each of which would compile the package again.
PYTEST = env -u PYTHONDONTWRITEBYTECODE OMP_NUM_THREADS=1 $(BIN)/python -m pytest
ALL_CORES = -n auto --dist worksteal

test: $(VENV)/.test
	$(PYTEST) $(ALL_CORES) -m "not slow and not long"

# Whole clusters, every processor mode, fresh environments: each has a quick form in `make test`.
test-slow: $(VENV)/.test
	$(PYTEST) $(ALL_CORES) -m "slow and not long"

# Those of them that failed, one after the other: they kill processes, lose clusters and wait, and a busy machine may be at fault.
test-slow-again: $(VENV)/.test
	$(PYTEST) -m "slow and not long" --last-failed --last-failed-no-failures none

# What a change is tried with while it is being written: what runs in this process, and of a parametrised test its first case.
test-quick: $(VENV)/.test
	$(PYTEST) $(ALL_CORES) -m "not whole and not slow and not long" --one-case

# What takes many minutes: hundreds of killed processes, every method on a cluster.
soak: $(VENV)/.test
	$(PYTEST) -m long

# Lines and branches that the tests pass through, in worker processes too; `make coverage TESTS=tests/plan` for some of them.
# A few tests of processes that end abruptly fail under measurement, which they would cut off: the table is printed all the same.
TESTS ?= tests
coverage: $(VENV)/.test
	mkdir -p build/coverage && $(BIN)/python -m coverage erase
	-COVERAGE_FILE=$(CURDIR)/build/coverage/data OMP_NUM_THREADS=1 \
	  $(BIN)/python -m coverage run -m pytest $(ALL_CORES) -m "not long" $(TESTS)
	$(BIN)/python -m coverage combine --quiet
	$(BIN)/python -m coverage report

install: $(VENV)/.install

# The same versions and the test tools, each file with the checksum of requirements.lock; nothing is fetched to build with.
install-locked: | $(VENV)/bin/python
	$(PIP) install --require-hashes -r requirements.lock
	$(PIP) install --no-deps --no-build-isolation -e .

# After a change of constraints.txt. Needs uv.
lock:
	( echo "$$(head -1 requirements.lock)"; uv pip compile pyproject.toml --extra test --extra peers -c constraints.txt \
	  --python-version 3.11.7 --universal --generate-hashes --no-header --no-annotate --quiet ) > build.lock
	mv build.lock requirements.lock

# The speed benchmarks, the table of what was aimed at, and what got worse. For a machine that does nothing else, and an hour.
bench: $(VENV)/.peers
	$(BIN)/python -m pytest benchmarks --benchmark-disable-gc -q
	$(BIN)/python benchmarks/aims.py
	$(BIN)/python benchmarks/regressions.py

leaderboard: install
	for setting in $(SETTINGS); do \
	  $(BIN)/bilevelbench run --suite leaderboard/suites/$$setting.toml -o build/leaderboard/official/$$setting $(EXECUTION) || exit 1; done
	for table in 1 2 3 _kappa _dim; do $(BIN)/bilevelbench rates --table $${table#_} --quick \
	  -o build/leaderboard/official/rates$$table $(EXECUTION) || exit 1; done
	$(BIN)/bilevelbench leaderboard facts -o build/leaderboard/official/facts
	$(BIN)/bilevelbench leaderboard build build/leaderboard/official/* $(SUBMITTED) -o build/site $(LINKS)

# The tuned boards: a search that costs the same for every method, then its best parameters on data and seeds that it has not seen.
tuned: install
	for setting in $(SETTINGS); do \
	  $(BIN)/bilevelbench tune --suite $(SUITES)/$$setting.toml -o build/leaderboard/search/$$setting $(TUNING) $(EXECUTION) && \
	  $(BIN)/bilevelbench run --suite build/leaderboard/search/$$setting/best.toml -o build/leaderboard/official/$${setting}_tuned $(EXECUTION) && \
	  cp build/leaderboard/search/$$setting/tuning.json build/leaderboard/official/$${setting}_tuned/ || exit 1; done

# The boards with seconds that mean something: each trial alone in its process, one at a time. For a machine that does nothing else.
timed: install
	for setting in $(SETTINGS); do \
	  $(BIN)/bilevelbench run --suite leaderboard/suites/$$setting.toml --timed -o build/leaderboard/timed/official/$$setting || exit 1; done
	$(BIN)/bilevelbench leaderboard build build/leaderboard/timed/official/* -o build/site-timed

# The page of the published results, without running anything.
page: install
	$(BIN)/bilevelbench leaderboard build leaderboard/results/official/* $(SUBMITTED) -o build/site $(LINKS)

# The documentation, with every warning an error; beside the board, if that was built first (`make page docs`).
docs: $(VENV)/.test
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell -D - -D tools/words.txt  # common mistakes, and our own terms
	$(BIN)/mypy
	$(BIN)/lint-imports

clean:
	rm -rf $(VENV) results build *.egg-info

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit("bilevelbench needs Python 3.11 or newer; set PYTHON=...") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)

# torch first and by itself: a range that admits newer releases would pull several GB of CUDA packages.
$(VENV)/.torch: constraints.txt | $(VENV)/bin/python
	$(PIP) install -c constraints.txt "$$(grep '^torch==' constraints.txt)"
	@touch $@

$(VENV)/.install: pyproject.toml constraints.txt $(VENV)/.torch
	$(PIP) install -c constraints.txt -e .
	@touch $@

$(VENV)/.test: $(VENV)/.install
	$(PIP) install -c constraints.txt -e '.[test]'
	@touch $@

# What the benchmarks are held against.
$(VENV)/.peers: $(VENV)/.test
	$(PIP) install -c constraints.txt -e '.[peers]'
	@touch $@
