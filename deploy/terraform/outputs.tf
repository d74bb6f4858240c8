output "environment" {
  description = "What the launch scripts read: eval \"$(terraform output -raw environment)\"."
  value = join("\n", concat([
    "export PROJECT=${var.project}",
    "export REGION=${var.region}",
    "export BUCKET=${google_storage_bucket.temporary.name}",
    "export TEMPLATE_BUCKET=${google_storage_bucket.templates.name}",
    "export SERVICE_ACCOUNT=${google_service_account.worker.email}",
    "export SUBNETWORK=${local.subnetwork}",
    "export BUILD_ACCOUNT=${google_service_account.build.email}",
    ],
    var.kms_key == null ? [] : ["export KMS_KEY=${var.kms_key}"],
    var.image == null ? [] : ["export IMAGE=${var.image}"],
  ))
}
