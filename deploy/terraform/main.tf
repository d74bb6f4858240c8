# What deploy/README.md sets up by hand: APIs, bucket, image repository, accounts.

resource "google_project_service" "used" {
  for_each = toset([
    "artifactregistry.googleapis.com",
    "cloudbuild.googleapis.com",
    "compute.googleapis.com",
    "dataflow.googleapis.com",
    "iam.googleapis.com",
    "logging.googleapis.com",
    "storage.googleapis.com",
  ])
  service            = each.key
  disable_on_destroy = false
}

resource "google_service_account" "worker" {
  account_id   = "gristmill-worker"
  display_name = "Dataflow workers of gristmill"
  depends_on   = [google_project_service.used]
}

resource "google_service_account" "build" {
  account_id   = "gristmill-build"
  display_name = "Cloud Build of gristmill"
  depends_on   = [google_project_service.used]
}

resource "google_storage_bucket" "temporary" {
  name                        = var.bucket
  location                    = var.region
  uniform_bucket_level_access = true
  public_access_prevention    = "enforced"

  # Temporary files that are gone cost nothing.
  soft_delete_policy {
    retention_duration_seconds = 0
  }

  lifecycle_rule {
    action {
      type = "Delete"
    }
    condition {
      age            = var.temporary_days
      matches_prefix = ["gristmill-tmp/"]
    }
  }

  dynamic "encryption" {
    for_each = var.kms_key == null ? [] : [var.kms_key]
    content {
      default_kms_key_name = encryption.value
    }
  }
}

# What `gcloud builds submit` uploads. It makes this bucket in a project's first build.
resource "google_storage_bucket" "sources" {
  name                        = "${var.project}_cloudbuild"
  location                    = var.region
  uniform_bucket_level_access = true
  public_access_prevention    = "enforced"

  lifecycle_rule {
    action {
      type = "Delete"
    }
    condition {
      age = var.temporary_days
    }
  }
}

resource "google_artifact_registry_repository" "images" {
  repository_id = "gristmill"
  location      = var.region
  format        = "DOCKER"
  kms_key_name  = var.kms_key
  depends_on    = [google_project_service.used]

  # Templates name the image by its tag.
  docker_config {
    immutable_tags = true
  }
}
