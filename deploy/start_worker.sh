#!/bin/sh
# Starts a worker's container: Beam's boot program, as a user that is not root.
#
# Dataflow mounts directories of root into the container. What boot and the worker write
# to is made theirs first. If that is not possible, they run as root, and say so.
set -eu

semi_persist_dir=/tmp
previous=''
for argument in "$@"; do
  case $previous in
    -semi_persist_dir | --semi_persist_dir) semi_persist_dir=$argument ;;
  esac
  case $argument in
    -semi_persist_dir=* | --semi_persist_dir=*) semi_persist_dir=${argument#*=} ;;
  esac
  previous=$argument
done

boot=${BEAM_BOOT:-/opt/apache/beam/boot}
if [ "$(id -u)" != 0 ]; then
  exec "$boot" "$@"
fi
# Where boot puts staged files.
mkdir -p "$semi_persist_dir/staged"
chown -R "$GRISTMILL_USER" "$semi_persist_dir/staged" || true
as_user() {
  setpriv --reuid "$GRISTMILL_USER" --regid "$(id -g "$GRISTMILL_USER")" --init-groups "$@"
}
for directory in "$semi_persist_dir/staged" "${TMPDIR:-/tmp}"; do
  if ! as_user test -w "$directory"; then
    echo "start_worker.sh: $GRISTMILL_USER may not write to $directory: runs as root" >&2
    exec "$boot" "$@"
  fi
done
exec setpriv --reuid "$GRISTMILL_USER" --regid "$(id -g "$GRISTMILL_USER")" --init-groups \
  "$boot" "$@"
