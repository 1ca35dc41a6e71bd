# Sourced by scripts/peers and scripts/harnesses: named sets of PyPI packages, each in a venv of its own.
# The sourcing script sets ROOT (the folder of the venvs), ALL (the names) and about NAME (its packages).

# Runs a command with its output in a log, of which the end is shown if it fails.
logged() {
  local log=$ROOT/log/$1.log
  shift
  if ! "$@" >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    echo "error: it could not be installed" >&2
    echo "hint: the whole log is in $log" >&2
    exit 1
  fi
}

# Whether a folder holds just these packages already.
is_made() {
  [[ -f $1/.stamp && $(cat "$1/.stamp") == "${*:2}" ]]
}

# Makes one, unless it is there as it should be, and says what was done.
venv() {
  local name=$1 folder=$ROOT/$1 wanted began
  read -r -a wanted <<<"$(about "$name")"
  if is_made "$folder" "${wanted[@]}"; then
    echo "$name: ${wanted[*]} in $folder, as it was"
    return
  fi
  echo "installing $name (minutes the first time)" >&2
  began=$SECONDS
  logged "$name-venv" "${PYTHON:-python3}" -m venv --clear "$folder"
  logged "$name" "$folder/bin/python" -m pip install --quiet --disable-pip-version-check "${wanted[@]}"
  echo "${wanted[*]}" >"$folder/.stamp"
  echo "$name: ${wanted[*]} in $folder, $((SECONDS - began)) s, $(du -sm "$folder" | cut -f1) MB"
}

# Makes those that are named, or all; nothing where one is unknown.
venvs() {
  local name
  mkdir -p "$ROOT/log"
  (($#)) || set -- "${ALL[@]}"
  for name in "$@"; do
    if ! about "$name" >/dev/null; then
      echo "error: there is no $name" >&2
      echo "hint: known are ${ALL[*]}" >&2
      exit 2
    fi
  done
  for name in "$@"; do venv "$name"; done
}
