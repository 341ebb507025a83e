#!/bin/bash
#SBATCH --job-name=five --qos=capped --gpus=6
# Six GPUs, wherever they are.
echo "six GPUs on $SLURM_JOB_NUM_NODES node(s)"
