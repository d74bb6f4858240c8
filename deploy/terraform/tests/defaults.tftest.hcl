# Run with `terraform test`: nothing is created, and no login is needed.

mock_provider "google" {}
mock_provider "google-beta" {}

variables {
  project        = "my-project"
  region         = "us-central1"
  bucket         = "my-bucket"
  input_buckets  = ["raw"]
  output_buckets = ["data"]
}

run "workers_are_private" {
  command = plan

  assert {
    condition     = google_compute_subnetwork.workers[0].private_ip_google_access
    error_message = "workers without public addresses cannot reach Cloud Storage"
  }
}

run "no_templates_without_an_image" {
  command = plan

  assert {
    condition     = length(google_storage_bucket_object.templates) == 0
    error_message = "a template names an image that is not there"
  }
}

run "another_subnetwork_is_left_as_it_is" {
  command = plan

  variables {
    subnetwork = "projects/host/regions/us-central1/subnetworks/shared"
  }

  assert {
    condition     = length(google_compute_network.workers) == 0
    error_message = "a network was made beside the one that was given"
  }
}

run "only_the_workers_write_the_output" {
  command = plan

  assert {
    condition = [
      for grant in google_storage_bucket_iam_member.granted : grant.role
      if grant.bucket == "data"
    ] == ["roles/storage.objectUser"]
    error_message = "somebody else may use the output"
  }
}

run "only_builders_write_templates" {
  command = plan

  variables {
    launchers  = ["user:launch@example.com"]
    submitters = ["user:submit@example.com"]
    builders   = ["user:build@example.com"]
  }

  assert {
    condition = [
      for grant in google_storage_bucket_iam_member.granted : grant.member
      if grant.bucket == "my-bucket-templates" && grant.role == "roles/storage.objectUser"
    ] == ["user:build@example.com"]
    error_message = "somebody else may write what launchers run"
  }
}
