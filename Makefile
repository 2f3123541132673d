# make demo        try it, on real data: the log survives its leader's death, a Spark stream its driver's; SPARK=0: only the first
# make test        every lane of tests, two at a time where the machine can
# make test-long   the slow tests, for which CI has no time, and tests/long_results.md
# make check       format, lint, types, layers
# make LANE        one lane: fast core sim ray conformance spark chaos
# make sim SEED=7  replays one seed of the simulator and prints its trace; make sim SEEDS=500 runs many (EVENTS=n for longer runs,
#              GROUPS=1 for those with consumer groups, CLIENTS=1 for those with the production clients, PLANS=1 for those
#              whose controllers move, TRANSACTIONS=1 for those with the production coordinator of transactions,
#              DISKS=1 for those whose brokers have two disks each);
#              make sim HOURS=100 runs
#              until 100 hours of simulated clusters' time are done, and keeps a tally in sim-tally.json, from which it goes on
# make fuzz FRAMES=10000000 sends changed requests of every API and version to a listener, SEED=1, and prints what became of them:
#              a million frames take four to ten minutes on two cores, ten million one to two hours
# make fuzz-guided SECONDS=600 FRAMES=10000000 lets a coverage-guided fuzzer choose the requests (Atheris, which it installs into
#              .venv-fuzz), until one of both is reached; it goes on from what it kept in build/fuzz. Both write tests/fuzz_results.md
# make fuzz-long FRAMES=10000000 SEED=1 changes further what the guided fuzzer has kept, at every door and without its tracer, and
#              counts what the process holds; writes tests/long_fuzz_results.md. Some 2,900 frames per second of a core
# make mutations   patches faults into the machines, hunts each with up to 200 seeds, writes tests/sim/mutations.md
# make matrix      smoke tests beside other releases of Python, Ray and PySpark, each in an environment of its own; docs/platforms.md
# make aarch64     builds the wheel for Linux on aarch64 and runs the tests of records in it, under qemu-user; needs apt-get, as root
# make bench       the benchmarks, one JSON file and one table each, and docs/benchmarks.md
# make ray-up      ray up cluster.yaml over SSH, on this machine alone; needs root (outside CI); TLS=1: with TLS between the processes
# make soak        random faults on real processes for MINUTES=10, under a load that knows what was acknowledged; where others use
#              the machine, too: PACE=3 leaves three times as long between faults, RATE=2000 offers fewer records a second

.DEFAULT_GOAL := help
SHELL := /bin/sh
BIN := .venv/bin
INSTALLED := .venv/.installed
SPARK_INSTALLED := .venv/.installed-spark
FUZZ_INSTALLED := .venv-fuzz/.installed
LANES := fast core ray conformance chaos

.PHONY: help demo test test-long check format bench ray-up soak constraints clean sim fuzz fuzz-guided fuzz-long mutations matrix aarch64 spark $(LANES)

help:
	@sed -n 's/^# make/make/p' Makefile

$(INSTALLED): pyproject.toml constraints.txt .ci/find-python build_kernel.py $(wildcard raylog/records/kernel*.[ch])
	@python=$$(sh .ci/find-python) || exit 1; \
	echo "Setting up .venv with $$python (once; a minute or two)"; \
	{ [ -x $(BIN)/python ] && $(BIN)/python -c 'import pip' 2>/dev/null; } || "$$python" -m venv --clear .venv || exit 1; \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[data,test,demo]' || exit 1
	@touch $@

$(SPARK_INSTALLED): $(INSTALLED)
	@echo "Adding Spark to .venv (once; a minute or two)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[raydp]'
	@touch $@

demo:
	@[ -e $(INSTALLED) ] || echo "Installing into .venv, once: raylog, Ray and the tools of its tests, 1.1 GB"
ifneq ($(SPARK),0)
	@[ -e $(SPARK_INSTALLED) ] || \
		echo "Installing into .venv, once, for the second act: Spark, RayDP and a Java, 0.5 GB; make demo SPARK=0 leaves it out"
