#!/usr/bin/env bash
# Builds the image and writes the templates convert, pack, verify and index to a bucket.
#
#   PROJECT=my-project REGION=us-central1 BUCKET=my-bucket deploy/build.sh
#
# Templates, and the sources of the build, go to TEMPLATE_BUCKET, by default
# BUCKET-templates. Cloud Build builds the image, as BUILD_ACCOUNT if that is given; with
# LOCAL=1, docker on this machine builds it. PYTHON is Python's version in the image;
# BEAM_IMAGE, LAUNCHER_IMAGE, BUILD_IMAGE and PYTHON_IMAGE are its bases, by digest.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

: "${PROJECT:?set the project, such as PROJECT=my-project}"
: "${REGION:?set the region of the image repository and the jobs, such as REGION=us-central1}"
: "${BUCKET:?set the bucket for temporary files, such as BUCKET=my-bucket}"
TEMPLATE_BUCKET=${TEMPLATE_BUCKET:-$BUCKET-templates}
REPOSITORY=${REPOSITORY:-gristmill}
TAG=${TAG:-$(date -u +%Y%m%d-%H%M%S)}
PYTHON=${PYTHON:-}
IMAGE=$REGION-docker.pkg.dev/$PROJECT/$REPOSITORY/gristmill:$TAG

if [[ ${LOCAL:-} == 1 ]]; then
  export IMAGE PYTHON
  deploy/build_image.sh
else
  options=(--project "$PROJECT" --region "$REGION" --config deploy/cloudbuild.yaml)
  options+=(--gcs-source-staging-dir "gs://$TEMPLATE_BUCKET/source")
  substitutions=_IMAGE=$IMAGE,_PYTHON=$PYTHON
  for base in BEAM_IMAGE LAUNCHER_IMAGE BUILD_IMAGE PYTHON_IMAGE; do
    substitutions+=,_$base=${!base:-}
  done
  options+=(--substitutions "$substitutions")
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
if [[ -n ${KMS_KEY:-} ]]; then
  defaults+=(--dataflow-kms-key "$KMS_KEY")
fi
for pipeline in convert pack verify index; do
  gcloud dataflow flex-template build "gs://$TEMPLATE_BUCKET/gristmill-$pipeline.json" \
    --project "$PROJECT" \
    --image "$IMAGE" \
    --sdk-language PYTHON \
    --metadata-file "deploy/templates/$pipeline.json" \
    --additional-user-labels "gristmill=$pipeline" \
    "${defaults[@]}"
done
echo "The image is $IMAGE"
