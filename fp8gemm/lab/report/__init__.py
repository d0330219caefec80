"""``fp8gemm report``: one page on a model's layers, what they take, and the kernels that they need.

`fp8gemm.cli.report` is the command.
"""
