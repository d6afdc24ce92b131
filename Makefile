# One command for each thing a developer does, the same here and in CI. Every target first sets the environment up in .venv/.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON := .venv/bin/python
BIN := .venv/bin
STAMP := .venv/.complete
PROTOS := ledgermq/protocol/ledgermq.proto ledger/ledgermq_ledger/format/ledgermq_format.proto offsets/ledgermq_offsets/format/ledgermq_offsets.proto stateless_broker/ledgermq_broker/transactions/state/format/ledgermq_transactions.proto stateless_broker/ledgermq_broker/timed/state/format/ledgermq_timers.proto stateless_broker/ledgermq_broker/queues/state/format/ledgermq_shares.proto stateless_broker/ledgermq_broker/exclusive/state/format/ledgermq_holders.proto stateless_broker/ledgermq_broker/access/state/format/ledgermq_security.proto ledger/ledgermq_ledger/schemas/format/ledgermq_schemas.proto
# Processes that tests run side by side: two more than cores, as tests of whole processes wait as much as they work. Spark tests share one
# session and run alone.
WORKERS ?= 4

# Some machines forbid Python to keep compiled modules: each of the hundreds of processes that tests start would compile all of them again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help setup lint format proto kafka-messages pages docs quick test test-fast test-spark test-slow test-real test-kafka test-librdkafka test-languages console test-console test-nightly test-pythons test-kubernetes compose-test fuzz powercut simulate mutants chaos soak golden bench bench-quick sizing demo lock sbom audit release-check clean

help: ## List the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## Create or update .venv/ with the locked dependencies

$(STAMP): pyproject.toml requirements.lock infra/setup.sh
	@bash infra/setup.sh .venv
	@touch $@

lint: $(STAMP) ## ruff, mypy --strict, import rules, generated code up to date, plain English
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(PYTHON) -m infra.protobuf --check $(PROTOS)
	$(PYTHON) -m infra.sync_client --check
	$(PYTHON) -m infra.kafka_messages --check
	$(PYTHON) infra/plain_english.py

format: $(STAMP) ## Let ruff format and repair what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

proto: $(STAMP) ## Generate the protobuf modules again
	$(PYTHON) -m infra.protobuf $(PROTOS)

kafka-messages: $(STAMP) ## Generate the messages of the Kafka protocol again from Kafka's definitions
	$(PYTHON) -m infra.kafka_messages

pages: $(STAMP) ## Generate docs/api.md, docs/settings.md, docs/metrics.md, docs/costs.md, the Grafana dashboard, the chart's alerts, the types of settings and ledgermq.sync again
	$(PYTHON) -m infra.setting_types > .setting_types && mv .setting_types ledgermq/client/setting_types.py
	$(PYTHON) -m infra.sync_client
	$(PYTHON) -m infra.api_page > docs/api.md
	$(PYTHON) -m ledgermq_tools.broker.settings_page > docs/settings.md
	$(PYTHON) -m ledgermq_broker.metrics.page > docs/metrics.md
	$(PYTHON) -m ledgermq_broker.kafka.page > docs/kafka.md
	$(PYTHON) -m infra.costs_page > docs/costs.md
	$(PYTHON) -m infra.grafana.dashboard > infra/grafana/ledgermq.json
	cp infra/prometheus/alerts.yml infra/kubernetes/ledgermq/files/alerts.yml

docs: $(STAMP) ## Build the documentation site into build/site/, to be read with or without a server; checks links and spelling
	@$(PYTHON) -m infra.site.build

quick: $(STAMP) ## Unit and property tests of what differs from main, for at most two minutes (BASE=HEAD~3 for another commit)
	@$(PYTHON) -m infra.quick

test: lint test-fast test-spark ## lint and the tests that need no server, without the slow ones (ten minutes on two cores)

test-fast: $(STAMP) ## Unit, contract, property and end-to-end tests, without Spark
	$(PYTHON) -m infra.second_look -m "not slow and not spark and not real and not compose and not console and not languages and not librdkafka" -n $(WORKERS) --dist worksteal tests

test-spark: $(STAMP) ## Tests that need Spark; installs Java 17 or newer when there is none
	@java_home=$$($(PYTHON) infra/java.py) && JAVA_HOME=$$java_home $(PYTHON) -m infra.second_look -m "spark and not slow and not real" tests

