#!/usr/bin/env bash
# Starts the template `verify`, and prints the job's id:
#
#   deploy/launch_verify.sh DATASET [NAME=VALUE...]
#
# such as: deploy/launch_verify.sh gs://data/c4 report=gs://data/c4-report.json
set -euo pipefail
# shellcheck source=deploy/launch.sh
source "$(dirname "${BASH_SOURCE[0]}")/launch.sh"

usage_unless 1 "deploy/launch_verify.sh DATASET [NAME=VALUE...]" "$@"
dataset=$1
shift
launch verify "dataset=$dataset" "$@"
echo "The job fails if the dataset is damaged." >&2
