"""``fp8gemm demo``: the whole path on the machine at hand, checked and timed.

`fp8gemm.cli.demo` is the command.
"""
