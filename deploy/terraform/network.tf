# Workers have no public addresses. They reach Google's APIs through Private Google Access,
# and each other for what a job shuffles.

locals {
  subnetwork = var.subnetwork == null ? "regions/${var.region}/subnetworks/${google_compute_subnetwork.workers[0].name}" : var.subnetwork
  own        = var.subnetwork == null ? 1 : 0
}

resource "google_compute_network" "workers" {
  count                   = local.own
  name                    = "gristmill"
  auto_create_subnetworks = false
  depends_on              = [google_project_service.used]
}

resource "google_compute_subnetwork" "workers" {
  count                    = local.own
  name                     = "gristmill"
  region                   = var.region
  network                  = google_compute_network.workers[0].id
  ip_cidr_range            = "10.128.0.0/20"
  private_ip_google_access = true
}

# Dataflow tags its machines, and they talk on these ports.
resource "google_compute_firewall" "workers" {
  count       = local.own
  name        = "gristmill-dataflow"
  network     = google_compute_network.workers[0].id
  source_tags = ["dataflow"]
  target_tags = ["dataflow"]

  allow {
    protocol = "tcp"
    ports    = ["12345", "12346"]
  }
}