# PART=1/2 takes half of the files, as CI does by turns.
PART ?= 1/1
test-slow: $(STAMP) ## The slow tests that need no server: programs killed, power cuts, mutants, every block of the docs (twenty minutes)
	$(PYTHON) -m infra.second_look -m "slow and not spark and not real and not compose and not console and not languages and not librdkafka" --part $(PART) -n $(WORKERS) --dist worksteal tests
	@java_home=$$($(PYTHON) infra/java.py) && JAVA_HOME=$$java_home $(PYTHON) -m infra.second_look -m "spark and slow and not real" --part $(PART) tests

test-real: $(STAMP) ## Contract and end-to-end tests, Spark over s3a:// included, on a real MinIO, HDFS, PostgreSQL and MariaDB, Azurite and fake-gcs-server
	@java_home=$$($(PYTHON) infra/java.py) && minio=$$($(PYTHON) infra/minio.py) && postgres=$$($(PYTHON) infra/postgres.py) && \
	  mariadb=$$($(PYTHON) infra/mariadb.py) && $(PYTHON) -m infra.azurite >/dev/null && $(PYTHON) -m infra.fake_gcs >/dev/null && \
	  JAVA_HOME=$$java_home LEDGERMQ_MINIO=$$minio LEDGERMQ_POSTGRES=$$postgres LEDGERMQ_MARIADB=$$mariadb $(PYTHON) -m infra.second_look -m "real and not nightly" tests

test-kafka: $(STAMP) ## Real clients of the Kafka protocol: Python, Java's tools, Streams, Connect, Spark, Go, Node
	$(PYTHON) -m pytest -m kafka tests/kafka

test-librdkafka: $(STAMP) ## librdkafka's own tests against a broker; builds them once (ten minutes)
	$(PYTHON) -m pytest -m librdkafka tests/librdkafka

test-languages: $(STAMP) ## The clients of examples/protocol in Go, Java, Rust and TypeScript, and clients with planted faults, against brokers that fail
	$(PYTHON) -m pytest -m languages tests/languages tests/conformance

console: ## Build the console again from console/ into ledgermq_gateway/static/; needs Node
	cd console && npm ci --ignore-scripts --no-audit --no-fund && npx tsc -p . && node build.mjs

test-console: $(STAMP) ## The console in Chromium, and whether its sources build its files; installs Chromium and Playwright
	@variables=$$($(PYTHON) -m infra.console_browser) && env $$variables $(PYTHON) -m pytest -m console tests/console

# TESTS=tests/real/test_stream_kills.py for a part of it.
TESTS ?= tests
test-nightly: $(STAMP) ## Spark's drivers, executors and workers killed at every step, on folders, MinIO and HDFS (an hour)
	@java_home=$$($(PYTHON) infra/java.py) && minio=$$($(PYTHON) infra/minio.py) && \
	  JAVA_HOME=$$java_home LEDGERMQ_MINIO=$$minio $(PYTHON) -m pytest -m nightly $(TESTS)

# PYTHONS adds folders with interpreters.
test-pythons: $(STAMP) ## Import everything and run the client's unit tests on each supported Python that is here
	$(PYTHON) -m infra.pythons

test-kubernetes: $(STAMP) ## The chart of infra/kubernetes/ in all its variants, by Helm and by schemas of Kubernetes; builds Helm once
	@helm=$$($(PYTHON) infra/helm.py) && LEDGERMQ_HELM=$$helm $(PYTHON) -m pytest tests/kubernetes

compose-test: $(STAMP) ## infra/compose/ in real containers: killed, cut off, read by Spark; needs root on Debian
	@$(PYTHON) -m infra.docker
	@java_home=$$($(PYTHON) infra/java.py) && JAVA_HOME=$$java_home $(PYTHON) -m pytest -m compose tests/compose

# A nightly run takes FUZZ_INPUTS=1000000; a seed gives the same inputs again.
FUZZ_INPUTS ?= 100000
FUZZ_SEED ?= 0
fuzz: $(STAMP) ## Hostile bytes for every surface that takes bytes from others; FUZZ_INPUTS=100000 FUZZ_SEED=0
	$(PYTHON) -m tests.fuzz.run --inputs $(FUZZ_INPUTS) --seed $(FUZZ_SEED)

# In each test so many power cuts; 3000 are more than there are steps, so that each is cut after. make test-slow has a few hundred.
POWER_CUTS ?= 3000
powercut: $(STAMP) ## The power cut after every step of the file store's runs; POWER_CUTS=3000
	LEDGERMQ_POWER_CUTS=$(POWER_CUTS) $(PYTHON) -m pytest -q --timeout 3600 tests/powercut

