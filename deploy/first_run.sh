#!/usr/bin/env bash
# Converts one file in a hundred on Dataflow, verifies the result, and prints a table:
#
#   deploy/first_run.sh [--dry-run] INPUT OUTPUT [OPTION...]
#
# such as: deploy/first_run.sh 'gs://raw/c4/*.tfrecord' gs://data/c4-first
# OPTIONs are those of `gristmill convert`, and of Beam. With --dry-run nothing is
# submitted: the inputs, permissions and the network are checked.
set -euo pipefail

usage() {
  cat <<'EOF'
usage: PROJECT=... REGION=... BUCKET=... TAG=... deploy/first_run.sh [--dry-run] INPUT OUTPUT [OPTION...]

Converts every hundredth file of the pattern INPUT to the new dataset OUTPUT on
Dataflow, waits, verifies every record from this machine, and prints a table in
Markdown. It needs gcloud, and gristmill[beam,gcs].

  PROJECT, REGION   where the job runs
  BUCKET            for temporary files
  TAG, or IMAGE     the image of the workers: what deploy/build.sh was given or printed
  SERVICE_ACCOUNT, SUBNETWORK, KMS_KEY   as deploy/launch.sh takes them
  EVERY             take every so many-th file; 100 by default
  FILES             take at most so many files; 200 by default
EOF
}

dry_run=0
case ${1:-} in
  --help | -h)
    usage
    exit 0
    ;;
  --dry-run)
    dry_run=1
    shift
    ;;
esac
if (($# < 2)); then
  usage >&2
  exit 2
fi
: "${PROJECT:?set the project, such as PROJECT=my-project}"
: "${REGION:?set the region of the workers, such as REGION=us-central1}"
: "${BUCKET:?set the bucket for temporary files, such as BUCKET=my-bucket}"
if [[ -z ${IMAGE:-} ]]; then
  : "${TAG:?set the tag that deploy/build.sh was given, such as TAG=1, or IMAGE}"
  IMAGE=$REGION-docker.pkg.dev/$PROJECT/${REPOSITORY:-gristmill}/gristmill:$TAG
fi
input=$1
output=$2
shift 2

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

gcloud storage ls "$input" >"$work/all"
awk -v every="${EVERY:-100}" -v most="${FILES:-200}" \
  'NR % every == 1 || every == 1 { if (++taken <= most) print }' "$work/all" >"$work/taken"
mapfile -t files <"$work/taken"
if ((${#files[@]} == 0)); then
  echo "no file matches $input" >&2
  exit 2
fi
echo "$(wc -l <"$work/all") files match; taking ${#files[@]}" >&2

command=(
  gristmill convert "${files[@]}" "$output" "$@"
  --runner DataflowRunner --project "$PROJECT" --region "$REGION"
  --temp_location "gs://$BUCKET/gristmill-tmp" --sdk_container_image "$IMAGE" --json
)
while read -r flag variable; do
  if [[ -n ${!variable:-} ]]; then
    command+=("$flag" "${!variable}")
  fi
done <<'FLAGS'
--service_account_email SERVICE_ACCOUNT
--subnetwork SUBNETWORK
--dataflow_kms_key KMS_KEY
FLAGS
if ((dry_run)); then
  "${command[@]}" --dry_run
  echo "Nothing was submitted. Leave out --dry-run to run the job." >&2
  exit 0
fi

started=$(date +%s)
"${command[@]}" --wait >"$work/job.json"
ended=$(date +%s)
gristmill inspect "$output" --json >"$work/dataset.json"
# It ends with 3 where something is damaged: the table says so, and so does this script.
verdict=0
gristmill verify "$output" --json >"$work/verify.json" || verdict=$?
verified=$(date +%s)

python3 - "$work" "$((ended - started))" "$((verified - ended))" "$(wc -l <"$work/all")" \
  "${#files[@]}" "$REGION" "$(gristmill --version)" <<'PY'
import datetime
import json
import pathlib
import sys

work, convert_s, verify_s, matching, taken, region, version = sys.argv[1:]


def read(name):
    return json.loads((pathlib.Path(work) / name).read_text())


job, dataset, verified = read("job.json"), read("dataset.json"), read("verify.json")
splits = dataset["splits"].values()
wrong = verified.get("findings", [])
facts = {
    "date": f"{datetime.date.today()}, {version}",
    "job": f"{job.get('job_id')} in {region}",
    "input": f"{int(taken):,} of {int(matching):,} files",
    "records": f"{dataset['records']:,} in {sum(s['shards'] for s in splits):,} shards",
    "size": f"{dataset['raw_bytes'] / 1e9:,.2f} GB, {dataset['file_bytes'] / 1e9:,.2f} GB stored",
    "conversion": f"{int(convert_s) / 60:,.1f} minutes, with the start of the workers",
    "verify": f"{int(verify_s) / 60:,.1f} minutes: "
    + (f"{verified['records']:,} records, nothing wrong" if not wrong and "records" in verified
       else f"DAMAGED: {wrong or verified}"),
    "digests": ", ".join(s["records_digest"] for s in splits),
}
print("| first run | |\n| --- | --- |")
for name, value in facts.items():
    print(f"| {name} | {value} |")
PY
exit "$verdict"
