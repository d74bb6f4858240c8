#!/usr/bin/env bash
# Starts the template `pack`, and prints the job's id:
#
#   deploy/launch_pack.sh INPUT OUTPUT LENGTH [NAME=VALUE...]
#
# such as: deploy/launch_pack.sh 'gs://raw/c4/*.tfrecord' gs://data/c4 2048 \
#   tokenizer=gs://models/llama3/tokenizer.json
set -euo pipefail
# shellcheck source=deploy/launch.sh
source "$(dirname "${BASH_SOURCE[0]}")/launch.sh"

usage_unless 3 "deploy/launch_pack.sh INPUT OUTPUT LENGTH [NAME=VALUE...]" "$@"
input=$1
output=$2
length=$3
shift 3
launch pack "input=$input" "output=$output" "length=$length" "$@"
echo "Show its progress with: gristmill inspect $output" >&2
