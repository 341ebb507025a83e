#!/bin/bash
#SBATCH --job-name=three --array=1-3000:1000
# Three tasks with a thousand items each. Which thousand: (SLURM_ARRAY_TASK_ID - SLURM_ARRAY_TASK_MIN) / SLURM_ARRAY_TASK_STEP.
[ "$SLURM_ARRAY_TASK_COUNT" = 3 ] || { echo "needs three tasks"; exit 1; }
