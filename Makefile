# Each target builds its own .venv first, on any machine with Python >= 3.10; see scripts/venv.sh for which torch it uses.
#   make demo            quantise, compile, run and check a few layers
#   make test            the tests; ARGS="-k store" passes options to pytest
#   make check           style and types
#   make clean           removes the environment and build products, never the kernel cache

VENV := .venv
ENVIRONMENT := $(VENV)/python.path
# Read when a recipe runs, by which time the file is there.
RUN = PYTHONPATH=. "$$(cat $(ENVIRONMENT))"

.PHONY: demo test check clean

demo: $(ENVIRONMENT)
	@$(RUN) -m fp8gemm demo $(ARGS)

test: $(ENVIRONMENT)
	@$(RUN) -m pytest -rs $(ARGS)

check: $(ENVIRONMENT)
	@$(RUN) -m ruff check .
	@$(RUN) -m ruff format --check .
	@$(RUN) -m mypy
	@find include scripts examples -name '*.cu*' -exec "$$(dirname "$$(cat $(ENVIRONMENT))")/clang-format" --dry-run -Werror {} +

clean:
	rm -rf $(VENV) $(VENV).log build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path './.git/*' -exec rm -rf {} +

$(ENVIRONMENT): pyproject.toml constraints.txt scripts/venv.sh
	@sh scripts/venv.sh $(VENV)
