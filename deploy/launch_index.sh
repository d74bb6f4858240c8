#!/usr/bin/env bash
# Starts the template `index`:
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
echo "The job was submitted. It has NOT finished. Watch it at" >&2
echo "  https://console.cloud.google.com/dataflow/jobs?project=$PROJECT" >&2
