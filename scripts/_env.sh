# Shared by the other verbs: a virtual environment with the package, and the servers that tests and demos use.
# Sourced, never run. Sets PY to the environment's interpreter.

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
VENV="${PREFIX_ROUTER_VENV:-$ROOT/.venv}"
PY="$VENV/bin/python"

say() { printf '%s\n' "$*" >&2; }

# python_speed PYTHON: microseconds of some dict and method work, if it is 3.11 or newer and can make environments.
python_speed() {
  "$1" - 2>/dev/null <<'PYTHON'
import sys, time, ensurepip, venv

if sys.version_info < (3, 11):
    sys.exit(1)

class Counts:
    def __init__(self):
        self.seen = {}

    def count(self, key):
        self.seen[key] = self.seen.get(key, 0) + 1
        return len(self.seen)

def work():
    counts = Counts()
    return sum([counts.count((number & 255, str(number & 15))) for number in range(10_000)])

best = float("inf")
for _ in range(15):
    before = time.perf_counter()
    work()
    best = min(best, time.perf_counter() - before)
print(int(best * 1e6))
PYTHON
}

# find_python: the interpreter for an environment. Builds differ: one optimised by profile, as Debian's is, does the
# same work for a tenth less CPU than one that was built without, as pyenv's are. So what the path names first gives
# way to another one of the machine that is clearly faster.
find_python() {
  local candidate found="" speed best=0 first=0 round
  local -A speeds=()
  # In turns, since the machine's other work comes and goes.
  for round in 1 2 3; do
    for candidate in python3.11 python3.12 python3.13 python3.14 python3 /usr/bin/python3 /usr/local/bin/python3; do
      command -v "$candidate" >/dev/null 2>&1 || continue
      speed="$(python_speed "$candidate")" || continue
      [ "$speed" -lt "${speeds[$candidate]:-999999999}" ] && speeds[$candidate]="$speed"
    done
  done
  for candidate in python3.11 python3.12 python3.13 python3.14 python3 /usr/bin/python3 /usr/local/bin/python3; do
    speed="${speeds[$candidate]:-}"
    [ -n "$speed" ] || continue
    [ -n "$found" ] || first="$speed"
    if [ -z "$found" ] || { [ "$speed" -lt "$best" ] && [ $((speed * 100)) -lt $((first * 92)) ]; }; then
      found="$candidate" best="$speed"
    fi
  done
  if [ -z "$found" ]; then
    # One that lacks only what makes environments will do: Debian ships that apart.
    for candidate in python3.11 python3.12 python3.13 python3.14 python3; do
      "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && found="$candidate" && break
    done
  fi
  [ -n "$found" ] || { say "prefix-router needs Python 3.11 or newer; none was found."; exit 1; }
  echo "$found"
}

# ensure_venv EXTRAS: install the package (editable) with these extras, only when something changed.
ensure_venv() {
  local extras="$1" base stamp wanted
  stamp="$VENV/.installed-$extras"
  wanted="$(cat "$ROOT/pyproject.toml" "$ROOT/constraints.txt" | cksum)"
  if [ -x "$PY" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then return; fi
  if [ ! -x "$PY" ]; then
    base="$(find_python)"
    say "Creating a virtual environment in ${VENV#"$ROOT/"} ..."
    "$base" -m venv "$VENV" || {
      # Debian ships venv apart from the interpreter.
      install_debian python3-venv && "$base" -m venv "$VENV"
    } || { say "Could not create a virtual environment (Debian: apt-get install python3-venv)."; exit 1; }
  fi
  say "Installing the package and what it needs (extras: $extras) ..."
  "$PY" -m pip install --quiet --disable-pip-version-check -c "$ROOT/constraints.txt" -e "$ROOT[$extras]" 2>"$VENV/pip.log" || {
    cat "$VENV/pip.log" >&2
    say "pip could not install the Python packages; the lines above say why."
    exit 1
  }
  echo "$wanted" >"$stamp"
}

# install_debian PACKAGE...: best effort; says what it could not get.
install_debian() {
  local sudo=""
  command -v apt-get >/dev/null 2>&1 || { say "No apt-get here: please install $* by hand."; return 1; }
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null 2>&1 && sudo="sudo -n" || { say "Not root and no sudo: please install $* by hand."; return 1; }
  fi
  say "Installing $* from Debian ..."
  {
    DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends "$@" ||
      { $sudo apt-get update -qq && DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends "$@"; }
  } >/dev/null 2>&1 || { say "Could not install $* from Debian."; return 1; }
}

# ensure_compiler: a C compiler, and the headers of the environment's interpreter.
ensure_compiler() {
  local missing=()
  command -v cc >/dev/null 2>&1 || command -v gcc >/dev/null 2>&1 || missing+=(gcc libc6-dev)
  "$PY" -c 'import pathlib, sys, sysconfig; sys.exit(not pathlib.Path(sysconfig.get_path("include"), "Python.h").exists())' ||
    missing+=("libpython$("$PY" -c 'import sys; print("%d.%d" % sys.version_info[:2])')-dev")
  [ ${#missing[@]} -eq 0 ] || install_debian "${missing[@]}"
}

# ensure_servers [COMMAND=PACKAGE...]: redis-server, nginx and these, as far as the machine lets us. Never started as
# services.
ensure_servers() {
  local missing=() wanted
  for wanted in "$@"; do command -v "${wanted%%=*}" >/dev/null 2>&1 || missing+=("${wanted#*=}"); done
  command -v redis-server >/dev/null 2>&1 || missing+=(redis-server)
  [ -x /usr/sbin/nginx ] || command -v nginx >/dev/null 2>&1 || missing+=(nginx-light)
  [ ${#missing[@]} -eq 0 ] && return 0
  # Debian starts what it installs; a policy of "never" keeps the test machine as it was.
  local policy=/usr/sbin/policy-rc.d made=""
  if [ "$(id -u)" -eq 0 ] && [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod +x "$policy" && made=1
  fi
  install_debian "${missing[@]}"
  local rc=$?
  [ -n "$made" ] && rm -f "$policy"
  return $rc
}
