#!/usr/bin/env bash
# Starts the template `convert`, and prints the job's id:
#
#   deploy/launch_convert.sh INPUT OUTPUT [NAME=VALUE...]
#
# such as: deploy/launch_convert.sh 'gs://raw/c4/*.tfrecord' gs://data/c4 shard_size=1GiB
set -euo pipefail
# shellcheck source=deploy/launch.sh
source "$(dirname "${BASH_SOURCE[0]}")/launch.sh"

usage_unless 2 "deploy/launch_convert.sh INPUT OUTPUT [NAME=VALUE...]" "$@"
input=$1
output=$2
shift 2
launch convert "input=$input" "output=$output" "$@"
echo "Show its progress with: gristmill inspect $output" >&2
