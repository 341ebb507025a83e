"""The mock GPU Operator of one environment: `python -m orchlab.gpu_operator --folder FOLDER`."""

from __future__ import annotations

from orchlab.kube import service
from orchlab.gpu_operator.process import Process

if __name__ == "__main__":
    service.main("orchlab.gpu_operator", "does to simulated nodes what NVIDIA's GPU Operator does", lambda folder, stop: Process(folder, stop).run())
