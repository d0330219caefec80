"""``fp8gemm tune``: time the candidates of shapes on a GPU, judge the choice, fill a tuned table.

`fp8gemm.cli.tune` is the command.
"""
