#!/bin/bash
# One point of a sweep: the learning rate belongs to the task's number. Exercise "sweep".
mkdir -p sweep
rate=$(awk -v n="$SLURM_ARRAY_TASK_ID" 'BEGIN { printf "%.4f", 0.001 * 1.3 ^ n }')
orchlab-sleep 1m
echo "$SLURM_ARRAY_TASK_ID $rate" > "sweep/$SLURM_ARRAY_TASK_ID"
