variable "project" {
  description = "Project of the jobs, such as my-project."
  type        = string
}

variable "region" {
  description = "Region of the jobs, the image repository and the bucket, such as us-central1."
  type        = string
}

variable "bucket" {
  description = "Bucket for temporary files. It is created, and beside it NAME-templates for templates."
  type        = string
}

variable "input_buckets" {
  description = "Existing buckets that jobs read."
  type        = set(string)
}

variable "output_buckets" {
  description = "Existing buckets that jobs write datasets to."
  type        = set(string)
}

variable "launchers" {
  description = "Who starts templates, such as group:data@example.com."
  type        = set(string)
  default     = []
}

variable "submitters" {
  description = "Who also submits jobs without a template, such as user:me@example.com."
  type        = set(string)
  default     = []
}

variable "builders" {
  description = "Who builds the image and the templates."
  type        = set(string)
  default     = []
}

variable "image" {
  description = "The image that deploy/build.sh built. Templates are written when it is given."
  type        = string
  default     = null
}

variable "max_workers" {
  description = "Most workers of a job, unless it says otherwise."
  type        = number
  default     = 50
}

variable "temporary_days" {
  description = "Days after which temporary files are deleted. Longer than any job runs."
  type        = number
  default     = 14
}

variable "notification_channels" {
  description = "Cloud Monitoring channels that alerts go to, projects/.../notificationChannels/N."
  type        = list(string)
  default     = []
}

variable "kms_key" {
  description = "Cloud KMS key in the region, for buckets, repository, and the state and disks of jobs: projects/.../cryptoKeys/NAME. Google's accounts are granted its use."
  type        = string
  default     = null
}

variable "subnetwork" {
  description = "Existing subnetwork with Private Google Access, such as one of a Shared VPC: https://www.googleapis.com/compute/v1/projects/HOST/regions/REGION/subnetworks/NAME. One is created if none is given."
  type        = string
  default     = null
}
