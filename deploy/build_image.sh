#!/usr/bin/env bash
# Builds the image from bases that it resolves to digests, and pushes it:
#
#   IMAGE=REGION-docker.pkg.dev/PROJECT/REPOSITORY/gristmill:TAG deploy/build_image.sh
#
# Each base becomes a label of the image, such as base.python_image. To build from the
# same bases again, give them: PYTHON_IMAGE=python@sha256:... PYTHON is Python's version.
#
# deploy/build.sh runs it, on Cloud Build or here.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

: "${IMAGE:?set the name of the image, such as IMAGE=us-docker.pkg.dev/my-project/gristmill/gristmill:1}"
if [[ -z ${PYTHON:-} ]]; then
  PYTHON=$(sed -n 's/^ARG PYTHON=//p' deploy/Dockerfile)
fi
# Jobs from other sources are refused by the workers, and name this digest.
sources=$(find dataset pipelines transforms -name '*.py' | LC_ALL=C sort | xargs sha256sum |
  sha256sum | cut -c1-12)
arguments=(--build-arg "PYTHON=$PYTHON" --label "gristmill.sources=$sources")
while IFS='=' read -r name default; do
  given=${!name:-}
  base=${given:-${default//\$\{PYTHON\}/$PYTHON}}
  docker pull --quiet --platform linux/amd64 "$base"
  digest=$(docker image inspect --format '{{index .RepoDigests 0}}' "$base")
  echo "$name: $base is $digest"
  arguments+=(--build-arg "$name=$digest" --label "base.${name,,}=$digest")
done < <(sed -n 's/^ARG \([A-Z]*_IMAGE=.*\)/\1/p' deploy/Dockerfile)

docker build --platform linux/amd64 --file deploy/Dockerfile "${arguments[@]}" \
  --build-arg IMAGE="$IMAGE" --tag "$IMAGE" .
docker push "$IMAGE"
