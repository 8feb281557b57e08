"""How something runs, whatever it computes: time limits, bounds, progress, processes, kernels, what
is computed once."""
