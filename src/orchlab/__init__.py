"""orchlab: learn to run GPU workloads on real schedulers, without a GPU."""

__version__ = "0.1.0"
