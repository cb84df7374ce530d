# lowmark. `make` or `make help` lists the targets.
# The first run of a target sets up what it needs, in .venv, .cache and build, nowhere else; the next run starts at once.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.SUFFIXES:
.DEFAULT_GOAL := help
# Every Python process of Spark's imports lowmark: it should find compiled modules, also where CI forbids to keep them.
export PYTHONDONTWRITEBYTECODE :=

# What a user may set: make venv PYTHON=python3.12, make test PYTEST_ARGS='-k kafka', make demo DEMO_ARGS='--seed 7'.
# SPARK: the version that make test and make bench run on, 4.2.0 of constraints.txt or one of SPARKS.
# HASHED=1: make venv takes only files whose hashes are in hashes.txt, which needs Python 3.11.5 or newer.
# WORKERS: processes that share the tests, each with a Spark session and servers of its own, 3 GB at most; 0: this one.
# On two cores three processes take four fifths of the time of two, because some tests wait.
PYTHON ?=
PYTEST_ARGS ?=
DEMO_ARGS ?=
BENCH_ARGS ?=
FUZZ_ARGS ?=
FAILPOINTS_ARGS ?=
WORKERS ?= 3
HASHED ?=
SPARK ?=
SPARKS := 4.0.5 4.1.4 4.3.0

ifneq ($(filter-out 4.2.0 $(SPARKS),$(SPARK)),)
$(error SPARK=$(SPARK): expected one of 4.2.0 $(SPARKS))
endif

bin := .venv/bin
spark_bin := $(if $(filter $(SPARKS),$(SPARK)),.venv-$(SPARK)/bin,$(bin))
say = printf 'lowmark: %s\n'
# An environment that was copied or moved with the checkout points into the old one, so it is made again.
here := $(if $(filter $(CURDIR),$(shell cat .venv/.where 2>/dev/null)),,again)

# Likewise where the link tree in build/ was removed by hand.
linked := $(if $(wildcard build/__editable__.lowmark-*/lowmark/watermark/.),,again)
comma := ,

.PHONY: help venv classes demo demo-kafka demo-kinesis demo-pravega check test lint format docs pictures screenshots bench bench-quick bench-compare fuzz failpoints torture wheel java jars servers clean again sparks versions

help: ## this list
	@sed -n 's/^\([a-z][a-z-]*\):.*## /\1\t/p' Makefile | while IFS=$$'\t' read -r name what; do printf '  make %-13s %s\n' "$$name" "$$what"; done

venv: .venv/.installed ## the Python environment, in .venv
	@:

demo: java .venv/.installed ## the main job, native Spark beside lowmark, no server needed
	@$(bin)/lowmark demo $(DEMO_ARGS)

demo-kafka: java .venv/.installed .cache/jars/kafka.stamp .cache/jars/spark-kafka.stamp ## the same on a real Kafka broker, started and stopped here
	@$(bin)/python -m tests.commands.demo_kafka $(DEMO_ARGS)

demo-pravega: java .venv/.installed-test .cache/jars/pravega.stamp .cache/jars/pravega-client.stamp ## the same on a real Pravega, started and stopped here
	@$(bin)/python -m tests.commands.demo_pravega $(DEMO_ARGS)

demo-kinesis: java .venv/.installed-test ## the same on a server that stands in for Kinesis
	@$(bin)/python -m tests.commands.demo_kinesis $(DEMO_ARGS)

# The laws are held against a sixteenth of the worlds that make test draws (tests/laws/strategies.py).
# The marks are those of tests/halves.py, which also keeps what starts a JVM or a server out of this half.
check: lint ## before every commit: ruff, mypy --strict, all quick tests: without a JVM, a server and what takes long
	@LOWMARK_DRAWS=few $(bin)/python -m pytest --numprocesses $(WORKERS) --dist worksteal -q --ignore tests/live -m "not spark and not live and not slow and not torture" $(PYTEST_ARGS)

format: .venv/.installed-test ## the code as ruff lays it out, imports in order
	@$(bin)/ruff check --fix-only --quiet .
	@$(bin)/ruff format --quiet .

# A process that ends early ends the run, because pytest-xdist 3.8 gives its finished files to others, which wait for
# ever (its issue 1378).
test: lint servers sparks ## everything: ruff, mypy --strict, all tests on real servers; on another Spark: SPARK=4.0.5
	@$(spark_bin)/python -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder --max-worker-restart 0 $(PYTEST_ARGS)

lint: .venv/.installed-test ## ruff and mypy --strict
	@$(bin)/ruff check .
	@$(bin)/ruff format --check .
	@$(bin)/mypy

docs: .venv/.installed-test ## the pages of docs/ as HTML, in build/docs
	@$(bin)/mkdocs --quiet build --strict && $(say) "build/docs/index.html"

