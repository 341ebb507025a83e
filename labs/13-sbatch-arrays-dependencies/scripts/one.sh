#!/bin/bash
#SBATCH --job-name=one --gres=gpu:v100:2
# Needs two GPUs, of any one model with 40 GB or more.
[ "$(echo "$CUDA_VISIBLE_DEVICES" | tr , '\n' | grep -c .)" = 2 ] || { echo "needs two GPUs"; exit 1; }
