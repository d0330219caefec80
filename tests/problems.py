"""Any product that there is, drawn by hypothesis."""

from __future__ import annotations

from hypothesis import strategies as st

from fp8gemm.tuning.problem import Addend, OutputType, Problem, Scaling, StoreKind

TERMS = tuple(addend for addend in Addend if addend is not Addend.IN_PLACE)
"""What C and the bias may be whatever else a product is."""


def any_problem(m: st.SearchStrategy[int]) -> st.SearchStrategy[Problem]:
    """Every kind of problem of every size, with these M."""
    ordinary = st.builds(
        Problem,
        m=m,
        n=st.integers(1, 40_000),
        k=st.integers(1, 1200).map(lambda sixteenths: 16 * sixteenths),
        output=st.sampled_from(OutputType),
        store=st.sampled_from(StoreKind),
        scaling=st.sampled_from(Scaling),
        c=st.sampled_from(TERMS),
        bias=st.sampled_from(TERMS),
        batch_invariant=st.booleans(),
        static_weights=st.booleans(),
    )
    return st.one_of(ordinary, ordinary.map(Problem.accumulating))
