#!/bin/sh
# nvidia-smi of a container that was given simulated GPUs: prints what orchlab's device plugin has written beside it. Needs nothing but
# the shell.
here=${ORCHLAB_SMI:-/usr/local/orchlab/smi}

refuse() {
  printf 'nvidia-smi (simulated by orchlab): %s\n' "$1" >&2
  exit 1
}

show() {
  [ -r "$here/$1" ] || refuse "$here/$1 is not there"
  while IFS= read -r line; do printf '%s\n' "$line"; done <"$here/$1"
  exit 0
}

case "$*" in
  '') show table ;;
  -L | --list-gpus) show list ;;
  'mig -lgip' | 'mig --list-gpu-instance-profiles') show lgip ;;
  'mig -lgi' | 'mig --list-gpu-instances') show lgi ;;
esac

fields='' first=0 plain=''
set -f
for word; do
  case $word in
    --query-gpu=?*) fields=${word#*=} ;;
    --format=?*)
      IFS=', '
      for part in ${word#*=}; do
        case $part in
          csv) ;;
          noheader) first=1 ;;
          nounits) plain=-plain ;;
          *) refuse "the format \"$part\" is not simulated, only csv, noheader and nounits are" ;;
        esac
      done ;;
    *) refuse "\"$word\" is not simulated; it works without options and with -L, mig -lgip, mig -lgi, --query-gpu=FIELDS --format=csv[,noheader][,nounits]" ;;
  esac
done
[ "$fields" ] || refuse 'give the fields: --query-gpu=index,name'
[ -r "$here/query" ] || refuse "$here/query is not there"
# Sets `header`, `failure`, `rows` and `known`, and defines `get FIELD ROW`, which sets `value`.
. "$here/query"
IFS=', '
for field in $fields; do
  get "$field" 0 || refuse "Field \"$field\" is not a valid field to query; these are simulated: $known"
done
# Apart from the table, which programs read.
printf '%s\n' "$header" >&2
if [ "$failure" ]; then
  printf '%s\n' "$failure"
  exit 1
fi
row=$first
while [ "$row" -le "$rows" ]; do
  line=''
  for field in $fields; do
    get "$field" "$row$plain"
    line="$line${line:+, }$value"
  done
  printf '%s\n' "$line"
  row=$((row + 1))
done
