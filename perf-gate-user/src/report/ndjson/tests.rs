use super::*;
use crate::report::sample;
use serde_json::{Value, json};

fn written(run: &Run, verdict: &Verdict) -> Vec<Value> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.ndjson");
    let head = Header {
        command: &run.command,
        kernel: &run.kernel,
        arch: &run.arch,
        started: run.started,
    };
    let record = Record::begin(&path, None, &head).unwrap();
    record.finish(run, verdict).unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    text.lines()
        .map(|l| serde_json::from_str(l).unwrap())
        .collect()
}

fn of_type<'a>(lines: &'a [Value], wanted: &str) -> Vec<&'a Value> {
    lines.iter().filter(|l| l["type"] == wanted).collect()
}

/// Every null must be explained, and nothing else.
fn check_nulls(line: &Value) {
    let inapplicable = ["exit_code", "signal", "build_id", "rss_peak_exact"];
    let named: Vec<_> = line["unmeasured"].as_array().map_or(Vec::new(), |list| {
        list.iter()
            .map(|u| u["field"].as_str().unwrap().to_owned())
            .collect()
    });
    for (field, value) in line.as_object().unwrap() {
        if inapplicable.contains(&field.as_str()) {
            continue;
        }
        assert_eq!(value.is_null(), named.contains(field), "{field} in {line}");
        if let Some(inner) = value.as_object().filter(|_| field == "forced") {
            for (name, value) in inner {
                let name = format!("{field}.{name}");
                assert_eq!(value.is_null(), named.contains(&name), "{name} in {line}");
            }
        }
    }
}

#[test]
fn a_sound_run() {
    let lines = written(&sample::run(), &sample::pass());
    let types: Vec<_> = lines.iter().map(|l| l["type"].as_str().unwrap()).collect();
    let mut expected = vec!["run", "gc", "process", "isolate", "isolate", "process"];
    expected.extend(["lane"; Lane::ALL.len()]);
    expected.extend(["overhead", "verdict"]);
    assert_eq!(types, expected);
    lines.iter().for_each(check_nulls);
    assert_eq!(
        lines[0],
        json!({"type": "run", "schema": 1, "version": env!("CARGO_PKG_VERSION"), "command": ["npm", "test"],
            "kernel": "6.18.5", "arch": "x86_64", "started": "2026-11-18T11:06:40.250Z"})
    );
    let main = of_type(&lines, "isolate")[0];
    assert_eq!(
        (&main["pid"], &main["isolate"], &main["node"], &main["v8"]),
        (
            &json!(4242),
            &json!(0),
            &json!("22.23.5"),
            &json!("12.4.254.21")
        )
    );
    assert_eq!(
        (
            &main["scavenges"],
            &main["minor_mark_sweeps"],
            &main["mark_compacts"]
        ),
        (&json!(12), &json!(0), &json!(2))
    );
    assert_eq!(main["reasons"]["allocation failure"], 12);
    assert_eq!(main["forced"]["mark_compacts"], 1);
    assert_eq!(main["allocated_bytes"], 13_020_016);
    assert_eq!(main["allocated"]["large"], 320_016);
    let node = of_type(&lines, "process")[1];
    assert_eq!(
        (&node["exit_code"], &node["signal"]),
        (&json!(0), &Value::Null)
    );
    assert_eq!(node["external_live"], 2_097_152);
    assert!(node["cycles"].is_null());
    assert_eq!(
        lines[lines.len() - 1],
        json!({"type": "verdict", "pass": true, "code": 0, "decided_by": "command", "reasons": [], "doubts": []})
    );
}

#[test]
fn what_a_blind_lane_would_have_seen_is_null_not_zero() {
    let mut run = sample::run();
    run.processes[1].blind = Lane::ALL.map(|l| (l, "no symbols".to_owned())).into();
    run.processes[1].runtime.as_mut().unwrap().node = None;
    run.processes[1].end = End::Unknown;
    let lines = written(&run, &sample::pass());
    lines.iter().for_each(check_nulls);
    let main = of_type(&lines, "isolate")[0];
    for field in [
        "node",
        "scavenges",
        "incremental_starts",
        "pause_ns_total",
        "large_count",
        "pages",
    ] {
        assert!(main[field].is_null(), "{field}");
    }
    assert!(of_type(&lines, "process")[1]["external_live"].is_null());
}

/// The schema file names exactly the fields that are written, so that neither drifts.
#[test]
fn the_schema_file_is_true() {
    written(&sample::run(), &sample::pass())
        .iter()
        .for_each(conforms);
}

fn conforms(line: &Value) {
    let schema: Value = serde_json::from_str(include_str!("../schema1.json")).unwrap();
    let kind = line["type"].as_str().unwrap();
    let described = &schema["$defs"][kind];
    let fields: Vec<_> = line.as_object().unwrap().keys().collect();
    let properties: Vec<_> = described["properties"]
        .as_object()
        .expect(kind)
        .keys()
        .collect();
    assert_eq!(fields, properties, "{kind}");
    let required = described["required"].as_array().unwrap();
    let required: Vec<_> = required.iter().map(|v| v.as_str().unwrap()).collect();
    assert_eq!(fields, required, "{kind}");
    for (name, value) in line.as_object().unwrap() {
        let types = &described["properties"][name]["type"];
        assert!(fits(value, types), "{kind}.{name}: {value} is not {types}");
    }
}

fn fits(value: &Value, types: &Value) -> bool {
    let is = |name: &str| match name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => false,
    };
    match types {
        Value::Array(list) => list.iter().any(|t| is(t.as_str().unwrap())),
        one => is(one.as_str().unwrap_or_default()),
    }
}

#[test]
fn a_check_is_as_the_schema_says() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("doctor.ndjson");
    let command = ["perf-gate".to_owned(), "doctor".to_owned()];
    let head = Header {
        command: &command,
        kernel: "6.18",
        arch: "x86_64",
        started: SystemTime::UNIX_EPOCH,
    };
    let mut record = Record::begin(&path, None, &head).unwrap();
    record.check("machine", &Check::fail("bpf maps", "no", "sudo"));
    record.close(&sample::pass(), &[]).unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    let lines: Vec<Value> = text
        .lines()
        .map(|l| serde_json::from_str(l).unwrap())
        .collect();
    let types: Vec<_> = lines.iter().map(|l| &l["type"]).collect();
    assert_eq!(types, ["run", "check", "verdict"]);
    conforms(&lines[1]);
}
