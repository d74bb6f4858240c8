# The alerts of deploy/alerts.json, which is as Cloud Monitoring takes it.

locals {
  alerts = jsondecode(file("${path.module}/../alerts.json"))
}

resource "google_monitoring_alert_policy" "jobs" {
  display_name          = local.alerts.displayName
  combiner              = local.alerts.combiner
  severity              = local.alerts.severity
  notification_channels = var.notification_channels
  depends_on            = [google_project_service.used]

  documentation {
    content   = local.alerts.documentation.content
    mime_type = local.alerts.documentation.mimeType
  }

  dynamic "conditions" {
    for_each = local.alerts.conditions
    content {
      display_name = conditions.value.displayName
      condition_threshold {
        filter                  = conditions.value.conditionThreshold.filter
        comparison              = conditions.value.conditionThreshold.comparison
        threshold_value         = conditions.value.conditionThreshold.thresholdValue
        duration                = conditions.value.conditionThreshold.duration
        evaluation_missing_data = try(conditions.value.conditionThreshold.evaluationMissingData, null)

        dynamic "aggregations" {
          for_each = conditions.value.conditionThreshold.aggregations
          content {
            alignment_period     = aggregations.value.alignmentPeriod
            per_series_aligner   = aggregations.value.perSeriesAligner
            cross_series_reducer = aggregations.value.crossSeriesReducer
            group_by_fields      = aggregations.value.groupByFields
          }
        }
      }
    }
  }

  alert_strategy {
    auto_close = local.alerts.alertStrategy.autoClose
  }
}
