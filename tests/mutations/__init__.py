"""Deliberate faults in the device headers, each of which some test must notice by its result.

    python -m pytest tests/gpu/test_gemm.py --mutant promotion-dropped     # the named tests, on faulty kernels
    python -m pytest tests/gpu/test_stress.py --chaos                      # right kernels with random short sleeps

`mutant` says what a mutant is, `catalogue` lists them all, `tree` makes the faulty headers, in a copy, and `chaos` the
sleeps; `runner` runs a mutant's tests in a process of its own and tells how they ended.
"""
