output "environment" {
  description = "What the launch scripts read: eval \"$(terraform output -raw environment)\"."
  value = join("\n", [
    "export PROJECT=${var.project}",
    "export REGION=${var.region}",
    "export BUCKET=${google_storage_bucket.temporary.name}",
    "export SERVICE_ACCOUNT=${google_service_account.worker.email}",
    "export SUBNETWORK=${local.subnetwork}",
    "export BUILD_ACCOUNT=${google_service_account.build.email}",
  ])
}
