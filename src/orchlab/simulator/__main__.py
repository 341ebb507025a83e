"""The simulator process of one environment: `python -m orchlab.simulator --folder FOLDER`."""

from __future__ import annotations

from orchlab.kube import service
from orchlab.simulator.process import Process

if __name__ == "__main__":
    service.main("orchlab.simulator", "plays the machines of an orchlab environment", lambda folder, stop: Process(folder, stop).run())
