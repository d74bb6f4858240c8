#!/usr/bin/env bash
# Builds the image and writes the templates convert, pack, verify and index to a bucket.
#
#   PROJECT=my-project REGION=us-central1 BUCKET=my-bucket deploy/build.sh
#
# Cloud Build builds the image, as BUILD_ACCOUNT if that is given; with LOCAL=1, docker on
# this machine builds it. PYTHON is Python's version in the image.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

: "${PROJECT:?set the project, such as PROJECT=my-project}"
: "${REGION:?set the region of the image repository and the jobs, such as REGION=us-central1}"
: "${BUCKET:?set the bucket of the templates, such as BUCKET=my-bucket}"
REPOSITORY=${REPOSITORY:-gristmill}
TAG=${TAG:-$(date -u +%Y%m%d-%H%M%S)}
PYTHON=${PYTHON:-}
IMAGE=$REGION-docker.pkg.dev/$PROJECT/$REPOSITORY/gristmill:$TAG

if [[ ${LOCAL:-} == 1 ]]; then
  export IMAGE PYTHON
  deploy/build_image.sh
else
  options=(--project "$PROJECT" --region "$REGION" --config deploy/cloudbuild.yaml)
  options+=(--substitutions "_IMAGE=$IMAGE,_PYTHON=$PYTHON")
  if [[ -n ${BUILD_ACCOUNT:-} ]]; then
    options+=(--service-account "projects/$PROJECT/serviceAccounts/$BUILD_ACCOUNT")
  fi
  gcloud builds submit "${options[@]}" .
fi

# Defaults, for who starts a template in the Google Cloud console.
defaults=(
  --staging-location "gs://$BUCKET/gristmill-tmp/staging"
  --temp-location "gs://$BUCKET/gristmill-tmp"
  --max-workers 50
  --disable-public-ips
)
if [[ -n ${SERVICE_ACCOUNT:-} ]]; then
  defaults+=(--service-account-email "$SERVICE_ACCOUNT")
fi
if [[ -n ${SUBNETWORK:-} ]]; then
  defaults+=(--subnetwork "$SUBNETWORK")
fi
for pipeline in convert pack verify index; do
  gcloud dataflow flex-template build "gs://$BUCKET/templates/gristmill-$pipeline.json" \
    --project "$PROJECT" \
    --image "$IMAGE" \
    --sdk-language PYTHON \
    --metadata-file "deploy/templates/$pipeline.json" \
    --additional-user-labels "gristmill=$pipeline" \
    "${defaults[@]}"
done
echo "The image is $IMAGE"
