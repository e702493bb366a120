//! Page views as JSON from a real broker, counted per application.

use anyhow::Result;
use sluice_tests::harness::kafka::create_topics;
use sluice_tests::harness::measure::{median, run_local};
use sluice_tests::harness::pageviews::Load;
use sluice_tests::harness::unique;
use std::time::Duration;

const EVENTS: u64 = 3_000_000;
const PARTITIONS: i32 = 4;

pub(crate) fn print() -> Result<()> {
    let Ok(kafka) = std::env::var("SLUICE_TEST_KAFKA") else {
        println!("# kafka_json_rows_per_core skipped: no broker named (SLUICE_TEST_KAFKA)");
        return Ok(());
    };
    let topic = unique("figures");
    tokio::runtime::Runtime::new()?.block_on(create_topics(&kafka, &[(&topic, PARTITIONS)]))?;
    let load = Load { seed: 5, events: EVENTS, apps: 1000, partitions: PARTITIONS, duration: Duration::ZERO };
    load.produce(&kafka, &topic).join().map_err(|_| anyhow::anyhow!("the broker did not take the events"))?;
    let manifest = format!(
        "apiVersion: sluice.dev/v1alpha1
kind: StreamJob
metadata: {{name: kafka-json}}
spec:
  program:
    sql: |
      CREATE TABLE page_views (app_id STRING, url STRING, ts TIMESTAMP(3)) WITH ('connector'='kafka', 'topic'='{topic}', 'properties.bootstrap.servers'='{kafka}', 'format'='json', 'scan.startup.mode'='earliest-offset', 'scan.bounded.mode'='latest-offset');
      CREATE TABLE nothing (app_id STRING, pv BIGINT, PRIMARY KEY (app_id) NOT ENFORCED) WITH ('connector'='blackhole');
      INSERT INTO nothing SELECT app_id, COUNT(*) AS pv FROM page_views GROUP BY app_id;
  parallelism: 2
  checkpointing: {{interval: 1s}}
"
    );
    let mut rates = Vec::new();
    for _ in 0..3 {
        let usage = run_local(&manifest)?;
        println!("# {EVENTS} events: {usage:?}");
        rates.push(EVENTS as f64 / usage.cpu);
    }
    println!("kafka_json_rows_per_core {:.0} rows/s", median(rates));
    Ok(())
}
