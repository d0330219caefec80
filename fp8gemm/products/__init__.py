"""What users call: products of one weight, of groups, plans, quantisers, and a linear layer's two launches."""
