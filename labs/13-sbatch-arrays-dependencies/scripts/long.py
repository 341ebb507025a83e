"""Ninety epochs of one second each: more than a time limit of one minute allows.

Goes on after the last epoch of checkpoint.json, if there is one. On SIGUSR1 it finishes its epoch, writes the checkpoint and ends with status 99.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

EPOCHS, CHECKPOINT = 90, Path("checkpoint.json")
asked = []
signal.signal(signal.SIGUSR1, lambda number, frame: asked.append(number))
done = json.loads(CHECKPOINT.read_text())["epoch"] if CHECKPOINT.exists() else 0
for epoch in range(done + 1, EPOCHS + 1):
    time.sleep(1)
    print(f"run {os.environ.get('SLURM_RESTART_COUNT', '0')} epoch {epoch}", flush=True)
    if asked:
        CHECKPOINT.write_text(json.dumps({"epoch": epoch}))
        sys.exit(99)
