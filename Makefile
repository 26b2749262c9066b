# Everything a user or a developer does here. Needs Python >= 3.11 with venv and pip; Node is used if it is there.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SERVABLE := $(VENV)/.servable
TESTABLE := $(VENV)/.testable
PACKAGES := segmentstore pyspark_segmentstore containers tier1 tier2
SEEDS ?= 1000
FROM ?= 100000
TESTS ?= tests
DATA ?= data
HTTP ?= 127.0.0.1:9091
WIRE ?= 127.0.0.1:12345
CONTROLLER ?= 127.0.0.1:9090

.PHONY: help setup run test lint types unit simulation integration clusters bookkeeper bookies bookies-down cluster cluster-status cluster-down demo demo-spark bench bench-peers sim soak replay compose clean

help:
	@echo "make run                serve ./$(DATA) on http://$(HTTP)"
	@echo "make test               lint, types, unit, simulation, integration, clusters; the last lines say what passed"
	@echo "make bookkeeper         build what Tier 1 on BookKeeper needs; needs a JDK of release 17 and Maven"
	@echo "make bookies DATA=DIR   a BookKeeper of four bookies on this machine; make bookies-down DATA=DIR ends it"
	@echo "make cluster DATA=DIR   three nodes, two controllers, BookKeeper and an S3 server on this machine; also needs Go"
	@echo "make cluster-status DATA=DIR         what of it runs, and whether it works; make cluster-down DATA=DIR ends it"
	@echo "make demo               a demonstration that checks itself; DEMO='--tier1 bookkeeper' on bookies of its own"
	@echo "make demo CLUSTER=1 DATA=DIR         the same of a cluster, of which a node is killed; see make cluster"
	@echo "make demo-spark         words of a stream counted on Spark three ways; needs Java 17"
	@echo "make bench              throughput and latency, each beside a limit of the same run"
	@echo "make bench BENCHMARKS=slow_tier2     one of them; --all adds those that take minutes"
	@echo "make bench-peers        the same Java client against this store, Pravega and Kafka"
	@echo "make sim SEEDS=1000     so many seeds of the simulation"
	@echo "make replay SEED=7      one seed again, with its trace"
	@echo "make soak SEEDS=1000 FROM=100000     every other test that draws from seeds, on so many other seeds"
	@echo "make soak TESTS=tests/controller     some of them"
	@echo "make compose            write what compose/ takes from what 'make cluster' runs; see compose/README.md"

setup: $(TESTABLE)