# Simulated clusters: LEVEL=models (the protocols alone, with their mutants), ledger (one ledger, fast), ids, moves, queries, rounds, keyed, damage, sinks, tables, cluster
# (everything), groups, transactions, timers, queues, access, exclusive, kafka, cuts or all; TRACE=--trace prints every line of a run.
LEVEL ?= all
SEEDS ?= 200
FIRST_SEED ?= 0
TRACE ?=
MUTANT_SEEDS ?= 100
MUTANTS ?=
RECORD ?=

simulate: $(STAMP) ## Whole clusters in virtual time, one for each of SEEDS=200 seeds from FIRST_SEED=0 on
	$(PYTHON) -m tests.simulation.run --level $(LEVEL) --seeds $(SEEDS) --first-seed $(FIRST_SEED) $(TRACE)

mutants: $(STAMP) ## Plant each known bug and show the seed of the simulation that catches it (MUTANTS="name …" for some; RECORD=1 writes new seeds)
	$(PYTHON) -m tests.simulation.hunt --seeds $(MUTANT_SEEDS) $(if $(RECORD),--record) $(MUTANTS)

# Nightly: EVENTS=200, both stores. SECONDS: how long the troubles last, by default four seconds for each.
STORE ?= all
CLIENTS ?= ledgermq
EVENTS ?= 200
SEED ?= 0
SECONDS ?=
chaos: $(STAMP) ## Real brokers killed, paused, cut off; STORE=file|minio|azure|gcs|all CLIENTS=ledgermq|librdkafka EVENTS=200 SEED=0 SECONDS=…
	$(PYTHON) -m tests.chaos.run --store $(STORE) --clients $(CLIENTS) --events $(EVENTS) --seed $(SEED) $(if $(SECONDS),--seconds $(SECONDS))

RELEASE ?=
golden: $(STAMP) ## Write the golden root of this version, once, with its release (docs/upgrades.md); RELEASE=… names one that is being made
	$(PYTHON) -m tests.upgrades.write $(RELEASE)

# Beside Kafka and others, which it fetches or builds (s2-lite where S2_LITE names its binary); BENCH="--only P1,P4" for some rows, on a machine where nothing else runs.
BENCH ?=
bench: $(STAMP) ## Measure everything, peers too, and write docs/performance.md (an hour)
	@java_home=$$($(PYTHON) infra/java.py) && JAVA_HOME=$$java_home $(PYTHON) -m bench.run $(BENCH)

bench-quick: $(STAMP) ## The same without peers, on fewer records (five minutes); writes nothing
	$(PYTHON) -m bench.run --quick $(BENCH)

sizing: $(STAMP) ## Write docs/sizing.md from the measured rows and a simulation at the distance of S3
	$(PYTHON) -m bench.sizing.page

soak: $(STAMP) ## Everything at once for half an hour (SECONDS=1800), transactions too: brokers, programs and compactors killed, a Spark stream and plain reads beside them
	@java_home=$$($(PYTHON) infra/java.py) && JAVA_HOME=$$java_home $(PYTHON) -m tests.soak.run --seconds $(or $(SECONDS),1800)

demo: $(STAMP) ## Three brokers, real flights, one broker killed half-way, Spark, a chart
	@java_home=$$($(PYTHON) infra/java.py) && JAVA_HOME=$$java_home $(PYTHON) examples/demo/main.py

lock: $(STAMP) ## Resolve requirements.lock again from pyproject.toml
	@bash infra/lock.sh

# Both run in an environment of their own, so that no other command depends on their parts.
SBOM ?= ledgermq-sbom.json
sbom: $(STAMP) ## Write what an installation consists of, by requirements.lock, as CycloneDX (SBOM=ledgermq-sbom.json)
	$(BIN)/uv tool run --from "cyclonedx-bom>=7.5,<8" cyclonedx-py requirements requirements.lock --pyproject pyproject.toml --mc-type application --output-reproducible --of JSON -o $(SBOM)

audit: $(STAMP) ## Compare requirements.lock with the public list of known vulnerabilities; needs a network
	$(BIN)/uv tool run --from "pip-audit>=2.10,<3" pip-audit --requirement requirements.lock --require-hashes --disable-pip --strict

DIST ?= dist
release-check: $(STAMP) ## Check what a release would publish (built twice, metadata, README's programs on each Python here); the files stay in DIST=dist
	$(PYTHON) -m tests.release.run $(DIST)

clean: ## Remove everything that these commands made, the environment included
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis demo-output ledgermq-data spark-warehouse
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
