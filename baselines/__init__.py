"""Networks, hybrid models, their trainers, and the weights that ship."""
