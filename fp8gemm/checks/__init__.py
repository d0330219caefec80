"""What an operand must be, said once, for the products and quantisers and for the fake kernels of their operators.

Each check raises `InputError` with the argument's name, what was expected and what came, before anything is allocated
or launched. Sizes and strides may be symbolic, so that arithmetic with them stays plain; addresses are asked for in
`fp8gemm.checks.memory` alone, which fake kernels do without. What lies in device memory is not looked at, for that
would wait for the GPU: kernels clamp it. With ``FP8GEMM_CHECK_GROUPS`` it is looked at all the same
(`fp8gemm.checks.group_values`).
"""
