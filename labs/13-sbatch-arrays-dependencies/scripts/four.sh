#!/bin/bash
#SBATCH --job-name=four --nodes=1 --ntasks=10 --gpus-per-task=1
# Ten tasks with a GPU each. They talk to each other over TCP, so they may run on several nodes.
[ "$(srun bash -c 'echo "$CUDA_VISIBLE_DEVICES"' | grep -c .)" = 10 ] || { echo "needs ten tasks with a GPU each"; exit 1; }
