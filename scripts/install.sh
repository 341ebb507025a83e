# Sourced by quickstart and test: a virtual environment in .venv with exactly what requirements.lock says. Quick when nothing has changed.

say() { printf '\033[1m%s\033[0m\n' "$*"; }
fail() { printf 'error: %s\n→ %s\n' "$1" "$2" >&2; exit 1; }

find_python() {
  local candidate
  for candidate in "${PYTHON:-}" python3 python3.14 python3.13 python3.12 python3.11; do
    [ -n "$candidate" ] && command -v "$candidate" >/dev/null || continue
    "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo "$candidate"; return; }
  done
  fail "no Python 3.11 or newer was found" "install one, or name it: PYTHON=/path/to/python3.11 $0"
}

# preflight FREE_MIB: disk for .venv (here) and for the cache, memory for the engines.
preflight() {
  local free cache memory
  free=$(df -Pm . | awk 'NR == 2 { print $4 }')
  [ "$free" -ge 2000 ] || fail "only $free MiB are free in $PWD; 2000 MiB are needed for .venv" "free some space, or clone to another disk"
  cache=${ORCHLAB_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/orchlab}
  mkdir -p "$cache" || fail "$cache cannot be made" "set ORCHLAB_CACHE to a folder of yours"
  free=$(df -Pm "$cache" | awk 'NR == 2 { print $4 }')
  [ -e "$cache/engines" ] || [ "$free" -ge "$1" ] ||
    fail "only $free MiB are free in $cache; $1 MiB are needed to build the engines" "free some space, or set ORCHLAB_CACHE to a folder on another disk"
  [ -r /proc/meminfo ] || return 0
  memory=$(awk '/^MemAvailable/ { print int($2 / 1024) }' /proc/meminfo)
  [ "$memory" -ge 2500 ] || fail "only $memory MiB of memory are available; building the engines takes 2500 MiB" "end other programs, then run $0 again"
}

install() {
  local python stamp
  stamp=$(cat requirements.lock pyproject.toml scripts/install.sh | sha256sum | cut -d' ' -f1)
  [ "$(cat .venv/.orchlab 2>/dev/null)" = "$stamp" ] && return
  python=$(find_python)
  say "Installing $(grep -c == requirements.lock) Python packages into .venv (the log is .venv/install.log)"
  rm -f .venv/.orchlab
  "$python" -m venv .venv || fail "$python cannot make a virtual environment" "on Debian and Ubuntu: sudo apt-get install python3-venv"
  if ! { .venv/bin/python -m pip install --require-hashes --requirement requirements.lock &&
         .venv/bin/python -m pip install --no-deps --no-build-isolation --editable .; } 2>&1 | tee .venv/install.log | count_packages; then
    tail -n 15 .venv/install.log >&2
    fail "the packages could not be installed" "the lines above say why; .venv/install.log has all of them"
  fi
  echo "$stamp" > .venv/.orchlab
}

# One line that counts, on a terminal; a line each 25 packages elsewhere. pip's own exit status is what counts (pipefail).
count_packages() {
  awk -v tty="$([ -t 1 ] && echo 1)" '/^ *(Using cached|Downloading) / { n++; if (tty) { printf "\r  %d fetched", n; fflush() } else if (n % 25 == 0) { printf "  %d fetched\n", n; fflush() } }
       /^Installing collected/ && !told++ { printf "%s  %d fetched, unpacking\n", tty ? "\r" : "", n; fflush() }'
}
