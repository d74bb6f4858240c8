# Google's own accounts use the key for what they store: without these grants no bucket,
# repository or disk that it encrypts can be made.

data "google_project" "this" {
  count      = local.keys
  depends_on = [google_project_service.used]
}

# Asking for this account makes it, where it is not there yet.
data "google_storage_project_service_account" "agent" {
  count      = local.keys
  depends_on = [google_project_service.used]
}

locals {
  keys = var.kms_key == null ? 0 : 1
  agents = var.kms_key == null ? {} : {
    artifact_registry = "service-${data.google_project.this[0].number}@gcp-sa-artifactregistry.iam.gserviceaccount.com"
    compute_engine    = "service-${data.google_project.this[0].number}@compute-system.iam.gserviceaccount.com"
    dataflow          = "service-${data.google_project.this[0].number}@dataflow-service-producer-prod.iam.gserviceaccount.com"
    storage           = data.google_storage_project_service_account.agent[0].email_address
  }
}

# In a new project these two accounts are not there until they are asked for.
resource "google_project_service_identity" "agents" {
  provider   = google-beta
  for_each   = var.kms_key == null ? [] : toset(["artifactregistry.googleapis.com", "dataflow.googleapis.com"])
  service    = each.key
  depends_on = [google_project_service.used]
}

resource "google_kms_crypto_key_iam_member" "agents" {
  for_each      = local.agents
  crypto_key_id = var.kms_key
  role          = "roles/cloudkms.cryptoKeyEncrypterDecrypter"
  member        = "serviceAccount:${each.value}"
  depends_on    = [google_project_service_identity.agents]
}