pictures: .venv/.installed ## the pictures of the pages, drawn anew
	@$(bin)/python docs/pictures.py

bench: java .venv/.installed-test jars .cache/jars/flink-sql.stamp $(if $(filter $(SPARKS),$(SPARK)),.venv-$(SPARK)/.installed) ## native Spark against lowmark, as a table and as JSON
	@$(spark_bin)/python -m tests.bench $(BENCH_ARGS)

bench-quick: ## the same in five minutes: the rows that a change is most likely to spoil
	@$(MAKE) --no-print-directory bench BENCH_ARGS=--quick

bench-compare: .venv/.installed-test ## A=old.json B=new.json: the rows that got worse beyond their spread
	@$(bin)/python -m tests.bench.compare $(A) $(B)

screenshots: java .venv/.installed-test ## the pictures of docs/pictures, of the real page
	@tests/servers/provide chromium
	@$(bin)/python -m tests.commands.screenshots

versions: java sparks ## what works on which Spark, by trying it
	@$(bin)/python -m tests.commands.version_table $(SPARK)

fuzz: .venv/.installed-test ## every decoder against inputs that cannot be, for minutes: FUZZ_ARGS='--minutes 10 --seed 7'
	@$(bin)/python -m tests.fuzz $(FUZZ_ARGS)

failpoints: java .venv/.installed-test ## every function of the driver, a planner and lowmark serve raises once under a query, for minutes: FAILPOINTS_ARGS='--minutes 60 --seed 7'
	@$(bin)/python -m tests.failpoints.run $(FAILPOINTS_ARGS)

torture: servers .venv/.installed-test ## kills at random moments, for minutes
	@$(bin)/python -m pytest -m torture $(PYTEST_ARGS)

wheel: .venv/.installed ## wheel and source distribution, in dist/: the same bytes from the same commit
	@rm -rf dist; $(bin)/python -m tests.packages dist

clean: ## removes all that make has made
	rm -rf .venv .venv-* .cache build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis ./*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# --- Java and the servers of the live tests ---------------------------------------------------------------------------

# Installed where that is permitted, as for the tests, unless JAVA_HOME says which one to take.
java: $(if $(JAVA_HOME),,.cache/java.asked)
	@[ -n "$${JAVA_HOME:-}" ] && java=$$JAVA_HOME/bin/java || java=java; \
	found=$$("$$java" -version 2>&1 | sed -n 's/.*version "\([0-9][^"]*\)".*/\1/p' | head -n 1) || true; \
	major=$${found%%[^0-9]*}; \
	if [ "$${major:-0}" -lt 17 ]; then \
	    [ -n "$$found" ] && was="$$java is version $$found" || was="$$java does not run"; \
	    $(say) "Spark needs Java 17 or newer, and $$was; install it (Debian: apt install openjdk-17-jre-headless) or set JAVA_HOME" >&2; exit 1; \
	fi

# Java first: the rest needs it. Each step says in one line what it could not get; the tests that need it then skip by name.
servers: .cache/java.asked jars classes
	@tests/servers/provide prometheus
	@tests/servers/provide alertmanager
	@tests/servers/provide chromium
	@tests/servers/provide redis
	@$(MAKE) --no-print-directory java

# Half of what a Spark session costs at its start: a minute once, and the tests start fifty.
# The module returns at once if this environment has its archive.
classes: .venv/.installed-test $(if $(filter $(SPARKS),$(SPARK)),.venv-$(SPARK)/.installed) .cache/java.asked
	@$(spark_bin)/python -m tests.servers.class_archive >.cache/classes.log 2>&1 || \
	    $(say) "Spark's classes could not be archived, so tests take longer (.cache/classes.log)" >&2

# Spark's Kafka connector for each line that has one, as the tests of other versions ask for them.
jars: $(patsubst %,.cache/jars/spark-kafka%.stamp,-4.0 -4.1) .cache/jars/spark-kafka.stamp .cache/jars/delta.stamp
jars: .cache/jars/kafka.stamp .cache/jars/flink.stamp .cache/jars/hdfs.stamp .cache/jars/s3a.stamp ## jars for the live tests and the benchmark: Kafka, its Spark connectors, Pravega, HDFS, S3A, Delta, Iceberg, Flink
jars: .cache/jars/pravega.stamp .cache/jars/pravega-client.stamp .cache/jars/iceberg.stamp

.cache/jars/%.stamp: tests/servers/jars/%.xml | .cache/java.asked
	@tests/servers/provide jars $*

.cache/java.asked:
	@mkdir -p $(@D)
	@tests/servers/provide java
	@touch $@

# --- the Python environment -------------------------------------------------------------------------------------------

