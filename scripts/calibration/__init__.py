"""How well the cost model predicts and chooses, and a fit of its constants: what `scripts/calibrate.py` is made of."""
