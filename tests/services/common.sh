# What the scripts of the test services share: one server process in one directory, known by its pid file.
#
# Callers set NAME, STATE and PID_FILE. A pid is believed only when the process names STATE on its command line, so a
# pid that went to another process after a kill or a reboot is never signalled.
# shellcheck shell=bash disable=SC2034

CACHE=${SLUICE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/sluice}

fail() { echo "$NAME: $*" >&2; exit 1; }

# The pid of the running server, or nothing. A zombie's command line is empty.
running_pid() {
  local pid
  pid=$(cat "$PID_FILE" 2>/dev/null) && grep -qzF "$STATE/" "/proc/$pid/cmdline" 2>/dev/null && echo "$pid"
}

# launch LOG COMMAND…: in a session of its own, so that it outlives the caller. No descriptor of the caller is kept, or a
# caller that reads our output to its end would wait for the server.
launch() {
  local log=$1
  shift
  setsid "$@" >>"$log" 2>&1 </dev/null 8>&- &
  echo $! >"$PID_FILE"
  # Until it is the program instead of a copy of this shell, running_pid would not know it.
  while kill -0 $! 2>/dev/null && ! running_pid >/dev/null; do sleep 0.01; done
}

stop_server() {
  local pid
  pid=$(running_pid) || { rm -f "$PID_FILE"; echo "$NAME: not running"; return; }
  kill "$pid"
  for _ in $(seq 300); do
    running_pid >/dev/null || { rm -f "$PID_FILE"; echo "$NAME: stopped"; return; }
    sleep 0.1
  done
  kill_server
  echo "$NAME: did not stop within 30 s; killed"
}

kill_server() {
  local pid
  pid=$(running_pid) || { rm -f "$PID_FILE"; return 0; }
  kill -9 "$pid"
  while running_pid >/dev/null; do sleep 0.02; done
  rm -f "$PID_FILE"
}

print_status() {
  local pid
  if pid=$(running_pid); then echo "$NAME: running, pid $pid"; else echo "$NAME: stopped"; return 3; fi
}

# The marker is written by start: a directory that start did not make is never removed.
claim_state() {
  if [ -e "$STATE" ] && [ ! -f "$STATE/.$NAME" ] && [ -n "$(ls -A "$STATE")" ]; then
    fail "$STATE is not empty and was not made by this script; choose another directory"
  fi
  mkdir -p "$STATE"
  touch "$STATE/.$NAME"
}

clean_state() {
  kill_server
  [ -e "$STATE" ] || return 0
  [ -f "$STATE/.$NAME" ] || fail "$STATE was not made by this script; it stays"
  rm -rf "$STATE"
}
