# Each target builds its own .venv first, on any machine with Python >= 3.10; see scripts/venv.sh for which torch it uses.
#   make demo            quantise, compile, run and check a few layers
#   make test            the tests; ARGS="-k store" passes options to pytest
#   make check           style and types
#   make mutants         faulty versions of the Python that decides, and which of them no test notices; takes long
#   make clean           removes the environment and build products, never the kernel cache

VENV := .venv
ENVIRONMENT := $(VENV)/python.path
# Read when a recipe runs, by which time the file is there.
RUN = PYTHONPATH=. "$$(cat $(ENVIRONMENT))"

.PHONY: demo test check mutants clean

demo: $(ENVIRONMENT)
	@$(RUN) -m fp8gemm demo $(ARGS)

test: $(ENVIRONMENT)
	@$(RUN) -m pytest -rs $(ARGS)

check: $(ENVIRONMENT)
	@$(RUN) -m ruff check .
	@$(RUN) -m ruff format --check .
	@$(RUN) -m mypy
	@find include scripts -name '*.cu*' -exec "$$(dirname "$$(cat $(ENVIRONMENT))")/clang-format" --dry-run -Werror {} +

# ARGS='"fp8gemm.checks*"' limits it to some. What is printed at the end is in no list of those that cannot be told apart.
mutants: $(ENVIRONMENT)
	@"$$(cat $(ENVIRONMENT))" -m pip install -qq --disable-pip-version-check "mutmut>=3.8"
	@$(RUN) -m mutmut run --max-children 1 $(ARGS)
	@$(RUN) -m mutmut results > mutants/left.txt
	@sed -n 's/^\(fp8gemm[^ ]*\).*/\1/p' tests/mutations/equivalent.txt | grep -vwFf - mutants/left.txt | grep -v 'not checked' || true

clean:
	rm -rf $(VENV) $(VENV).log build dist mutants .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path './.git/*' -exec rm -rf {} +

$(ENVIRONMENT): pyproject.toml constraints.txt scripts/venv.sh
	@sh scripts/venv.sh $(VENV)
