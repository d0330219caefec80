"""Which tile config: problems, legality, cost, tables, choice. It needs neither torch nor CUDA."""
