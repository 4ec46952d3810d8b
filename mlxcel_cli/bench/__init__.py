"""Benchmarks that run on any local model, behind `mlxcel bench`."""
