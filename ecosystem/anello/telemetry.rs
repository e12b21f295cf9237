//! Exports traces and metrics to an OpenTelemetry collector over OTLP.
//!
//! Usage: `telemetry URL`
//!
//! Records one span within another, and one counter.

use std::error::Error;
use std::time::Duration;

use anello_ecosystem::otlp::OtlpClient;
use opentelemetry::KeyValue;
use opentelemetry::metrics::MeterProvider;
use opentelemetry::trace::{FutureExt, TraceContextExt, Tracer, TracerProvider};
use opentelemetry_otlp::{MetricExporter, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::metrics::SdkMeterProvider;
use opentelemetry_sdk::trace::SdkTracerProvider;

fn main() -> Result<(), Box<dyn Error>> {
    anello::Runtime::new()?.block_on(run())
}

async fn run() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1).ok_or("missing argument: URL")?;
    let client = OtlpClient::new(Duration::from_secs(10));
    let spans = SpanExporter::builder()
        .with_http()
        .with_http_client(client.clone())
        .with_endpoint(format!("{url}/v1/traces"))
        .build()?;
    let metrics = MetricExporter::builder()
        .with_http()
        .with_http_client(client)
        .with_endpoint(format!("{url}/v1/metrics"))
        .build()?;
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
            anello::time::sleep(Duration::from_millis(1)).await;
            requests.add(1, &[KeyValue::new("method", "GET")]);
        }
    }
    .with_context(request.clone())
    .await;
    request.span().end();

    anello::spawn_blocking(move || tracing.shutdown().and(metering.shutdown())).await??;
    println!("exported");
    Ok(())
}
