#!/usr/bin/env bash
# Starts the template `index`, and prints the job's id:
#
#   deploy/launch_index.sh FILES [NAME=VALUE...]
#
# such as: deploy/launch_index.sh 'gs://data/old/*.array_record' split=train
set -euo pipefail
# shellcheck source=deploy/launch.sh
source "$(dirname "${BASH_SOURCE[0]}")/launch.sh"

usage_unless 1 "deploy/launch_index.sh FILES [NAME=VALUE...]" "$@"
files=$1
shift
launch index "files=$files" "$@"
