#!/bin/bash
# Stage 2. Needs the data of stage 1; the bad run has a shard that cannot be read.
[ -f "$1/data" ] || { echo "no data: preprocessing has not run"; exit 2; }
orchlab-sleep 20s
touch "$1/scratch"
[ "$1" = good ] || { echo "shard 7 cannot be read"; exit 1; }
echo "weights" > "$1/model"
