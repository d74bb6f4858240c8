#!/usr/bin/env bash
# Functions that the launch scripts share. The main one runs a template:
#
#   launch PIPELINE NAME=VALUE...
#
# Sourced by launch_convert.sh, launch_verify.sh and launch_index.sh.
set -euo pipefail

# Prints how to use a script and exits, unless enough arguments are given.
usage_unless() {
  local wanted=$1 usage=$2
  shift 2
  if (($# < wanted)); then
    echo "usage: PROJECT=... REGION=... BUCKET=... [VARIABLE=...] $usage" >&2
    exit 2
  fi
}

launch() {
  local pipeline=$1
  shift
  : "${PROJECT:?set the project, such as PROJECT=my-project}"
  : "${REGION:?set the region of the workers, such as REGION=us-central1}"
  : "${BUCKET:?set the bucket of the templates, such as BUCKET=my-bucket}"
  local parameters='^~^' separator=''
  for parameter in "$@"; do
    parameters+=$separator$parameter
    separator='~'
  done
  local options=(
    --project "$PROJECT"
    --region "$REGION"
    --template-file-gcs-location "gs://$BUCKET/templates/gristmill-$pipeline.json"
    --staging-location "gs://$BUCKET/gristmill-tmp/staging"
    --temp-location "gs://$BUCKET/gristmill-tmp"
    --worker-machine-type "${MACHINE_TYPE:-e2-standard-4}"
    --max-workers "${MAX_WORKERS:-50}"
    --additional-user-labels "gristmill=$pipeline"
    --parameters "$parameters"
  )
  if [[ -n ${SERVICE_ACCOUNT:-} ]]; then
    options+=(--service-account-email "$SERVICE_ACCOUNT")
  fi
  if [[ -n ${SUBNETWORK:-} ]]; then
    options+=(--subnetwork "$SUBNETWORK" --disable-public-ips)
  fi
  if [[ -n ${PIPELINE_OPTIONS:-} ]]; then
    options+=(--additional-pipeline-options "$PIPELINE_OPTIONS")
  fi
  local job
  job=${JOB_NAME:-gristmill-$pipeline-$(date -u +%Y%m%d-%H%M%S)}
  gcloud dataflow flex-template run "$job" "${options[@]}"
}
