# make demo:  train a small TailProp on embedded data and draw what it does.
# make test:  lint, types, every test.   make quick: lint, types, a smoke set and the tests beside what changed.
# make docs:  the site, every link checked.
# make campaign: attack the package for two hours and print what came of it (MINUTES=10, SEED=1).
# Each builds its own environment first; nothing but Python (3.11 or newer) and make is needed.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/ready
TIMM   := .cache/timm/tests/test_models.py
SEED   ?= 0
MINUTES ?= 120
TABLE  ?= .cache/campaign.csv

.PHONY: demo test quick check chromium docs bench campaign clean

demo: $(READY)
	$(BIN)/tailprop demo

test: check chromium $(TIMM)
	$(BIN)/python -m pytest -n 2 --dist worksteal

quick: check chromium
	$(BIN)/python -m pytest -n 2 --dist worksteal -q $$($(BIN)/python tests/affected.py)

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "the site is in .cache/site"

campaign: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.campaign --seed $(SEED) --minutes $(MINUTES) --table $(TABLE)

check: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

# The browser in which the page of `tailprop app` is tested.
chromium:
	@for name in chromium chromium-browser google-chrome; do command -v $$name >/dev/null && exit 0; done; \
	if ! command -v apt-get >/dev/null; then echo "install Chromium: the tests open the page of tailprop app in it" >&2; exit 2; fi; \
	if [ "$$(id -u)" = 0 ]; then SUDO=; elif sudo -n true 2>/dev/null; then SUDO=sudo; \
	else echo "run once: sudo apt-get install chromium (the tests open the page of tailprop app in it)" >&2; exit 2; fi; \
	$$SUDO apt-get update -qq && $$SUDO env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null

bench: $(READY)
	$(BIN)/tailprop bench $(if $(VHEAT),--vheat-code $(VHEAT))
	$(BIN)/tailprop loader

# constraints.txt holds the versions the tests have seen; pyproject.toml the ranges that should work.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --no-compile --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

# timm's tests come with its source distribution only.
$(TIMM): $(READY)
	rm -rf .cache/timm && mkdir -p .cache/timm
	$(BIN)/pip download --quiet --disable-pip-version-check --no-deps --no-binary timm --constraint constraints.txt --dest .cache/timm timm
	tar -xzf .cache/timm/timm-*.tar.gz --strip-components=1 -C .cache/timm
	touch $@

clean:
	rm -rf $(VENV) .cache
