# Everything a user or a developer types. Each target sets up what it needs by itself.
PY := .venv/bin/python
# The one that the set-up installs, where the machine has none of its own.
UV := $(or $(shell command -v uv),$(or $(BACKFILL_CACHE),/var/cache/backfill)/uv/bin/uv)
# The real tests and the demo need root and apt; what needs neither uses this smaller set-up.
# Where it is set, each of the hundreds of programs that tests start compiles all its modules anew.
unexport PYTHONDONTWRITEBYTECODE
.PHONY: help demo test gate check unit component sim real bench lab setup setup-browser venv lock format docs clean soak search
.PHONY: days packages pages conformance style types structure

help:
	@echo "make demo            the whole story on real parts (simulated where that is impossible)"
	@echo "make test            some tests of each kind, on real parts as well, in a quarter of an hour"
	@echo "make gate            all that must pass before anything lands, in 50 minutes"
	@echo "make check           linters, types and what holds for every file, under a minute"
	@echo "make unit            values in, values out, in under a minute"
	@echo "make component       single parts with their processes, threads and sockets, and fakes, in two minutes"
	@echo "make sim             simulated clusters, random accidents and properties, in 20 to 30 minutes"
	@echo "make real            tests on a real one-machine cluster"
	@echo "make soak            long tests: a real pause of twenty minutes and the like, random input"
	@echo "make days DAYS=...   so many random simulated days full of accidents; SEED=... lives the same again"
	@echo "make bench NAME=...  one benchmark: $(notdir $(basename $(filter-out %/rig.py,$(wildcard tests/bench/*.py))))"
	@echo "make conformance SUITE=DIR   Slurm's own test suite, from a checkout of yours, on bare and virtual nodes"
	@echo "make packages        wheel, zipapp, .deb, .rpm and the list of parts, into dist/"
	@echo "make docs            the documentation site into dist/docs, its generated pages written anew"

demo:
	@scripts/setup.sh; code=$$?; \
	if [ $$code -eq 0 ]; then exec $(PY) -m backfill demo; \
	elif [ $$code -eq 3 ]; then $(MAKE) --no-print-directory venv && exec $(PY) -m backfill demo --simulated; \
	else exit $$code; fi

setup:
	@scripts/setup.sh

# A browser in which tests look at pages: for `make soak`, `make bench NAME=page` and pictures.
setup-browser:
	@scripts/setup.sh --browser

# The Python environment alone: no root, no apt.
venv:
	@scripts/setup.sh --python

# For daily work: of tests that are much alike it has some; the others are marked `gate`.
test: setup unit component
	BACKFILL_PLANS_COMPARED=100 $(PY) -m pytest -q -n auto -m "not real and not inside and not gate" tests/simulation tests/property
	@$(PY) -m tests.real.side_by_side --marks "real and not gate and not soak"

# What .ci/run runs. Of each simulation's plans the first are compared (tests/conftest.py); `make sim` alone: all.
gate: export BACKFILL_PLANS_COMPARED = 1000
gate: unit component sim real

check: style types structure

# Nothing of these three waits for the others: `make -j2 -O check` uses two processors.
style: venv
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	.venv/bin/lint-imports --no-cache
	.venv/bin/codespell
	.venv/bin/salt-lint $(shell find salt_states -name '*.sls')

types: venv
	$(PY) -m mypy

structure: venv
	$(PY) -m pytest -q tests/structure

unit: venv
	$(PY) -m pytest -q -n auto tests/unit

# Parts by themselves, with their processes, threads, sockets and files; and the fakes behind the ports.
component: venv
	$(PY) -m pytest -q -n auto tests/component tests/contract

# The daemon's own cycle in simulated time, and whatever is tried with random input.
sim: venv
	$(PY) -m pytest -q -n auto tests/simulation tests/property

# Files beside each other: they wait much more than they compute. One file: FILES=tests/real/test_lab.py
real: setup
	@$(PY) -m tests.real.side_by_side $(FILES)

# Random input that nobody has tried yet. Its seed is printed; SEED=... tries the same again.
search: venv
	@seed=$${SEED:-$$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')}; \
	echo "random input: SEED=$$seed tries the same again"; \
	BACKFILL_SEARCH=1 $(PY) -m pytest -q -n auto --hypothesis-seed=$$seed tests/property

# Random days full of accidents, drawn from a seed that is printed. One day with its story: DAY=123.
days: venv
	@$(PY) -m tests.property.many_days --days $(or $(DAYS),1000) $(if $(SEED),--seed $(SEED)) $(if $(DAY),--day $(DAY)) \
		$(if $(CYCLES),--cycles $(CYCLES))

# Hours of a cluster's life in real time, such as a pause of twenty minutes: not part of `make test`.
# What it holds and how long each takes: docs/soak.md.
soak: setup-browser search
	@$(MAKE) --no-print-directory days DAYS=10000 CYCLES=10000
	@$(PY) -m tests.real.side_by_side --marks soak --most 2 --limit-s 14400 $(FILES)

bench: setup
	@test -f "tests/bench/$(NAME).py" || { echo "make bench NAME=...: no benchmark '$(NAME)' in tests/bench" >&2; exit 2; }
	@$(PY) -m tests.bench.$(NAME)

# Slurm's own test suite on bare and on virtual nodes: docs/conformance.md. Some of it: ONLY=tests/test_102_1.py
conformance: setup
	@test -n "$(SUITE)" || { echo "make conformance SUITE=DIR: name a checkout of Slurm's sources" >&2; exit 2; }
	@$(PY) -m tests.conformance $(SUITE) $(if $(SLURM),--slurm $(SLURM)) $(if $(ONLY),--only $(ONLY))

# What people install, into dist/. Some of it: WHAT="wheel deb12"
packages: setup
	@$(PY) packaging/build.py $(WHAT)

docs: pages
	@scripts/setup.sh --docs
	@$(PY) packaging/pages.py

# The pages alone that are generated from the code.
pages: venv
	$(PY) -m backfill.config.reference >docs/policy.md
	$(PY) -m backfill.ui.reference >docs/cli.md
	$(PY) -m tests.real.soak_list

lock:
	$(UV) pip compile -q pyproject.toml --extra libvirt --extra openstack --extra web --extra condor --group dev --generate-hashes --no-header \
		--no-annotate --python-version 3.11 -o requirements.lock
	$(UV) pip compile -q pyproject.toml --extra libvirt --extra openstack --extra web --extra condor --generate-hashes --no-header \
		--no-annotate --python-version 3.11 -c requirements.lock -o requirements.site.lock
	$(UV) pip compile -q --group package --generate-hashes --no-header --no-annotate --python-version 3.11 \
		-o requirements.package.lock
	$(UV) pip compile -q --group docs --generate-hashes --no-header --no-annotate --python-version 3.11 \
		-o requirements.docs.lock
	$(UV) pip compile -q --group conformance --generate-hashes --no-header --no-annotate --python-version 3.11 \
		-o requirements.conformance.lock
	$(UV) pip compile -q --group salt --generate-hashes --no-header --no-annotate --python-version 3.11 \
		-o requirements.salt.lock

format: venv
	$(PY) -m ruff format .
	$(PY) -m ruff check --fix .

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis reports
