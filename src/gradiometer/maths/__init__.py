"""Equations: no state, no files. Tensors in, small tensors or numbers out."""
