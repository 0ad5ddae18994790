"""Running experiments: samples, fits, the search for hyper-parameters, tables."""