# pip says nothing but errors; a registry out of reach is one clear line. The whole output stays in .venv/pip.log.
# What a failed pip prints differs from version to version and from cause to cause, so the registry is asked for one
# small package: if that cannot be had either, it is out of reach, else the packages are at fault.
run_pip := $(bin)/python -m pip --disable-pip-version-check --no-input
define pip
if ! $(run_pip) --retries 2 install --quiet --constraint constraints.txt $(1) >.venv/pip.log 2>&1; then \
    if ! $(run_pip) --retries 0 download --quiet --no-cache-dir --no-deps --dest .venv/probe wheel >>.venv/pip.log 2>&1; \
    then $(say) "cannot reach the package registry; check the network, the proxy and pip's own settings, then run make again (pip's output: .venv/pip.log)" >&2; \
    else grep -v '^WARNING' .venv/pip.log | tail -n 25 >&2; $(say) "pip could not install the packages, see above (all of it: .venv/pip.log)" >&2; fi; \
    exit 1; \
fi
endef

# Made once: a change of constraints.txt or pyproject.toml installs the difference into it.
.venv/.made: $(here)
	@rm -rf .venv; python=; \
	for each in $(or $(PYTHON),python3 python3.13 python3.12 python3.11 python3.10); do \
	    if "$$each" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then python=$$each; break; fi; \
	done; \
	if [ -z "$$python" ]; then \
	    $(say) "Python 3.10 or newer is needed, and $(if $(PYTHON),$(PYTHON) is not that,none was found); install it (Debian: apt install python3 python3-venv) or name one: make PYTHON=/path/to/python3" >&2; exit 1; \
	fi; \
	if ! "$$python" -c 'import ensurepip, venv' 2>/dev/null; then \
	    $(say) "$$python cannot make an environment; install the missing part (Debian: apt install python3-venv) or name another: make PYTHON=/path/to/python3" >&2; exit 1; \
	fi; \
	$(say) "setting up .venv with $$("$$python" --version), about 1 GB the first time" >&2; \
	"$$python" -m venv .venv
	@printf '%s\n' '$(CURDIR)' >.venv/.where; touch $@

# A strict editable install: a tree of links in build/ that looks like the wheel, so that Python, mypy and editors all see
# `lowmark.watermark`. setuptools links file by file, and a new file would need a new install; here each folder becomes one
# link instead, so that files come and go as they do in the checkout.
define install
rm -rf build/__editable__.lowmark-*; $(call pip,--no-build-isolation --config-settings editable_mode=strict --editable '.[$(1)]'); \
for folder in watermark sources integration; do \
    tree=$$(echo build/__editable__.lowmark-*/lowmark); \
    [ -d "$$tree" ] || { $(say) "setuptools left no single link tree in build/ but $$tree" >&2; exit 1; }; \
    rm -rf "$$tree/$$folder"; ln -s "../../../$$folder" "$$tree/$$folder"; \
done
endef

# --no-build-isolation: pyspark (a source package) and lowmark are built by the setuptools of constraints.txt.
.venv/.installed: .venv/.made constraints.txt pyproject.toml $(linked)
	@$(call pip,$(if $(HASHED),--require-hashes --requirement hashes-tools.txt,pip setuptools wheel))
	@$(if $(HASHED),$(call pip,--require-hashes --no-build-isolation --requirement hashes.txt))
	@$(call install,kafka); touch $@

.venv/.installed-test: .venv/.installed
	@$(call install,kafka$(comma)test); touch $@

# Other versions of Spark: an environment that has pyspark of its own, and behind it on the path all that .venv has.
# Stored, not compressed: the wheel that is built of the source package is unpacked in the same minute.
sparks: .venv/.installed-test
	@$(MAKE) --no-print-directory --jobs 3 $(foreach each,$(if $(filter $(SPARKS),$(SPARK)),$(SPARK),$(SPARKS)),.venv-$(each)/.installed)

.venv-%/.installed: .venv/.made | .venv/.installed-test
	@$(say) "setting up .venv-$*, for Spark $*: 500 MB" >&2; \
	rm -rf .venv-$*; $(bin)/python -m venv --without-pip .venv-$*; \
	site=$$(.venv-$*/bin/python -c 'import site; print(site.getsitepackages()[0])'); \
	behind=$$($(bin)/python -c 'import site; print(site.getsitepackages()[0])'); \
	if ! $(run_pip) --retries 2 install --quiet --no-build-isolation --no-deps --config-settings=--build-option=--compression=stored \
	    --target "$$site" pyspark==$* >.venv-$*/pip.log 2>&1; then \
	    grep -v '^WARNING' .venv-$*/pip.log | tail -n 25 >&2; $(say) "pip could not install pyspark $*, see above (all of it: .venv-$*/pip.log)" >&2; exit 1; \
	fi; \
	printf 'import site; site.addsitedir("%s")\n' "$$behind" >"$$site/behind.pth"; touch $@

again: # a prerequisite that is never up to date
