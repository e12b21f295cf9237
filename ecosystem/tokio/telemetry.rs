//! Exports traces and metrics to an OpenTelemetry collector over OTLP.
//!
//! Usage: `telemetry URL`
//!
//! Records one span within another, and one counter.

use std::error::Error;
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::metrics::MeterProvider;
use opentelemetry::trace::{FutureExt, TraceContextExt, Tracer, TracerProvider};
use opentelemetry_otlp::{MetricExporter, SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::metrics::SdkMeterProvider;
use opentelemetry_sdk::trace::SdkTracerProvider;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1).ok_or("missing argument: URL")?;
    let spans = SpanExporter::builder().with_http().with_endpoint(format!("{url}/v1/traces")).build()?;
    let metrics = MetricExporter::builder().with_http().with_endpoint(format!("{url}/v1/metrics")).build()?;
    let resource = Resource::builder().with_service_name("ecosystem").build();
    let tracing =
        SdkTracerProvider::builder().with_resource(resource.clone()).with_batch_exporter(spans).build();
    let metering =
        SdkMeterProvider::builder().with_resource(resource).with_periodic_exporter(metrics).build();

    let tracer = tracing.tracer("telemetry");
    let meter = metering.meter("telemetry");
    let requests = meter.u64_counter("requests").build();
    let request = opentelemetry::Context::current_with_span(tracer.start("request"));
    async {
        for query in 0..3 {
            let _query = tracer.start(format!("query {query}"));
            tokio::time::sleep(Duration::from_millis(1)).await;
            requests.add(1, &[KeyValue::new("method", "GET")]);
        }
    }
    .with_context(request.clone())
    .await;
    request.span().end();

    tokio::task::spawn_blocking(move || tracing.shutdown().and(metering.shutdown())).await??;
    println!("exported");
    Ok(())
}
