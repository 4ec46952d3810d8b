"""The machine: device facts, fast BLAS, memory limits."""