endif
	@$(MAKE) -s $(if $(filter 0,$(SPARK)),$(INSTALLED),$(SPARK_INSTALLED))
	@$(BIN)/python -c 'from raylog.cli.entry import demo; demo()'
ifneq ($(SPARK),0)
	@echo
	@$(BIN)/python examples/flights_pipeline.py
endif

test: $(SPARK_INSTALLED)
	@$(BIN)/python .ci/lanes.py

test-long: $(SPARK_INSTALLED)
	@$(BIN)/python .ci/lanes.py --long

$(LANES): $(INSTALLED)
	@$(BIN)/python .ci/lanes.py $@

spark: $(SPARK_INSTALLED)
	@$(BIN)/python .ci/lanes.py spark

sim: $(INSTALLED)
ifdef SEED
	@$(BIN)/python -m raylog.simulator --seed $(SEED) $(if $(EVENTS),--events $(EVENTS)) $(if $(GROUPS),--groups) $(if $(CLIENTS),--clients) $(if $(PLANS),--plans) $(if $(TRANSACTIONS),--transactions) $(if $(DISKS),--disks) --trace
else ifdef SEEDS
	@$(BIN)/python -m raylog.simulator --seeds $(SEEDS) $(if $(EVENTS),--events $(EVENTS)) $(if $(GROUPS),--groups) $(if $(CLIENTS),--clients) $(if $(PLANS),--plans) $(if $(TRANSACTIONS),--transactions) $(if $(DISKS),--disks) --keep-going
else ifdef HOURS
	@$(BIN)/python -m raylog.simulator --hours $(HOURS)
else
	@$(BIN)/python .ci/lanes.py sim
endif

matrix: $(INSTALLED)
	@$(BIN)/python tests/matrix/matrix.py $(ROWS)

aarch64: $(INSTALLED)
	@sh tests/matrix/aarch64.sh

fuzz: $(INSTALLED)
	@$(BIN)/python tests/listener/fuzz.py --results $(if $(FRAMES),--frames $(FRAMES)) $(if $(SEED),--seed $(SEED))

$(FUZZ_INSTALLED): $(INSTALLED)
	@echo "Setting up .venv-fuzz with Atheris (once)"
	@$(BIN)/python -m venv --clear .venv-fuzz
	@.venv-fuzz/bin/python -m pip install --quiet --disable-pip-version-check atheris==3.0.0
	@$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
		> "$$(.venv-fuzz/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/raylog.pth"
	@touch $@

fuzz-guided: $(FUZZ_INSTALLED)
	@$(BIN)/python tests/listener/fuzz.py --results --guided $(or $(SECONDS),600) --frames $(or $(FRAMES),10000000) $(if $(SEED),--seed $(SEED))

fuzz-long: $(INSTALLED)
	@$(BIN)/python tests/listener/long_fuzz.py --results --frames $(or $(FRAMES),10000000) $(if $(SEED),--seed $(SEED)) $(if $(SECONDS),--seconds $(SECONDS))

mutations: $(INSTALLED)
	@$(BIN)/python tests/sim/hunts.py

check: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(INSTALLED)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(SPARK_INSTALLED)
	@missed=0; \
	for script in benchmarks/bench_*.py benchmarks/failover.py; do $(BIN)/python "$$script" || missed=1; done; \
	$(BIN)/python benchmarks/report.py; \
	exit $$missed

ray-up: $(INSTALLED)
	@$(BIN)/python tests/launcher/ray_up.py $(if $(TLS),--tls)

soak: $(INSTALLED)
	@$(BIN)/python tests/chaos/soak.py --minutes $(or $(MINUTES),10) $(if $(SEED),--seed $(SEED)) $(if $(PACE),--pace $(PACE)) $(if $(RATE),--rate $(RATE))

constraints: $(SPARK_INSTALLED)
	@{ sed -n 1p constraints.txt; $(BIN)/python -m pip freeze --all --exclude-editable | grep -v '^pip=='; } > constraints.new
	@mv constraints.new constraints.txt

clean:
	rm -rf .venv .venv-fuzz build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage
	find . -name __pycache__ -prune -exec rm -rf {} +
