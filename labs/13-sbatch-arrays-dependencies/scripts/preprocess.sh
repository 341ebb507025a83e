#!/bin/bash
# Stage 1 of the pipeline. Its argument names the run: good or bad.
mkdir -p "$1"
orchlab-sleep 20s
echo "shards for $1" > "$1/data"
