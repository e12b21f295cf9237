//! Upgrades results from version 2 of the schema, which differs from version 3 only in names.

use serde_json::Value;

/// Version that [`upgrade`] converts.
pub(crate) const VERSION: u32 = 2;

/// Fields whose name changed. A field with the prefix `cpu_of_both` has the prefix `total_cpu` in version 3.
const FIELDS: [(&str, &str); 8] = [
    ("versus", "peer_comparisons"),
    ("runtime_versus", "runtime_comparisons"),
    ("other_versus", "other_comparisons"),
    ("base_versus", "base_comparisons"),
    ("foreign_fraction", "other_cpu_fraction"),
    ("spoilt_slices", "invalid_slices"),
    ("idle_use", "idle_cpu_fraction"),
    ("against", "base"),
];

/// Returns the value with the names used in version 3.
pub(crate) fn upgrade(value: Value) -> Value {
    match value {
        Value::Array(values) => values.into_iter().map(upgrade).collect(),
        Value::Object(fields) => fields.into_iter().map(|(name, value)| upgrade_field(name, value)).collect(),
        value => value,
    }
}

fn upgrade_field(name: String, value: Value) -> (String, Value) {
    let value = match (name.as_str(), value) {
        ("quality", value) if value == "spoilt" => "invalid".into(),
        (_, value) => upgrade(value),
    };
    let name = match name.strip_prefix("cpu_of_both") {
        Some(rest) => format!("total_cpu{rest}"),
        None => FIELDS.iter().find(|(old, _)| name == *old).map_or(name, |(_, new)| (*new).to_owned()),
    };
    (name, value)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn old_names_and_values_are_replaced_at_every_depth() {
        let old = json!({
            "versus": [{ "cpu_of_both_ratio": null, "cpu_of_both_verdict": "less" }],
            "contenders": [{ "name": "bare", "idle_use": 0.5, "against": "x" }],
            "slices": [{ "quality": "spoilt" }, { "quality": "clean" }],
            "foreign_fraction": 0.25,
        });
        let new = json!({
            "peer_comparisons": [{ "total_cpu_ratio": null, "total_cpu_verdict": "less" }],
            "contenders": [{ "name": "bare", "idle_cpu_fraction": 0.5, "base": "x" }],
            "slices": [{ "quality": "invalid" }, { "quality": "clean" }],
            "other_cpu_fraction": 0.25,
        });
        assert_eq!(upgrade(old), new);
    }
}
