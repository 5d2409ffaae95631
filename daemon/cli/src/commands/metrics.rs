//! `millstream metrics`: prints the daemon's metrics in a format of Prometheus.

use millstream_control::proto::MetricsRequest;

use crate::arguments::PrintedMetrics;
use crate::connection::to_daemon;
use crate::context::Context;
use crate::failure::Failure;

pub(crate) async fn run(arguments: PrintedMetrics, context: &Context) -> Result<(), Failure> {
    let request = MetricsRequest { open_metrics: arguments.openmetrics };
    let metrics = to_daemon(context).await?.metrics(request).await?;
    context.answer(&metrics, || metrics.text.clone())
}
