# What deploy/README.md sets up by hand: APIs, buckets, image repository, accounts.

resource "google_project_service" "used" {
  for_each = toset([
    "artifactregistry.googleapis.com",
    "cloudbuild.googleapis.com",
    "cloudresourcemanager.googleapis.com",
    "compute.googleapis.com",
    "dataflow.googleapis.com",
    "iam.googleapis.com",
    "logging.googleapis.com",
    "monitoring.googleapis.com",
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
  depends_on                  = [google_kms_crypto_key_iam_member.agents]

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

# Templates, and the sources that `gcloud builds submit` uploads. Neither launchers nor
# workers can change what is in it: a template names the image that runs.
resource "google_storage_bucket" "templates" {
  name                        = "${var.bucket}-templates"
  location                    = var.region
  uniform_bucket_level_access = true
  public_access_prevention    = "enforced"
  depends_on                  = [google_kms_crypto_key_iam_member.agents]

  lifecycle_rule {
    action {
      type = "Delete"
    }
    condition {
      age            = var.temporary_days
      matches_prefix = ["source/"]
    }
  }

  dynamic "encryption" {
    for_each = var.kms_key == null ? [] : [var.kms_key]
    content {
      default_kms_key_name = encryption.value
    }
  }
}

resource "google_artifact_registry_repository" "images" {
  repository_id = "gristmill"
  location      = var.region
  format        = "DOCKER"
  kms_key_name  = var.kms_key
  depends_on    = [google_project_service.used, google_kms_crypto_key_iam_member.agents]

  # Templates name the image by its tag.
  docker_config {
    immutable_tags = true
  }
}
