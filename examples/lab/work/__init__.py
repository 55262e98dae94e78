"""What is measured: networks with a batch, and a step of each engine on them."""
