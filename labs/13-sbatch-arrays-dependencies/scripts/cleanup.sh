#!/bin/bash
# Only for a training that failed: takes away what it left behind.
rm -f "$1/scratch"
echo "cleaned up after $1"
