"""Slurm: its daemons on this machine, one client over three transports, and why a job waits."""
