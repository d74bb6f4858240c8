# The table of deploy/iam.md, row by row: a test compares them.

locals {
  roles = [
    { account = "worker", role = "roles/dataflow.worker", on = "project" },
    { account = "worker", role = "roles/storage.objectViewer", on = "input" },
    { account = "worker", role = "roles/storage.objectUser", on = "output" },
    { account = "worker", role = "roles/storage.objectUser", on = "temporary" },
    { account = "worker", role = "roles/storage.legacyBucketReader", on = "temporary" },
    { account = "worker", role = "roles/artifactregistry.reader", on = "repository" },
    { account = "launcher", role = "roles/dataflow.developer", on = "project" },
    { account = "launcher", role = "roles/iam.serviceAccountUser", on = "worker" },
    { account = "launcher", role = "roles/storage.objectUser", on = "temporary" },
    { account = "launcher", role = "roles/storage.objectViewer", on = "templates" },
    { account = "launcher", role = "roles/storage.objectViewer", on = "output" },
    { account = "submitter", role = "roles/storage.legacyBucketReader", on = "temporary" },
    { account = "submitter", role = "roles/storage.objectViewer", on = "input" },
    { account = "submitter", role = "roles/storage.objectUser", on = "output" },
    { account = "builder", role = "roles/cloudbuild.builds.editor", on = "project" },
    { account = "builder", role = "roles/serviceusage.serviceUsageConsumer", on = "project" },
    { account = "builder", role = "roles/iam.serviceAccountUser", on = "build" },
    { account = "builder", role = "roles/artifactregistry.writer", on = "repository" },
    { account = "builder", role = "roles/storage.objectUser", on = "templates" },
    { account = "builder", role = "roles/storage.legacyBucketReader", on = "templates" },
    { account = "build", role = "roles/artifactregistry.writer", on = "repository" },
    { account = "build", role = "roles/logging.logWriter", on = "project" },
    { account = "build", role = "roles/storage.objectViewer", on = "templates" },
  ]

  members = {
    worker    = [google_service_account.worker.member]
    build     = [google_service_account.build.member]
    launcher  = setunion(var.launchers, var.submitters)
    submitter = var.submitters
    builder   = var.builders
  }

  buckets = {
    input     = var.input_buckets
    output    = var.output_buckets
    temporary = [google_storage_bucket.temporary.name]
    templates = [google_storage_bucket.templates.name]
  }

  # One entry for each role, resource and account. The keys are known before anything is
  # created: they number the members.
  grants = merge([
    for row in local.roles : {
      for number, member in tolist(local.members[row.account]) :
      "${row.on} ${row.role} ${row.account}${number}" => merge(row, { member = member })
    }
  ]...)

  on_buckets = merge([
    for key, grant in local.grants : {
      for number, bucket in tolist(local.buckets[grant.on]) :
      "${key} ${grant.on}${number}" => merge(grant, { bucket = bucket })
    } if contains(keys(local.buckets), grant.on)
  ]...)
}

resource "google_project_iam_member" "granted" {
  for_each = { for key, grant in local.grants : key => grant if grant.on == "project" }
  project  = var.project
  role     = each.value.role
  member   = each.value.member
}

resource "google_storage_bucket_iam_member" "granted" {
  for_each = local.on_buckets
  bucket   = each.value.bucket
  role     = each.value.role
  member   = each.value.member
}

resource "google_artifact_registry_repository_iam_member" "granted" {
  for_each   = { for key, grant in local.grants : key => grant if grant.on == "repository" }
  location   = google_artifact_registry_repository.images.location
  repository = google_artifact_registry_repository.images.name
  role       = each.value.role
  member     = each.value.member
}

resource "google_service_account_iam_member" "granted" {
  for_each = {
    for key, grant in local.grants : key => grant if contains(["worker", "build"], grant.on)
  }
  service_account_id = {
    worker = google_service_account.worker.name
    build  = google_service_account.build.name
  }[each.value.on]
  role   = each.value.role
  member = each.value.member
}
