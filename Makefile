# Each target builds its own .venv first, on any machine with Python >= 3.10; see scripts/venv.sh for which torch it uses.
#   make demo            quantise, compile, run and check a few layers
#   make test            the tests, those of a GPU where there is a Hopper one; ARGS="-k store" passes options to pytest.
#                        Kernels that only cover tiles, outputs and stores, and faulty versions: a third, which the first
#                        lines of a run name (FP8GEMM_TEST_THIRD). What was compiled is kept in .cache/test-kernels
#                        (FP8GEMM_TEST_CACHE)
#   make test-all        the same with all of these kernels, as every night: for a change of device headers or of tiles
#   make test-gpu        the tests of a GPU alone; each says why it is skipped where there is none
#   make engines         vLLM's and SGLang's Python, and vLLM's tests, into ~/.cache/fp8gemm-tests/engines (or
#                        FP8GEMM_TEST_ENGINES); then make test runs them on the reference. Half a gigabyte, once;
#                        ARGS=--compiled: vLLM's machine code too, for its tests on a GPU
#   make check           style and types
#   make pages           links, file names and examples of the pages, and the project's own files
#   make docs            the pages as a site, in build/site: open index.html there; a dead link is an error
#   make dist            a wheel and an sdist in dist/, looked at as an index would
#   make matrix          dist, then the wheel in a new environment, as a user installs it; ARGS="--python 3.12 --torch 2.8.0"
#   make release         dist, where TAG=v0.1.0 is what the tree says it is; what has changed in build/release.md
#   make mutants         faulty versions of the Python that decides, and which of them no test notices; takes long
#   make clean           removes the environment and build products, never the kernel cache

VENV := .venv
ENVIRONMENT := $(VENV)/python.path
# Read when a recipe runs, by which time the file is there.
RUN = PYTHONPATH=. "$$(cat $(ENVIRONMENT))"

.PHONY: demo test test-all test-gpu engines check pages docs dist matrix release mutants clean

demo: $(ENVIRONMENT)
	@$(RUN) -m fp8gemm demo $(ARGS)

test: $(ENVIRONMENT)
	@$(RUN) -m tests $(ARGS)

test-all: export FP8GEMM_TEST_THIRD := all
test-all: test

test-gpu: $(ENVIRONMENT)
	@$(RUN) -m pytest -rs tests/gpu $(ARGS)

engines: $(ENVIRONMENT)
	@$(RUN) -m tests.engines.fetch $(ARGS)

check: $(ENVIRONMENT)
	@$(RUN) -m ruff check .
	@$(RUN) -m ruff format --check .
	@$(RUN) -m mypy
	@find include scripts examples -name '*.cu*' -exec "$$(dirname "$$(cat $(ENVIRONMENT))")/clang-format" --dry-run -Werror {} +

pages: $(ENVIRONMENT)
	@$(RUN) -m tests $(addprefix tests/unit/test_,pages.py house_page.py serving_page.py examples.py joining.py) $(ARGS)

docs: $(ENVIRONMENT)
	@"$$(cat $(ENVIRONMENT))" -m pip install -qq --disable-pip-version-check "mkdocs-material>=9.6,<10" "mkdocstrings-python>=2"
	@NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --quiet $(ARGS)

# Nothing is uploaded.
dist: $(ENVIRONMENT)
	@"$$(cat $(ENVIRONMENT))" -m pip install -qq --disable-pip-version-check "twine>=6.1"
	@rm -rf dist
	@$(RUN) -m hatchling build
	@$(RUN) -m twine check --strict dist/*

matrix: dist
	@$(RUN) scripts/matrix.py $(ARGS)

release: $(ENVIRONMENT)
	@mkdir -p build
	@$(RUN) scripts/release.py "$$TAG" > build/release.md
	@$(MAKE) --no-print-directory dist

# ARGS='"fp8gemm.checks*"' limits it to some. What is printed at the end is in no list of those that cannot be told apart.
mutants: $(ENVIRONMENT)
	@"$$(cat $(ENVIRONMENT))" -m pip install -qq --disable-pip-version-check "mutmut>=3.8"
	@$(RUN) -m mutmut run --max-children 1 $(ARGS)
	@$(RUN) -m mutmut results > mutants/left.txt
	@sed -n 's/^\(fp8gemm[^ ]*\).*/\1/p' tests/mutations/equivalent.txt | grep -vwFf - mutants/left.txt | grep -v 'not checked' || true

clean:
	rm -rf $(VENV) $(VENV).log build dist mutants .cache .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path './.git/*' -exec rm -rf {} +

$(ENVIRONMENT): pyproject.toml constraints.txt scripts/venv.sh
	@sh scripts/venv.sh $(VENV)
