//! Page views as the tests produce them, and their counts computed without Sluice.

use super::kafka;
use std::collections::BTreeMap;

/// One event as JSON; a pure function of its number and seed.
#[must_use]
pub fn event(seed: u64, number: u64, apps: u64) -> (String, String) {
    let mixed = mix(seed ^ mix(number));
    let app = format!("app{}", mixed % apps + 1);
    let second = number / 1000 % 86_400;
    let json = format!(
        r#"{{"app_id":"{app}","url":"https://example.org/{}","ts":"2026-01-01 {:02}:{:02}:{:02}.{:03}"}}"#,
        mixed >> 32 & 0xfff,
        second / 3600,
        second / 60 % 60,
        second % 60,
        number % 1000
    );
    (app, json)
}

fn mix(mut value: u64) -> u64 {
    value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// Counts per app, by reading the input topic from its beginning to its end and counting lines.
///
/// # Errors
/// When the broker does not answer.
pub fn expected_counts(bootstrap: &str, topic: &str) -> anyhow::Result<BTreeMap<String, u64>> {
    let mut counts = BTreeMap::new();
    for record in kafka::read_all(bootstrap, topic)? {
        let value: serde_json::Value = serde_json::from_slice(&record.value.unwrap_or_default())?;
        let app = value["app_id"].as_str().unwrap_or_default().to_owned();
        *counts.entry(app).or_insert(0) += 1;
    }
    Ok(counts)
}

/// The `pv` topic materialised: the last value of each key, tombstones removed.
///
/// # Errors
/// When the broker does not answer or a record is not what the sink should write.
pub fn materialised_counts(bootstrap: &str, topic: &str) -> anyhow::Result<BTreeMap<String, u64>> {
    let mut counts = BTreeMap::new();
    for record in kafka::read_all(bootstrap, topic)? {
        let key: serde_json::Value = serde_json::from_slice(&record.key.unwrap_or_default())?;
        let app = key["app_id"].as_str().ok_or_else(|| anyhow::anyhow!("key without app_id: {key}"))?.to_owned();
        match record.value {
            None => drop(counts.remove(&app)),
            Some(value) => {
                let value: serde_json::Value = serde_json::from_slice(&value)?;
                let count = value["pv"].as_u64().ok_or_else(|| anyhow::anyhow!("value without pv: {value}"))?;
                counts.insert(app, count);
            }
        }
    }
    Ok(counts)
}
