"""Where the rows of the Jacobian come from: a graph, micro-batches, or parameters in pieces."""
