#!/usr/bin/env bash
# Functions that the launch scripts share. The main one runs a template:
#
#   launch PIPELINE NAME=VALUE...
#
# Sourced by launch_convert.sh, launch_pack.sh, launch_verify.sh and launch_index.sh.
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

# Prints arguments as one list for gcloud, which splits it where they were joined: at a
# separator that none of them holds, and that no end of one makes with the start of another.
list_of() {
  local number=0 list='' item
  while [[ $* == *"<$number>"* ]]; do
    number=$((number + 1))
  done
  for item in "$@"; do
    list+="<$number>$item"
  done
  printf '%s' "^<$number>^${list#"<$number>"}"
}

launch() {
  local pipeline=$1
  shift
  : "${PROJECT:?set the project, such as PROJECT=my-project}"
  : "${REGION:?set the region of the workers, such as REGION=us-central1}"
  : "${BUCKET:?set the bucket for temporary files, such as BUCKET=my-bucket}"
  local staging=gs://$BUCKET/gristmill-tmp/staging
  local options=(
    --project "$PROJECT"
    --region "$REGION"
    --template-file-gcs-location "gs://${TEMPLATE_BUCKET:-$BUCKET-templates}/gristmill-$pipeline.json"
    --staging-location "$staging"
    --temp-location "gs://$BUCKET/gristmill-tmp"
    --additional-user-labels "gristmill=$pipeline${LABELS:+,$LABELS}"
    --parameters "$(list_of "$@")"
  )
  # Workers have no public addresses unless they are asked for.
  local separator=,
  if [[ ${PUBLIC_ADDRESSES:-} == 1 ]]; then
    if [[ ${PIPELINE_OPTIONS:-} =~ ^\^([^^]+)\^ ]]; then
      separator=${BASH_REMATCH[1]}
    fi
    PIPELINE_OPTIONS=${PIPELINE_OPTIONS:+$PIPELINE_OPTIONS$separator}use_public_ips=true
  fi
  # What is not given here is as in pipelines/dataflow/defaults.py.
  local flag variable
  while read -r flag variable; do
    if [[ -n ${!variable:-} ]]; then
      options+=("$flag" "${!variable}")
    fi
  done <<'FLAGS'
--service-account-email SERVICE_ACCOUNT
--worker-machine-type MACHINE_TYPE
--max-workers MAX_WORKERS
--network NETWORK
--subnetwork SUBNETWORK
--dataflow-kms-key KMS_KEY
--additional-pipeline-options PIPELINE_OPTIONS
FLAGS
  # Of the launcher's machine too.
  if [[ ${PUBLIC_ADDRESSES:-} != 1 ]]; then
    options+=(--disable-public-ips)
  fi
  local name job
  name=${JOB_NAME:-gristmill-$pipeline-$(date -u +%Y%m%d-%H%M%S)}
  job=$(gcloud dataflow flex-template run "$name" "${options[@]}" --format 'value(job.id)')
  echo "$job"
  cat >&2 <<EOF
The job was submitted. It has NOT finished. Watch it at
  https://console.cloud.google.com/dataflow/jobs/$REGION/$job?project=$PROJECT
If its launcher fails, this file says why:
  gcloud storage cat $staging/template_launches/$job/console_logs
EOF
}
