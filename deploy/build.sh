#!/usr/bin/env bash
# Builds the image of each template and writes the templates to a bucket.
#
#   PROJECT=my-project REGION=us-central1 BUCKET=my-bucket deploy/build.sh [convert ...]
#
# Without arguments, builds convert, verify and index. Cloud Build builds the images; with
# LOCAL=1, docker on this machine builds them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

: "${PROJECT:?set the project, such as PROJECT=my-project}"
: "${REGION:?set the region of the image repository and the jobs, such as REGION=us-central1}"
: "${BUCKET:?set the bucket of the templates, such as BUCKET=my-bucket}"
REPOSITORY=${REPOSITORY:-gristmill}
TAG=${TAG:-$(date -u +%Y%m%d-%H%M%S)}
images=$REGION-docker.pkg.dev/$PROJECT/$REPOSITORY

if (($# == 0)); then
  set -- convert verify index
fi

for pipeline in "$@"; do
  if [[ ! -f deploy/templates/$pipeline.json ]]; then
    echo "error: no such template: $pipeline; expected convert, verify or index" >&2
    exit 2
  fi
done

if [[ ${LOCAL:-} == 1 ]]; then
  for pipeline in "$@"; do
    image=$images/gristmill-$pipeline:$TAG
    docker build --platform linux/amd64 --file deploy/Dockerfile \
      --build-arg PIPELINE="$pipeline" --build-arg IMAGE="$image" --tag "$image" .
    docker push "$image"
  done
else
  gcloud builds submit --project "$PROJECT" --region "$REGION" \
    --config deploy/cloudbuild.yaml \
    --substitutions "_IMAGES=$images,_TAG=$TAG,_PIPELINES=$*" .
fi

for pipeline in "$@"; do
  gcloud dataflow flex-template build "gs://$BUCKET/templates/gristmill-$pipeline.json" \
    --project "$PROJECT" \
    --image "$images/gristmill-$pipeline:$TAG" \
    --sdk-language PYTHON \
    --metadata-file "deploy/templates/$pipeline.json"
done
