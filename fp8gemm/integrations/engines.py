"""What vLLM and SGLang call in each of their processes: entry points of theirs, which pyproject.toml names.

All do nothing unless ``FP8GEMM_ENGINES=1`` asks for it, and import nothing for it beside ``fp8gemm`` itself.
"""

from __future__ import annotations

from fp8gemm import settings


def register() -> None:
    """With ``FP8GEMM_ENGINES=1`` put fp8gemm in DeepGEMM's place, by `fp8gemm.integrations.deep_gemm.install`.

    It may be called any number of times, and touches no GPU itself.

    Raises:
        InputError: a setting has a value that is not allowed.
    """
    if settings.current().engines:
        from fp8gemm.integrations.deep_gemm import install

        install()


def register_in_vllm() -> None:
    """`register`, and with ``FP8GEMM_ENGINES=1`` the kernel for vLLM's linear layers, by `fp8gemm.integrations.vllm`.

    Raises:
        InputError: a setting has a value that is not allowed.
    """
    register()
    if settings.current().engines:
        from fp8gemm.integrations.vllm import register as register_linear_kernel

        register_linear_kernel()
