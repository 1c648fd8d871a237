# One line for each target in `make help` comes from the comment behind its name.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
MINUTES ?= 6
TRACE ?=
PYTEST_ARGS ?=
# Two that wait for the rig and, for all processors but one, one that computes: tests/scheduling.py.
WORKERS ?= $(shell $(PYTHON) -c 'import os; print(max(3, 1 + (os.cpu_count() or 1)))')
# Tests that only compute: one for each processor.
UNIT_WORKERS ?= $(shell $(PYTHON) -c 'import os; print(os.cpu_count() or 1)')
PLAN ?= standard
PROCESSES ?= 2
SEEDS ?=
ONLY ?=
VERSIONS ?=
VLLM ?=
SEED ?=
FAULTS ?= 60
STORIES ?= 0:1667
LIVE ?=
export CHANGED_SINCE ?=
ENVIRONMENT ?=
REPOSITORY ?=
SERVE ?= 127.0.0.1:8000
DEMO ?=
SITE := out/site
SBOM ?= dist/servingslo.cdx.json
FUZZ_EXAMPLES ?= 100000
# One lock for every platform and Python; without --upgrade it keeps the pins that still fit.
COMPILE = $(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes --no-header --quiet
HASHED = pip install --quiet --disable-pip-version-check --no-cache-dir --no-deps --require-hashes --only-binary :all:

.DEFAULT_GOAL := help
.PHONY: help setup rig demo test floors check lint types layers unit fuzz integration contracts validate bench benchmark benchmark-search benchmark-full benchmark-peers guard guard-baseline golden crd join chart-docs images site dashboard pictures lock chaos acceptance matrix release-gate interop real-engine image-check sbom clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.installed ## the development environment in .venv, pinned by hash

$(VENV)/.installed: requirements-dev.lock pyproject.toml lab/pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; set PYTHON=" >&2; exit 1; }
	@echo "setup: $$(grep -c '^[a-z]' requirements-dev.lock) pinned packages into $(VENV), about a minute and a half; pip names each of them:"
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --progress-bar off --disable-pip-version-check --no-deps --require-hashes -r requirements-dev.lock
	@echo "setup: the operator and its lab"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable . --editable ./lab
	$(BIN)/python -m pip check
	@touch $@
	@echo "setup: done"

rig: setup ## build once, into the user's cache, all that `make test` and `make demo` need (about twenty minutes on two cores)
	$(BIN)/python -m servingslo_lab.rig.build

demo: setup ## the whole system on this machine, watched live; MINUTES=6 TRACE=file.csv to change, ENGINE=llm-d-sim for llm-d-inference-sim, SCENARIO=flash-crowd SEED=0 for a crowd with admission off and on, SCENARIO=batch-limits MINUTES=12 for limits too low, too high and harmful, SCENARIO=triton MINUTES=8 for limits of real Triton servers, SCENARIO=disaggregated MINUTES=10 for prefill and decode pools, SCENARIO=classes MINUTES=32 for chat and a background job
	$(BIN)/servingslo demo --minutes $(MINUTES) $(if $(TRACE),--trace $(TRACE)) $(if $(SCENARIO),--scenario $(SCENARIO)) $(if $(ENGINE),--engine $(ENGINE)) $(if $(SEED),--seed $(SEED))

test: setup ## the tests that the change since origin/main touches, or all if that is not certain: tests/touched.py; CHANGED_SINCE=commit for another base, CHANGED_SINCE=none for all
	@$(BIN)/python -m tests.touched || $(MAKE) --no-print-directory rig
	$(BIN)/python -m pytest --touched -n $(WORKERS) $(PYTEST_ARGS)

floors: lint types layers ## ruff, mypy and import-linter

check: floors unit ## the floors, unit, property and golden tests

lint: setup ## ruff, the Dockerfile's linter, the prose linter, and promtool on the operator's metrics
	$(BIN)/ruff check operator lab tests
	$(BIN)/ruff format --check operator lab tests
	$(BIN)/python -m tests.prose.check
	$(BIN)/python -m tests.rules.own_metrics
	@if [ -x $(BIN)/hadolint ]; then $(BIN)/hadolint Dockerfile; else echo "hadolint has no build for this machine; Dockerfile not linted"; fi

types: setup ## mypy, strict
	$(BIN)/mypy

layers: setup ## import-linter: the layers and the purity of the core
	$(BIN)/lint-imports

unit: setup ## tests that need no rig, on every core
	$(BIN)/python -m pytest -n $(UNIT_WORKERS) tests/unit tests/property tests/golden tests/features $(PYTEST_ARGS)

fuzz: setup ## properties on new random examples, and 100,000 manifests, metric pages and command lines (some hours); FUZZ_EXAMPLES=n for fewer
	HYPOTHESIS_PROFILE=fuzz FUZZ_EXAMPLES=$(FUZZ_EXAMPLES) $(BIN)/python -m pytest tests/property $(PYTEST_ARGS)

integration: rig ## tests on the rig
	$(BIN)/python -m pytest tests/integration tests/e2e $(PYTEST_ARGS)

validate: setup ## the models beside an independent simulation, on a sample of the grid (minutes); ROWS=words for fewer rows
	$(BIN)/python -m tests.validation.run $(ROWS)

contracts: setup ## names of metrics and flags of each runtime, read anew out of the published packages (170 MB)
	$(BIN)/python -m tests.contracts.read

bench: setup ## time of an evaluation, a plan and a search over batch limits, beside their targets
	$(BIN)/python -m tests.benchmarks.run

benchmark: setup ## every policy on the standard traces, into docs/benchmarks and docs/benchmarks.md; continues where it stopped; PLAN=small SEEDS=1 for less
	$(BIN)/python -m tests.benchmarks.matrix_report --plan $(PLAN) --processes $(PROCESSES) $(if $(SEEDS),--seeds $(SEEDS))

benchmark-search: setup ## the best settings of other autoscalers' rules, into the lab's sim/baselines/tuned.yaml
	$(BIN)/python -m tests.benchmarks.matrix_search --processes $(PROCESSES)

benchmark-full: setup ## as benchmark, with every cold start and failures on every trace
	$(BIN)/python -m tests.benchmarks.matrix_report --plan full --processes $(PROCESSES)

benchmark-peers: setup ## other autoscalers' own code beside ours, into docs/benchmarks-peers.md; continues where it stopped; PEERS=path/to/python of an environment with ai-dynamo, SEEDS=1 ROWS=words MINUTES=n for less
	$(or $(PEERS),$(BIN)/python) -m tests.benchmarks.peers $(if $(SEEDS),--seeds $(SEEDS)) $(if $(ROWS),--rows "$(ROWS)") $(if $(filter command line,$(origin MINUTES)),--minutes $(MINUTES))

compare: setup ## ServingSLO, an HPA and KEDA live on the rig, on the same traffic; picture in out/compare.png; SEEDS=1 MINUTES=12 for less
	$(BIN)/python -m tests.benchmarks.compare $(if $(SEEDS),--seeds $(SEEDS)) $(if $(filter command line,$(origin MINUTES)),--minutes $(MINUTES))

guard: setup ## whether the promise is kept, and at what price beside the committed baseline (minutes); ROWS=words SEEDS=2 for a part, KEPT=1 for the rows that no setting is chosen on
	$(BIN)/python -m tests.benchmarks.guard --processes $(PROCESSES) $(if $(ROWS),--rows "$(ROWS)") $(if $(SEEDS),--seeds $(SEEDS)) $(if $(KEPT),--kept)

guard-baseline: setup ## write the guard's baseline from this checkout
	$(BIN)/python -m tests.benchmarks.guard --processes $(PROCESSES) --write $(if $(KEPT),--kept)

golden: setup ## write the decisions of the eleven recordings anew, after a change that is meant to move them
	$(BIN)/python -m tests.golden.replay_cases

chaos: setup ## 100,000 faults in virtual time (an hour or two); SEED=n FAULTS=60 lives one story again and tells it, STORIES=0:20 for fewer; POOLS=1 prefill and decode; GATEWAY=classes or degradation; LIVE=200 faults on the rig
	$(if $(LIVE),$(BIN)/python -m tests.chaos.live --faults $(LIVE) $(if $(SEED),--seed $(SEED)) $(if $(POOLS),--pools),$(BIN)/python -m tests.chaos.run $(if $(SEED),--seed $(SEED),--seeds $(STORIES)) --faults $(FAULTS) --processes $(PROCESSES) $(if $(ONLY),--only $(ONLY)) $(if $(POOLS),--pools) $(if $(GATEWAY),--gateway $(GATEWAY)))

acceptance: rig ## what a release waits for, into docs/acceptance.md; ONLY=install,validate for some, VLLM=path/to/python for a real engine
	$(BIN)/python -m tests.acceptance.run $(if $(ONLY),--only $(ONLY)) $(if $(VLLM),--vllm $(VLLM))

matrix: rig ## the operator on Kubernetes 1.30 to 1.37, each built first (half an hour of building each), into docs/support.md; VERSIONS=1.30,1.34 for some
	$(BIN)/python -m tests.acceptance.matrix $(if $(VERSIONS),--versions $(VERSIONS))

release-gate: ## what keeps a release: checks not passed, or not at nearly this code; tests in no check
	@$(PYTHON) -m tests.acceptance.gate

real-engine: rig ## real vLLM engines, one, two and one again, scaled by the operator (a quarter of an hour); VLLM=path/to/python of an environment with vLLM
	@$(if $(VLLM),,echo "VLLM=path/to/python is needed: docs/how-to/real-engine.md" >&2; exit 1)
	$(BIN)/python -m tests.validation.real_engine_loop --vllm $(VLLM)

interop: setup ## beside real KEDA, istiod and Kueue, which are built first (once); part of acceptance
	$(BIN)/python -m servingslo_lab.rig.build --all
	$(BIN)/python -m tests.acceptance.run --only interop

image-check: rig ## the image from the Dockerfile's steps, and as a release's pods on the rig; no container runtime, no root
	$(BIN)/python -m pytest --acceptance tests/e2e/test_image.py tests/integration/test_as_a_pod.py $(PYTEST_ARGS)

sbom: ## what the image's Python environment holds, as CycloneDX with licences, into dist; ENVIRONMENT=folder of one that is there
	rm -rf out/sbom && mkdir -p out/sbom $(dir $(SBOM))
	$(if $(ENVIRONMENT),,$(PYTHON) -m venv out/sbom/image && out/sbom/image/bin/$(HASHED) -r requirements.lock)
	$(PYTHON) -m venv out/sbom/tool && out/sbom/tool/bin/$(HASHED) -r requirements-sbom.lock
	out/sbom/tool/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible --output-file $(SBOM) $(or $(ENVIRONMENT),out/sbom/image)/bin/python
	rm -rf out/sbom

crd: setup ## generate crds/ and the chart's copy from the pydantic models
	$(BIN)/python -m servingslo.api.crd

join: setup ## write what features say into the chart, its rules and the pages
	$(BIN)/python -m tests.features.join
	$(BIN)/python -m tests.charts.reference
	$(BIN)/python -m tests.charts.metadata
	$(BIN)/python -m tests.dashboards.servingslo

chart-docs: setup ## write the chart's README, schema and metadata from values.yaml, CRDs and changelog; REPOSITORY=https://... of a release
	$(BIN)/python -m tests.charts.reference
	$(BIN)/python -m tests.charts.metadata $(if $(REPOSITORY),--repository $(REPOSITORY))

images: setup ## print every image that the chart can run, for mirrors
	@$(BIN)/python -m tests.charts.metadata --images

site: setup $(SITE)/tool/.installed ## the pages as a site with search, every link checked, served at 127.0.0.1:8000 until Ctrl-C; SERVE= to build it alone
	$(BIN)/python -m tests.website.pages $(SITE)
	NO_MKDOCS_2_WARNING=1 $(SITE)/tool/bin/mkdocs build --strict --config-file $(SITE)/mkdocs.yml
	$(if $(SERVE),@echo "site: http://$(SERVE)"; exec $(PYTHON) -m http.server --directory $(SITE)/html --bind $(subst :, ,$(SERVE)))

$(SITE)/tool/.installed: requirements-site.lock
	$(PYTHON) -m venv --clear $(SITE)/tool && $(SITE)/tool/bin/$(HASHED) -r requirements-site.lock
	@touch $@

dashboard: setup ## write the Grafana dashboard of the chart anew
	$(BIN)/python -m tests.dashboards.servingslo

pictures: setup ## draw docs/pictures again, from text and the recorded demo; DEMO=out after `make demo` for a new recording
	$(BIN)/python -m tests.pictures.draw $(if $(DEMO),--of $(DEMO))

lock: setup ## pin the dependencies again, each at its newest release
	$(COMPILE) --upgrade pyproject.toml -o requirements.lock
	$(COMPILE) --upgrade pyproject.toml --extra keda --constraints requirements.lock -o requirements-keda.lock
	$(COMPILE) --upgrade pyproject.toml lab/pyproject.toml --group dev --extra keda --extra report --extra compiled --no-emit-package servingslo -o requirements-dev.lock
	$(COMPILE) --upgrade --group build --constraints requirements-dev.lock -o requirements-build.lock
	$(COMPILE) --upgrade --group sbom -o requirements-sbom.lock
	$(COMPILE) --upgrade --group site -o requirements-site.lock

clean: ## remove what was made in this checkout; the rig's binaries stay in the user's cache
	rm -rf $(VENV) out build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache operator/*.egg-info lab/*.egg-info lab/build
