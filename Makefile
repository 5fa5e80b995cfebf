# `make demo` and `make test` do all their own set-up; everything else here uses the same .venv.
PY := .venv/bin/python
PYTEST := $(PY) $(if $(GUESTWARD_COVERAGE),-m coverage run -p )-m pytest
# The fast tests use all processors, but not under coverage, which sees one process only.
FAST := $(PYTEST) $(if $(GUESTWARD_COVERAGE),,-n auto)

.PHONY: demo test unit install-tests scenarios e2e soak red-proofs mutants check lint types imports docs docs-check coverage versions bench clean help

demo: .venv/ready            ## watch the real agent at work on a stand-in PVE host (about a minute)
	@$(PY) -m guestward demo

test: .venv/ready            ## everything that must pass: unit, install script, end to end, and the red proofs
	@$(MAKE) --no-print-directory unit install-tests scenarios e2e red-proofs

unit: .venv/ready            ## the fast tests
	@$(FAST) tests/unit tests/contract tests/helper

install-tests: .venv/ready   ## the host install script, end to end against a stand-in pveum
	@$(PY) -m pytest -n auto tests/install

scenarios: .venv/ready       ## the golden scenarios; UPDATE=1 writes their logs anew
	@$(if $(UPDATE),GUESTWARD_SCENARIOS=update )$(FAST) tests/scenarios

e2e: .venv/ready             ## the real agent process against a PVE API over real HTTPS
	@$(PYTEST) tests/e2e

red-proofs: .venv/ready      ## each red proof of the design must turn a named test red
	@$(PY) tools/red-proofs

soak: .venv/ready            ## seven random days each of SEEDS=300 hosts; what fails is made small and written down
	@$(PY) -m tests.soak --seeds $(or $(SEEDS),300) --jobs $(or $(JOBS),2)

mutants: .venv/ready         ## mutation tests of the policy: a test must notice nearly every small change of it (minutes)
	@$(PY) tools/mutants

check: lint types imports docs-check

lint: .venv/ready
	@$(PY) -m ruff check agent tests tools
	@$(PY) -m ruff format --check agent tests tools

types: .venv/ready
	@$(PY) -m mypy

imports: .venv/ready         ## the layers and doors of the design, as contracts
	@.venv/bin/lint-imports

docs: .venv/ready            ## write the reference pages from the code
	@$(PY) tools/generate-docs

docs-check: .venv/ready
	@$(PY) tools/generate-docs --check

versions: .venv/ready        ## the tests with the libraries of Debian 12 and 13
	@tools/versions

bench: .venv/ready           ## what a sweep, the idle daemon and a scrape cost
	@$(PY) tools/bench

clean:
	rm -rf .venv .venvs .mutation build dist agent/*.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .coverage*
	find agent tests tools -name __pycache__ -type d -exec rm -rf {} +

help:                        ## this list
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1: /p' Makefile

.venv/ready: pyproject.toml constraints.txt tools/setup-venv
	@tools/setup-venv
	@touch .venv/ready
