#!/bin/bash
#SBATCH --job-name=two --partition=short --time=2:00:00
# Runs for up to two hours, on one CPU.
limit=$(squeue -h -j "$SLURM_JOB_ID" -o %l)
[ "$limit" = 2:00:00 ] || { echo "needs two hours, has $limit"; exit 1; }
