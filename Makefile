# `make book` shows the book, `make test` runs everything. Both set up what they need; see README.md.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check --progress-bar on
# Built aside, so that the pages of the last build stay until there are new ones.
ASIDE := _build/next
BOOK := $(BIN)/jupyter-book build . -W -n --keep-going --path-output $(ASIDE)
# One thread: two threads on two busy cores make BLAS slower, and sums differ in the last place.
THREADS := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1

.PHONY: book html test lab notebooks bench clean help

help:
	@echo "make book       set up, build the book, serve it on this machine"
	@echo "make test       set up, build the book, run all tests"
	@echo "make lab        set up, open the notebooks in JupyterLab"
	@echo "make notebooks  execute and normalize the notebooks"
	@echo "make bench      time what has a speed target"

book: html
	@$(BIN)/python tools/serve.py

html: $(VENV)/book.done node_modules/done
	@rm -rf $(ASIDE)
	@echo "Building the book: executes every notebook, 2 minutes or more"
	@$(BOOK) 2>&1 | grep --line-buffered -v -e "running over TCP" -e "NbParserConfig(" -e "MdParserConfig(" -e "$(ASIDE)" \
	-e "Your book's HTML" -e "You can look at your book" -e "Or paste this line"; test $${PIPESTATUS[0]} -eq 0 \
	|| { echo "The book was not built (why stands above); the pages of the last build are still there." >&2; exit 1; }
	@rm -rf _build/html && mv $(ASIDE)/_build/html _build/ && rm -rf $(ASIDE)
	@echo "The book is built: _build/html/index.html"

test: $(VENV)/test.done node_modules/done html
	@$(BIN)/python tools/find_chromium.py --install
	@$(BIN)/python -m kvlib.tensors.fetch
	@$(THREADS) $(BIN)/python -m pytest -n 2 --dist loadscope

lab: $(VENV)/lab.done
	@$(BIN)/jupyter-lab --notebook-dir=notebooks $(if $(filter 0,$(shell id -u)),--allow-root)

# Some cells show torch beside numpy, so this needs what the tests need.
notebooks: $(VENV)/test.done
	@$(BIN)/python tools/notebooks.py

bench: $(VENV)/test.done html
	@$(THREADS) $(BIN)/python bench/run.py

$(VENV)/bin/python:
	@$(PYTHON) tools/preflight.py --quiet
	@$(PYTHON) -m venv $(VENV)

# A stamp per group of packages; a changed pyproject.toml installs again.
$(VENV)/%.done: pyproject.toml | $(VENV)/bin/python
	@$(BIN)/python tools/preflight.py $*
	@$(PIP) -e '.[$*]' || { echo "The Python packages could not be installed; is there a network?" >&2; exit 1; }
	@touch $@

# Without npm the same pages use CDN addresses, and the build says so.
node_modules/done: package.json package-lock.json
	@if command -v npm >/dev/null; then npm ci --no-fund --no-audit || { echo "npm could not install the browser files; is there a network?" >&2; exit 1; }; \
	else echo "npm is not installed: the pages will load MathJax, plotly and Python from a CDN."; mkdir -p node_modules; fi
	@touch $@

clean:
	@rm -rf _build
