# The templates, as deploy/build.sh writes them. Only one of the two should.

resource "google_storage_bucket_object" "templates" {
  for_each     = var.image == null ? [] : toset(["convert", "index", "pack", "verify"])
  bucket       = google_storage_bucket.templates.name
  name         = "gristmill-${each.key}.json"
  content_type = "application/json"

  content = jsonencode({
    image    = var.image
    metadata = jsondecode(file("${path.module}/../templates/${each.key}.json"))
    sdkInfo  = { language = "PYTHON" }
    defaultEnvironment = merge(var.kms_key == null ? {} : { kmsKeyName = var.kms_key }, {
      additionalUserLabels = { gristmill = each.key }
      ipConfiguration      = "WORKER_IP_PRIVATE"
      maxWorkers           = var.max_workers
      serviceAccountEmail  = google_service_account.worker.email
      stagingLocation      = "gs://${google_storage_bucket.temporary.name}/gristmill-tmp/staging"
      subnetwork           = local.subnetwork
      tempLocation         = "gs://${google_storage_bucket.temporary.name}/gristmill-tmp"
    })
  })
}