# What serving needs, and that with what the tests need, each in one step, which is taken again only when the dependencies
# or the native pieces change. What pip says is shown only if it fails. Spark finds its data source by walking over
# sys.path, so that the checkout itself has to be on it (`compat`), not a finder that answers for single names.
PIP := $(BIN)/python -m pip install --disable-pip-version-check --config-settings editable_mode=compat --editable
SETUP_LOG := $(VENV)/setup.log
INPUTS := pyproject.toml $(wildcard segmentstore/*/native/*.[ch] tier2/*/native/*.[ch])

define ENVIRONMENT
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Python >= 3.11 is needed: make PYTHON=python3.11"; exit 1; }
	@$(BIN)/python -m pip --version > /dev/null 2>&1 \
		|| { echo "setting up $(VENV), about $(1)"; $(PYTHON) -m venv --clear $(VENV); }
endef

$(SERVABLE): $(INPUTS)
	$(call ENVIRONMENT,half a minute)
	@$(PIP) '.[fast]' > $(SETUP_LOG) 2>&1 \
		|| { $(PIP) . > $(SETUP_LOG) 2>&1 && echo "isal or uvloop cannot be installed here; the store runs without them"; } \
		|| { cat $(SETUP_LOG); exit 1; }
	@touch $@

$(TESTABLE): $(INPUTS)
	$(call ENVIRONMENT,a minute and a half)
	@echo "installing what serving and the tests need"
	@$(PIP) '.[fast,test]' > $(SETUP_LOG) 2>&1 \
		|| { $(PIP) '.[test]' > $(SETUP_LOG) 2>&1 && echo "isal or uvloop cannot be installed here; the store runs without them"; } \
		|| { cat $(SETUP_LOG); exit 1; }
	@touch $(SERVABLE) $@

run: $(SERVABLE)
	@$(BIN)/segmentstore standalone --data $(DATA) --http $(HTTP) --wire $(WIRE) --controller $(CONTROLLER)

# The Python packages once, and the jars whenever the Java sources or their versions change.
BRIDGED := $(VENV)/.bridged

$(BRIDGED): $(SERVABLE)
	@$(PIP) '.[bookkeeper]' >> $(SETUP_LOG) 2>&1 || { cat $(SETUP_LOG); exit 1; }
	@touch $@

bookkeeper: $(BRIDGED)
	@$(BIN)/python -m tier1.bookkeeper.jars client

bookies: $(BRIDGED)
	@$(BIN)/python -m tier1.bookkeeper.jars servers
	@$(BIN)/python -m tier1.bookkeeper.local_ensemble up $(DATA)

bookies-down: $(SERVABLE)
	@$(BIN)/python -m tier1.bookkeeper.local_ensemble down $(DATA)

# Nodes need the client of S3 as well.
CLUSTERED := $(VENV)/.clustered

$(CLUSTERED): $(BRIDGED)
	@$(PIP) '.[s3]' >> $(SETUP_LOG) 2>&1 || { cat $(SETUP_LOG); exit 1; }
	@touch $@

cluster: $(CLUSTERED)
	@$(BIN)/python -m segmentstore.demo.local_cluster up $(DATA)

cluster-status: $(SERVABLE)
	@$(BIN)/python -m segmentstore.demo.local_cluster status $(DATA)

cluster-down: $(SERVABLE)
	@$(BIN)/python -m segmentstore.demo.local_cluster down $(DATA)

test: setup
	@$(BIN)/python .ci/stages.py

lint: setup
	@$(BIN)/ruff check --quiet . && $(BIN)/ruff format --quiet --check . && $(BIN)/lint-imports --no-logo --no-cache

types: setup
	@$(BIN)/mypy $(PACKAGES) tests benchmarks

unit: setup
	@$(BIN)/python -m pytest -q -n auto --dist worksteal -m "not simulation and not integration"

simulation: setup
	@$(BIN)/python -m pytest -q -n auto --dist worksteal -m simulation

# Two groups at a time: they wait more than they work. The tests of a group share what they start.
SIDE_BY_SIDE := -n 2 --dist loadfile --no-loadscope-reorder
CLUSTERS := $(addprefix tests/integration/,cluster bookkeeper kafka)

integration: setup
	@$(BIN)/python -m pytest -q $(SIDE_BY_SIDE) -m integration $(addprefix --ignore=,$(CLUSTERS))

clusters: setup
	@$(BIN)/python -m pytest -q $(SIDE_BY_SIDE) -m integration $(CLUSTERS)

demo: $(SERVABLE) $(if $(CLUSTER),$(CLUSTERED)) $(if $(findstring bookkeeper,$(DEMO)),$(BRIDGED))
	@$(BIN)/python -m $(if $(CLUSTER),segmentstore.demo.cluster $(DATA),segmentstore.demo.store $(DEMO))

demo-spark: setup
	@$(BIN)/python -m segmentstore.demo.spark $(DEMO)

bench: setup
	@$(BIN)/python -m benchmarks $(BENCHMARKS)

bench-peers: setup
	@$(BIN)/python -m benchmarks.peers $(PEERS)

sim: setup
	@SIM_SEEDS=$(SEEDS) $(BIN)/python -m pytest -q -n auto tests/sim/test_seeds.py

soak: setup
	@$(BIN)/python -m tests.soak --seeds $(SEEDS) --from $(FROM) --parallel auto $(TESTS)

replay: setup
	@test -n "$(SEED)" || { echo "usage: make replay SEED=7"; exit 2; }
	@$(BIN)/python -m tests.sim.run --seed $(SEED) --verbose

# What compose/ has of commands, ports and versions comes from what `make cluster` runs.
compose: $(SERVABLE)
	@$(BIN)/python -m segmentstore.demo.deployment write compose

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist *.egg-info
