"""The training engine: arrays in, arrays out. Read ``losses``, then ``kernels``, ``strata`` and ``scheduler``."""
